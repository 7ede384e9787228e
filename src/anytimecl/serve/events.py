"""Events of a memory, for streams and for polling."""

from __future__ import annotations

import asyncio
import json
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal, NamedTuple

from anytimecl.serve.asking import ASKER
from anytimecl.serve.problems import Busy

HEARTBEAT = 15.0  # seconds; shorter than the timeouts of proxies
WAITING = 64  # events queued for a slow listener; then the oldest are dropped
KEPT = 256  # events kept for polling; a client that is further behind reloads everything
Kind = Literal["learned", "changed", "forgotten", "job"]
_END = ("", None)


class Happened(NamedTuple):
    """An event with its number, counted from 1 per process."""

    number: int
    kind: Kind
    data: dict[str, Any]


class Listener:
    """A stream's queue. Its place is free again when it is garbage-collected."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue(WAITING)


class Broadcast:
    """Sends events from any thread to listeners on the event loop.

    The latest events are also kept for polling, since a browser has six connections per host for
    all its tabs and a stream occupies one. They are kept without labels, which may be forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # Weak, since a response that never starts never ends either, and must not keep its place.
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._latest: deque[Happened] = deque(maxlen=KEPT)
        self._number = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Use the running event loop."""
        self._loop, self._closed = asyncio.get_running_loop(), False

    def close(self) -> None:
        """End every stream; from any thread."""
        self._closed = True
        self._call(_END)

    def send(self, kind: Kind, data: dict[str, Any]) -> None:
        """Send an event to all; from any thread."""
        with self._lock:
            self._number += 1
            kept = {name: value for name, value in data.items() if name != "label"}
            self._latest.append(Happened(self._number, kind, kept))
        if len(self._listeners):
            self._call((kind, data))

    def since(self, number: int) -> tuple[int, list[Happened], bool]:
        """The last number, the events after `number`, and whether some of them are lost.

        A number larger than the last was given by an earlier process.
        """
        with self._lock:
            found = [one for one in self._latest if one.number > number]
            missed = number > self._number or self._number - number > len(found)
            return self._number, found, missed

    def __len__(self) -> int:
        return len(self._listeners)

    def join(self) -> Listener:
        """Register a listener; raises Busy if there are too many."""
        if len(self._listeners) >= self._most:
            raise Busy("Too many listen already; ask /v1/changes instead, or close one.", 30)
        listener = Listener()
        self._listeners.add(listener)
        return listener

    def listen(self) -> AsyncIterator[bytes]:
        """A stream for one listener, as text/event-stream.

        It ends before the next event if the token is revoked.
        """
        return self._stream(self.join(), ASKER.get().allowed)

    async def _stream(
        self, listener: Listener, allowed: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        try:
            yield b"retry: 2000\n\n"
            while not self._closed:
                try:
                    kind, data = await asyncio.wait_for(listener.queue.get(), HEARTBEAT)
                except TimeoutError:
                    kind, data = "", None
                    if allowed() and not self._closed:
                        yield b": still here\n\n"
                        continue
                if not kind or not allowed():
                    return
                yield message(kind, data)
        finally:
            self._listeners.discard(listener)

    def _call(self, event: tuple[str, Any]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, event)

    def _deliver(self, event: tuple[str, Any]) -> None:
        for listener in list(self._listeners):
            if listener.queue.full():
                listener.queue.get_nowait()  # the page reloads everything at the next one
            listener.queue.put_nowait(event)


def message(kind: str, data: Any) -> bytes:
    """An event as text. JSON has no raw line breaks, so a label cannot inject another event.

    >>> message("learned", {"id": 1})
    b'event: learned\\ndata: {"id": 1}\\n\\n'
    """
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()
