"""Errors as application/problem+json (RFC 9457), without stack traces."""

from __future__ import annotations

import logging
import math
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from anytimecl.errors import (
    AnytimeError,
    ImageError,
    LabelError,
    LabelTakenError,
    UnknownLabelError,
)

log = logging.getLogger("anytimecl.serve")
MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """An error response."""

    def __init__(
        self, status: int, detail: str, *, retry_after: float | None = None, **headers: str
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.more: dict[str, Any] = {}  # members besides those of RFC 9457
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if retry_after is not None:
            self.headers["retry-after"] = str(max(1, math.ceil(retry_after)))


class Busy(Problem):
    """Back-pressure (429): nothing was accepted, so a retry is safe."""

    def __init__(self, detail: str, retry_after: float) -> None:
        super().__init__(429, detail, retry_after=retry_after)


def respond(problem: Problem) -> JSONResponse:
    """The response for a problem."""
    content: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
        **problem.more,
    }
    return JSONResponse(content, problem.status, problem.headers, MEDIA_TYPE)


def of_validation(error: ValidationError | RequestValidationError) -> Problem:
    """Which field is invalid and why, without repeating its content."""
    told = []
    for item in error.errors():
        place = ".".join(str(part) for part in item["loc"])
        told.append(f"{place}: {item['msg']}" if place else str(item["msg"]))
    return Problem(422, "; ".join(told[:5]) + ("; ..." if len(told) > 5 else ""))


def of_error(error: AnytimeError) -> Problem:
    """Errors in the request are described in the response, errors of the memory in the log."""
    if isinstance(error, UnknownLabelError):
        return Problem(404, str(error))
    if isinstance(error, LabelTakenError):
        return Problem(409, str(error))
    if isinstance(error, ImageError | LabelError):
        return Problem(422, str(error))
    log.error("%s", error)
    told = "The memory or the model cannot be used at the moment; nothing stored is lost."
    return Problem(503, told, retry_after=30)


def install(app: FastAPI) -> None:
    """Install exception handlers that respond with problems."""

    @app.exception_handler(Problem)
    async def problem(request: Request, error: Problem) -> JSONResponse:
        return respond(error)

    @app.exception_handler(HTTPException)
    async def refusal(request: Request, error: HTTPException) -> JSONResponse:
        told = Problem(error.status_code, str(error.detail))
        told.headers.update(error.headers or {})
        return respond(told)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return respond(of_validation(error))

    @app.exception_handler(AnytimeError)
    async def for_people(request: Request, error: AnytimeError) -> JSONResponse:
        return respond(of_error(error))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        return respond(Problem(500, "An error inside the service; its log says more."))
