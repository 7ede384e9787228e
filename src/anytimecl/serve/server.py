"""The app on a socket: uvicorn, with limits on slow clients."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from anytimecl.errors import AnytimeError
from anytimecl.serve.memories import Memories
from anytimecl.serve.options import Options
from anytimecl.serve.origins import is_loopback
from anytimecl.serve.problems import MEDIA_TYPE
from anytimecl.serve.tokens import AccessTokens

_HEAD = re.compile(rb"\n\r?\n")  # end of a head
_REST_OF_HEAD = re.compile(rb"\r?\n(\r?\n)?")  # the same, if it is split between reads
AT_ONCE = 64 * 1024  # bytes read from a client at a time
CHUNKS = 1_000  # lines of a chunked body before their mean length is checked
SHORTEST = 12  # mean bytes per line: parsing costs the same for short chunks
SPARE = 16  # connections beyond the limit, for health checks
GRACE = 60  # seconds for current requests when the service stops


def check_binding(host: str, tokens: AccessTokens) -> None:
    """Raise if other machines can reach a service without tokens."""
    if not tokens and not is_loopback(host):
        raise AnytimeError(
            f"{host} can be reached from other machines, and no token is set. Give --tokens FILE "
            "(or ANYTIMECL_WRITE_TOKEN), or serve on 127.0.0.1."
        )


class BoundedProtocol(H11Protocol):
    """HTTP with timeouts for the request head and for reading the response.

    Uvicorn limits the time between two requests only, and any byte ends that wait: a client that
    sends one byte per second, or never reads, could hold a connection for ever.
    """

    header_seconds = Options.header_seconds
    send_seconds = Options.send_seconds
    most = Options.connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._deadline: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._lines = self._bytes = 0  # of a chunked body
        transport.max_size = AT_ONCE  # type: ignore[attr-defined]  # bytes per read
        self._make_room()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._unstick()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        end = _REST_OF_HEAD.match(data) or _HEAD.search(data)
        while end and self._idle() and end.end() < len(data) and not self.transport.is_closing():
            self._take(data[: end.end()])  # the head first: it determines how the body is parsed
            data = data[end.end() :]
            end = _HEAD.search(data)
        if self._crumbles(data):
            self.send_400_response("The chunks of this body are too short: send longer ones.")
        elif not self.transport.is_closing():
            self._take(data)

    def _take(self, data: bytes) -> None:
        idle = self._idle()
        super().data_received(data)
        if self._idle():
            self._watch()
        else:
            self._unwatch()
            if idle:
                self._since = self.loop.time()
                self._lines = self._bytes = 0

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        self._watch()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read, and the write buffer is full."""
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(self.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._unstick()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Invalid HTTP gets a problem as response, too."""
        body = json.dumps(
            {"type": "about:blank", "title": "Bad Request", "status": 400, "detail": msg}
        ).encode()
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        parts = (h11.Response(status_code=400, headers=headers), h11.Data(data=body))
        with suppress(h11.LocalProtocolError):  # a response has begun
            for event in (*parts, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _crumbles(self, data: bytes) -> bool:
        """Whether the body's chunks are so short that parsing them would block others."""
        if self._idle() or not any(name == b"transfer-encoding" for name, _ in self.headers):
            return False
        self._lines += data.count(b"\r\n")
        self._bytes += len(data)
        return self._lines > CHUNKS and self._lines * SHORTEST > self._bytes

    def _make_room(self) -> None:
        """If there are too many, close the connection that has waited longest for its client.

        It is one of the address that has most such connections. A few more than the limit are
        accepted, for health checks.
        """
        open_ones = [
            one
            for one in self.connections
            if isinstance(one, BoundedProtocol) and not one.transport.is_closing()
        ]
        if len(open_ones) <= self.most:
            return
        slow = [one for one in open_ones if one is not self and one._waits_for_client()]
        if slow:
            of = Counter(one._address for one in slow)
            min(slow, key=lambda one: (-of[one._address], one._since)).transport.abort()
        elif len(open_ones) > self.most + SPARE:
            self.transport.abort()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _waits_for_client(self) -> bool:
        """For a head, for the rest of a body, or for reading the response."""
        return self._idle() or self.cycle.more_body or self._stuck is not None

    def _unstick(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _idle(self) -> bool:
        """Whether no request is being processed: a head, or an unwanted body, is arriving."""
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
    """Uvicorn's server, which notifies the memories as soon as it is asked to stop."""

    def __init__(self, config: uvicorn.Config, memories: Memories) -> None:
        super().__init__(config)
        self._memories = memories
        self.on_started: Callable[[str], object] = lambda address: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Report the address once listening: the port may have been 0."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self.on_started(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop streams and long jobs at once, else the shutdown would wait for them."""
        self._memories.stop_soon()
        super().handle_exit(sig, frame)
        # A regular exit: no KeyboardInterrupt afterwards, and no exit by signal.
        self._captured_signals.clear()


def make_server(app: ASGIApp, memories: Memories, host: str, port: int, **changes: Any) -> Server:
    """A server that is not running yet."""
    options = memories.options
    bounds = {
        "header_seconds": options.header_seconds,
        "send_seconds": options.send_seconds,
        "most": options.connections,
    }
    protocol = type("Protocol", (BoundedProtocol,), bounds)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        proxy_headers=False,  # clients could forge their address
        server_header=False,
        timeout_keep_alive=int(options.header_seconds),
        timeout_graceful_shutdown=GRACE,
        h11_max_incomplete_event_size=32 * 1024,
        **{"log_level": "warning", "access_log": False, **changes},
    )
    return Server(config, memories)
