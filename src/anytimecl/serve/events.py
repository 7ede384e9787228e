"""What happens, told to whoever listens to a stream or asks every now and then."""

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

HEARTBEAT = 15.0  # seconds; shorter than proxies' patience
WAITING = 64  # events that a slow listener may be behind; then it misses some
KEPT = (
    256  # events that who asks every now and then may be behind; then it asks for everything anew
)
Kind = Literal["learned", "changed", "forgotten", "job"]
_END = ("", None)


class Happened(NamedTuple):
    """An event with its number, which counts up from 1 as long as the process lives."""

    number: int
    kind: Kind
    data: dict[str, Any]


class Listener:
    """One place among those that may listen. It is free again as soon as nobody holds it."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[str, Any]] = asyncio.Queue(WAITING)


class Broadcast:
    """Events from any thread to any number of listeners on the event loop.

    The latest are kept too, for those who ask now and then: a browser has six connections to a host
    for all its tabs, and a stream takes one of them for good. They are kept without labels, which
    may be forgotten.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # Weak, since a response that never begins never ends either: then its place is free too.
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._latest: deque[Happened] = deque(maxlen=KEPT)
        self._number = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """On the loop that listeners live on."""
        self._loop, self._closed = asyncio.get_running_loop(), False

    def close(self) -> None:
        """End every stream; from any thread."""
        self._closed = True
        self._call(_END)

    def send(self, kind: Kind, data: dict[str, Any]) -> None:
        """Tell everybody; from any thread."""
        with self._lock:
            self._number += 1
            kept = {name: value for name, value in data.items() if name != "label"}
            self._latest.append(Happened(self._number, kind, kept))
        if len(self._listeners):
            self._call((kind, data))

    def since(self, number: int) -> tuple[int, list[Happened], bool]:
        """The newest number, what came after `number`, and whether some of that is not known.

        A number from the future was given by a process before this one.
        """
        with self._lock:
            found = [one for one in self._latest if one.number > number]
            missed = number > self._number or self._number - number > len(found)
            return self._number, found, missed

    def __len__(self) -> int:
        return len(self._listeners)

    def join(self) -> Listener:
        """A place, as long as it is held."""
        if len(self._listeners) >= self._most:
            raise Busy("Too many listen already; ask /v1/changes instead, or close one.", 30)
        listener = Listener()
        self._listeners.add(listener)
        return listener

    def listen(self) -> AsyncIterator[bytes]:
        """A stream for one listener, in the format of text/event-stream.

        It ends before the next event when its token was revoked.
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
                listener.queue.get_nowait()  # the page asks for everything anew at the next one
            listener.queue.put_nowait(event)


def message(kind: str, data: Any) -> bytes:
    """One event. JSON has no line breaks of its own, so a label cannot forge a second one.

    >>> message("learned", {"id": 1})
    b'event: learned\\ndata: {"id": 1}\\n\\n'
    """
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()
