"""The app behind a socket: uvicorn, with bounds on how long a client may take."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from anytimecl.errors import AnytimeError
from anytimecl.serve.engine import Engine
from anytimecl.serve.guard import is_loopback
from anytimecl.serve.options import Options
from anytimecl.serve.tokens import Tokens

GRACE = 60  # seconds that requests under way have when the service stops


def check_binding(host: str, tokens: Tokens) -> None:
    """An error where strangers could reach a service that asks for no token."""
    if not tokens and not is_loopback(host):
        raise AnytimeError(
            f"{host} can be reached from other machines, and no token is set. Give --tokens FILE "
            "(or ANYTIMECL_WRITE_TOKEN), or serve on 127.0.0.1."
        )


class BoundedProtocol(H11Protocol):
    """HTTP in which nobody waits for ever: neither for a head, nor for an answer to be taken.

    Uvicorn bounds the time between two requests, but any byte ends that wait: who sends one byte a
    second would hold a connection for as long as it likes. So would who never reads.
    """

    header_seconds = Options.header_seconds
    send_seconds = Options.send_seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._unstick()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._idle():
            self._watch()
        else:
            self._unwatch()

    def on_response_complete(self) -> None:
        self._watch()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client takes nothing, and what waits for it is large."""
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(self.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It takes something again."""
        self._unstick()
        super().resume_writing()

    def _unstick(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _idle(self) -> bool:
        """Whether no request is being answered: a head, or a body nobody wants, is arriving."""
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.header_seconds, self._give_up)

    def _unwatch(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self._idle() and not self.transport.is_closing():
            self.transport.abort()


class Server(uvicorn.Server):
    """Uvicorn's, which tells the engine as soon as it is asked to stop."""

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self._engine = engine
        self.on_started: Callable[[str], object] = lambda address: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Say where it listens, once it does: the port may have been any."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self.on_started(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End streams and long work at once, or the shutdown would wait for them."""
        self._engine.stop_soon()
        super().handle_exit(sig, frame)
        # Stopping is what was asked for: no KeyboardInterrupt afterwards, and no exit by signal.
        self._captured_signals.clear()


def make_server(app: ASGIApp, engine: Engine, host: str, port: int, **changes: Any) -> Server:
    """Not yet running."""
    options = engine.options
    bounds = {"header_seconds": options.header_seconds, "send_seconds": options.send_seconds}
    protocol = type("Protocol", (BoundedProtocol,), bounds)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        proxy_headers=False,  # a client could claim any address
        server_header=False,
        limit_concurrency=options.connections,
        timeout_keep_alive=int(options.header_seconds),
        timeout_graceful_shutdown=GRACE,
        h11_max_incomplete_event_size=32 * 1024,
        **{"log_level": "warning", "access_log": False, **changes},
    )
    return Server(config, engine)
