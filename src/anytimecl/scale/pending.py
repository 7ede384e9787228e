"""Pending requests to leaves, and detection of leaves that do not respond."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Any

from anytimecl.scale.leaves import Unreachable
from anytimecl.trainer import Learned

PENDING = 64  # pending examples of a leaf before a caller waits
AGAIN = 60.0  # seconds after which a silent leaf is asked again


class MustWait(Exception):
    """An example cannot be sent until another request is done."""

    def __init__(self, first: Future[Any]) -> None:
        super().__init__("too much is on its way to the leaf, or it splits")
        self.first = first


class Lessons:
    """Pending examples. A leaf that has some and learns none for `stuck` seconds is stuck.

    >>> lessons, sent = Lessons(stuck=30.0), Future()
    >>> lessons.add(0, sent)
    >>> lessons.of(0) == [sent], lessons.of(1)
    (True, [])
    """

    def __init__(self, stuck: float) -> None:
        self.stuck = stuck
        self._lock = threading.Lock()
        self._queues: dict[int, deque[Future[Learned]]] = defaultdict(deque)
        self._progress: dict[int, float] = {}  # when a leaf last learned, or was sent an example

    def add(self, leaf: int, future: Future[Learned]) -> None:
        """Add an example that was sent to a leaf."""
        with self._lock:
            queue = self._queues[leaf]
            while queue and queue[0].done():
                queue.popleft()
            if not queue:
                self._progress[leaf] = time.monotonic()
            queue.append(future)
        future.add_done_callback(lambda _: self.restart_clocks([leaf]))

    def of(self, leaf: int) -> list[Future[Learned]]:
        """Pending examples of a leaf, the oldest first."""
        with self._lock:
            return [future for future in self._queues.get(leaf, ()) if not future.done()]

    def all(self) -> list[Future[Learned]]:
        """All pending examples."""
        with self._lock:
            return [one for queue in self._queues.values() for one in queue if not one.done()]

    def before(self, leaf: int, room: int = 1) -> Future[Learned] | None:
        """The request that another example for a leaf has to wait for; Unreachable if it is stuck.

        A caller that has to wait does so until there is `room` for this many.
        """
        self.check(leaf)
        waiting = self.of(leaf)
        return waiting[room - 1] if len(waiting) >= PENDING else None

    def check(self, leaf: int) -> None:
        """Raise Unreachable if the leaf is stuck."""
        count, since = len(self.of(leaf)), time.monotonic() - self._progress.get(leaf, 0.0)
        if count and since > self.stuck:
            raise Unreachable(
                f"Leaf {leaf} has {count} lessons and has learned none for {since:.0f} s. What "
                "was not acknowledged may still be learned: send it again under the same key."
            )

    def wait(self, future: Future[Any]) -> None:
        """Wait for a request; raises Unreachable if its leaf is stuck."""
        while wait([future], min(1.0, self.stuck)).not_done:
            self.check_lesson(future)

    def check_lesson(self, future: Future[Any]) -> None:
        """Raise Unreachable if the request's leaf is stuck."""
        with self._lock:
            waiting = self._queues.items() if not future.done() else ()
            own = [leaf for leaf, queue in waiting if future in queue]
        for leaf in own:
            self.check(leaf)

    def restart_clocks(self, leaves: Iterable[int]) -> None:
        """Restart the timeouts of these leaves."""
        now = time.monotonic()
        with self._lock:
            self._progress.update((leaf, now) for leaf in leaves)

    def drop(self, leaf: int) -> None:
        """Remove a leaf."""
        with self._lock:
            self._queues.pop(leaf, None)
            self._progress.pop(leaf, None)


class Silence:
    """Leaves that missed a timeout, which other requests do not wait for.

    Until they respond to one of their pending requests.

    >>> silence, asked = Silence(), {3: Future()}
    >>> silence.may_ask(3)
    True
    >>> silence.note(asked, answered={})
    >>> silence.may_ask(3)
    False
    >>> asked[3].set_result("at last")
    >>> silence.may_ask(3)
    True
    """

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def may_ask(self, leaf: int) -> bool:
        """Whether to ask a leaf: not if it is silent, except from time to time."""
        now, since = time.monotonic(), self._since.get(leaf)
        if since is None:
            return True
        if now >= since + AGAIN:
            self._since[leaf] = now
        return now >= since + AGAIN

    def note(self, asked: Mapping[int, Future[Any]], answered: Mapping[int, Any]) -> None:
        """Record which leaves were asked, and which answered in time."""
        for leaf, future in asked.items():
            if leaf in answered:
                self._since.pop(leaf, None)
            elif not future.done():  # rather than being started again, which takes nobody's time
                self._since[leaf] = time.monotonic()
                future.add_done_callback(functools.partial(self._heard, leaf))

    def _heard(self, leaf: int, _: Future[Any]) -> None:
        self._since.pop(leaf, None)
