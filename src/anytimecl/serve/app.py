"""The ASGI app: routes, web page, health checks and OpenAPI description, behind `Guard`."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Path
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp

from anytimecl import __version__
from anytimecl.serve import admin_routes, curation, label_studio, problems, reference, routes
from anytimecl.serve.access import OPEN, needed
from anytimecl.serve.assets import ASSETS, Asset
from anytimecl.serve.engine import Engine
from anytimecl.serve.guard import Guard
from anytimecl.serve.memories import Memories
from anytimecl.serve.schemas import HealthTold, ProblemTold, problem_responses
from anytimecl.serve.studio_files import LabelStudio
from anytimecl.serve.tokens import AccessTokens

IN_MEMORY = "/v1/memories/{memory}"

TAGS = {
    "Predict": "What images show.",
    "Learn": "Learn, correct, undo and forget.",
    "Know": "What is stored and known.",
    "Jobs": "Work that takes longer than a request.",
    "Memories": "Several in one service, each for itself.",
    "Tokens": "Who may do what.",
    "Operate": "For whoever runs the service.",
    "Label Studio": "As one of its ML backends.",
}


def create_app(
    memories: Memories, tokens: AccessTokens, studio: LabelStudio | None = None
) -> ASGIApp:
    """An ASGI app that owns the memories: it closes them on shutdown."""
    first = memories.default
    memories.on_deleted = tokens.granted.drop_memory

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        first.broadcast.start()
        yield
        await memories.close()

    async def default() -> AsyncIterator[Engine]:
        yield first

    async def named(memory: Annotated[str, Path(max_length=64)]) -> AsyncIterator[Engine]:
        async with memories.use(memory) as engine:
            yield engine

    app = FastAPI(
        title="anytimecl",
        version=__version__,
        summary="Image classification that learns from every single correction.",
        openapi_url=None,  # it would be serialised for every request; see `_add_reference`
        docs_url=None,  # these load scripts from a CDN; `reference` does not
        redoc_url=None,
        lifespan=lifespan,
        generate_unique_id_function=_operation,
        openapi_tags=[{"name": name, "description": told} for name, told in TAGS.items()],
    )
    problems.install(app)
    app.include_router(routes.make_router("/v1", default))
    app.include_router(curation.make_router("/v1", default))
    app.include_router(label_studio.make_router(first, studio or LabelStudio()))
    app.include_router(admin_routes.make_router(memories, tokens))
    app.include_router(routes.make_router(IN_MEMORY, named))
    app.include_router(curation.make_router(IN_MEMORY, named))
    _add_health(app, memories)
    _add_page(app)
    _add_reference(app)
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]
    return Guard(app, tokens, first.options, first.metrics, read_only=first.read_only)


def _operation(route: APIRoute) -> str:
    """Operation id, from which generated clients name their methods."""
    if route.path.startswith("/label-studio/"):
        return f"label_studio_{route.name}"
    return f"{route.name}_in" if route.path.startswith(f"{IN_MEMORY}/") else route.name


def _add_health(app: FastAPI, memories: Memories) -> None:
    @app.get("/healthz", tags=["Operate"], summary="Whether the process lives")
    async def healthz() -> HealthTold:
        """Liveness, for a supervisor."""
        return HealthTold(status="ok")

    @app.get(
        "/readyz",
        tags=["Operate"],
        summary="Whether it takes on work",
        responses=problem_responses(),
    )
    async def readyz() -> HealthTold:
        """Readiness, for a load balancer. Not ready if the disk is full."""
        if why := await memories.default.answer(memories.not_ready):
            raise problems.Problem(503, why, retry_after=5)
        return HealthTold(status="ok")

    @app.get(
        "/metrics",
        tags=["Operate"],
        summary="For Prometheus",
        response_class=Response,
        responses=problem_responses()
        | {200: {"description": "Metrics", "content": {"text/plain": {}}}},
    )
    async def metrics() -> Response:
        """Latencies, queues, steps, memory size, accuracies."""
        opened, first = memories.opened(), memories.default
        text = await first.answer(lambda: first.metrics.text(opened))
        return Response(text, media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI) -> None:
    def add(path: str, asset: Asset) -> None:
        @app.get(path, include_in_schema=False)
        async def file() -> Response:
            return Response(asset.content, media_type=asset.kind)

    for path, asset in ASSETS.items():
        add(path, asset)


def _add_reference(app: FastAPI) -> None:
    @functools.cache
    def description() -> bytes:
        return json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()

    @functools.cache
    def page() -> str:
        return reference.page(app.openapi())

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(description(), media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(page(), media_type="text/html")

    @app.get("/docs.css", include_in_schema=False)
    async def style() -> Response:
        return Response(reference.STYLE, media_type="text/css")


def _describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description, with the right that each operation needs."""
    if app.openapi_schema is None:
        made = FastAPI.openapi(app)
        components = made.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        problem = ProblemTold.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(problem.pop("$defs"))
        schemas["ProblemTold"] = problem
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, methods in made["paths"].items():
            for method, operation in methods.items():
                right = needed(method.upper(), path).right
                if path not in OPEN and right is not None:
                    operation["security"] = [{"token": []}]
                    operation["description"] += f" Needs the right `{right}` where tokens are set."
        app.openapi_schema = made
    return app.openapi_schema
