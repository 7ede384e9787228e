"""A service on a tiny model, in this process: without a socket, or with one."""

from __future__ import annotations

import base64
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import ASGIApp
from tests import helpers

from anytimecl.classifier import AnytimeClassifier
from anytimecl.serve.app import create_app
from anytimecl.serve.engine import Engine
from anytimecl.serve.memories import Memories
from anytimecl.serve.options import Options
from anytimecl.serve.server import make_server
from anytimecl.serve.studio_files import LabelStudio
from anytimecl.serve.tokens import AccessTokens

READ, WRITE = "a token that may only read", "a token that may read and write"
TOKENS = AccessTokens({READ: "read", WRITE: "write"})


def png(number: int) -> bytes:
    """A picture as a file."""
    out = io.BytesIO()
    helpers.picture(number).save(out, "PNG")
    return out.getvalue()


def text(number: int) -> str:
    """A picture as base64."""
    return base64.b64encode(png(number)).decode()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@dataclass
class Service:
    """An app, its engine, and a client that needs no socket."""

    app: ASGIApp
    engine: Engine
    client: TestClient
    memories: Memories

    def learn(self, number: int, label: str, **options: Any) -> dict[str, Any]:
        response = self.client.post("/v1/learn", json={"image": text(number), "label": label})
        assert response.status_code == 200, response.text
        return dict(response.json())


Make = Callable[..., Service]


def make_engine(folder: Path | None, **limits: Any) -> Engine:
    return Engine(open_tiny(folder), replace(Options(), **limits))


def open_tiny(folder: Path | None) -> AnytimeClassifier:
    return AnytimeClassifier.open(folder, model=helpers.model(), settings=helpers.settings())


def make_memories(folder: Path | None, others: Path | None = None, **limits: Any) -> Memories:
    """With `others`, any number of memories in that folder."""
    return Memories(make_engine(folder, **limits), others, open_tiny)


@contextmanager
def opened(
    folder: Path | None,
    tokens: AccessTokens,
    studio: LabelStudio | None = None,
    others: Path | None = None,
    **limits: Any,
) -> Iterator[Service]:
    memories = make_memories(folder, others, **limits)
    app = create_app(memories, tokens, studio)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield Service(app, memories.default, client, memories)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """Open to this machine, in a folder."""
    with opened(tmp_path / "memory", AccessTokens({})) as made:
        yield made


@pytest.fixture
def closed() -> Iterator[Service]:
    """It asks for tokens."""
    with opened(None, TOKENS) as made:
        yield made


@dataclass
class Running:
    """A server with a socket."""

    port: int
    engine: Engine
    stop: Callable[[], None]
    connections: Callable[[], int]  # how many are open

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


@contextmanager
def running(
    folder: Path | None, tokens: AccessTokens, others: Path | None = None, **limits: Any
) -> Iterator[Running]:
    """In a thread; it has stopped when this ends."""
    memories = make_memories(folder, others, **limits)
    server = make_server(create_app(memories, tokens), memories, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)

    def stop() -> None:
        if thread.is_alive():
            server.handle_exit(15, None)
            thread.join(60)
        assert not thread.is_alive()

    def connections() -> int:
        return len(server.server_state.connections)

    try:
        yield Running(
            server.servers[0].sockets[0].getsockname()[1], memories.default, stop, connections
        )
    finally:
        stop()
