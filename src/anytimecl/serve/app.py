"""The app as a whole: routes, page, health, description, and the guard around all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from fastapi import FastAPI
from fastapi.responses import Response
from starlette.types import ASGIApp

from anytimecl import __version__
from anytimecl.serve import label_studio, problems, routes
from anytimecl.serve.engine import Engine
from anytimecl.serve.guard import OPEN, Guard, needed
from anytimecl.serve.schemas import HealthTold, ProblemTold, problem_responses
from anytimecl.serve.tokens import Tokens

FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def create_app(
    engine: Engine, tokens: Tokens, studio: label_studio.Studio | None = None
) -> ASGIApp:
    """An ASGI app that owns the engine: it closes it when it is shut down."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        engine.broadcast.start()
        yield
        await asyncio.to_thread(engine.close)

    app = FastAPI(
        title="anytimecl",
        version=__version__,
        summary="Image classification that learns from every single correction.",
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    problems.install(app)
    app.include_router(routes.make_router(engine))
    app.include_router(label_studio.make_router(engine, studio or label_studio.Studio()))
    _add_health(app, engine)
    _add_page(app)
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]
    return Guard(app, tokens, engine.options, engine.metrics)


def _add_health(app: FastAPI, engine: Engine) -> None:
    @app.get("/healthz", summary="Whether the process lives")
    async def healthz() -> HealthTold:
        """For whoever restarts it."""
        return HealthTold(status="ok")

    @app.get("/readyz", summary="Whether it takes on work", responses=problem_responses())
    async def readyz() -> HealthTold:
        """For whoever sends it work."""
        if not engine.ready:
            raise problems.Problem(503, "The service is stopping.", retry_after=5)
        return HealthTold(status="ok")

    @app.get(
        "/metrics",
        summary="For Prometheus",
        response_class=Response,
        responses=problem_responses()
        | {200: {"description": "Metrics", "content": {"text/plain": {}}}},
    )
    async def metrics() -> Response:
        """Latencies, queues, steps, memory size, accuracies."""
        text = await engine.answer(lambda: engine.metrics.text(engine))
        return Response(text, media_type="text/plain; version=0.0.4")


def _add_page(app: FastAPI) -> None:
    folder = resources.files(__package__) / "page"

    def add(path: str, content: bytes, kind: str) -> None:
        @app.get(path, include_in_schema=False)
        async def file() -> Response:
            return Response(content, media_type=kind)

    for path, (name, kind) in FILES.items():
        add(path, (folder / name).read_bytes(), kind)


def _describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description, with who may do what."""
    if app.openapi_schema is None:
        made = FastAPI.openapi(app)
        components = made.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        schemas["ProblemTold"] = ProblemTold.model_json_schema()
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, methods in made["paths"].items():
            for method, operation in methods.items():
                scope = needed(method.upper(), path)
                if path not in OPEN and scope is not None:
                    operation["security"] = [{"token": []}]
                    operation["description"] += f" Needs the scope `{scope}` where tokens are set."
        app.openapi_schema = made
    return app.openapi_schema
