"""Server-sent events: what happens, told to every page that listens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from anytimecl.serve.problems import Busy

HEARTBEAT = 15.0  # seconds; shorter than proxies' patience
WAITING = 64  # events that a slow listener may be behind; then it misses some
_END = ("", None)


class Broadcast:
    """Events from any thread to any number of listeners on the event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._listeners: set[asyncio.Queue[tuple[str, Any]]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def start(self) -> None:
        """On the loop that listeners live on."""
        self._loop, self._closed = asyncio.get_running_loop(), False

    def close(self) -> None:
        """End every stream; from any thread."""
        self._closed = True
        self._call(_END)

    def send(self, kind: str, data: Any) -> None:
        """Tell everybody; from any thread."""
        if self._listeners:
            self._call((kind, data))

    def __len__(self) -> int:
        return len(self._listeners)

    def listen(self) -> AsyncIterator[bytes]:
        """A stream for one listener, in the format of text/event-stream."""
        if len(self._listeners) >= self._most:
            raise Busy("Too many pages listen already; close one.", 30)
        return self._stream()

    async def _stream(self) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue(WAITING)
        self._listeners.add(queue)  # here: a stream that never begins would never end either
        try:
            yield b"retry: 2000\n\n"
            while not self._closed:
                try:
                    kind, data = await asyncio.wait_for(queue.get(), HEARTBEAT)
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                if not kind:
                    return
                yield message(kind, data)
        finally:
            self._listeners.discard(queue)

    def _call(self, event: tuple[str, Any]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, event)

    def _deliver(self, event: tuple[str, Any]) -> None:
        for queue in self._listeners:
            if queue.full():
                queue.get_nowait()  # the page asks for everything anew at the next one
            queue.put_nowait(event)


def message(kind: str, data: Any) -> bytes:
    """One event. JSON has no line breaks of its own, so a label cannot forge a second one.

    >>> message("learned", {"id": 1})
    b'event: learned\\ndata: {"id": 1}\\n\\n'
    """
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()
