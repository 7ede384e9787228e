"""Lessons and questions on their way to leaves, and leaves that take too long over them."""

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

PENDING = 64  # lessons on their way to one leaf before a teacher waits
AGAIN = 60.0  # seconds after which a leaf that is silent is asked once more


class MustWait(Exception):
    """A lesson cannot be sent until something else is done."""

    def __init__(self, first: Future[Any]) -> None:
        super().__init__("too much is on its way to the leaf, or it splits")
        self.first = first


class Lessons:
    """Lessons on their way. A leaf that has some and learns none for `stuck` seconds is stuck.

    >>> lessons, sent = Lessons(stuck=30.0), Future()
    >>> lessons.add(0, sent)
    >>> lessons.of(0) == [sent], lessons.of(1)
    (True, [])
    """

    def __init__(self, stuck: float) -> None:
        self.stuck = stuck
        self._lock = threading.Lock()
        self._queues: dict[int, deque[Future[Learned]]] = defaultdict(deque)
        self._progress: dict[int, float] = {}  # when a leaf last learned, or was given something

    def add(self, leaf: int, future: Future[Learned]) -> None:
        """A lesson was sent to a leaf."""
        with self._lock:
            queue = self._queues[leaf]
            while queue and queue[0].done():
                queue.popleft()
            if not queue:
                self._progress[leaf] = time.monotonic()
            queue.append(future)
        future.add_done_callback(lambda _: self.restart_clocks([leaf]))

    def of(self, leaf: int) -> list[Future[Learned]]:
        """The lessons that a leaf has not learned yet, the oldest first."""
        with self._lock:
            return [future for future in self._queues.get(leaf, ()) if not future.done()]

    def leaves(self) -> list[int]:
        """The leaves that have lessons to learn."""
        with self._lock:
            known = list(self._queues)
        return [leaf for leaf in known if self.of(leaf)]

    def all(self) -> list[Future[Learned]]:
        """The lessons that no leaf has learned yet."""
        return [future for leaf in self.leaves() for future in self.of(leaf)]

    def before(self, leaf: int, room: int = 1) -> Future[Learned] | None:
        """What another lesson for a leaf has to wait for; Unreachable, if the leaf is stuck.

        If it has to, it waits until there is `room` for so many: all who wait try again then.
        """
        self.check(leaf)
        waiting = self.of(leaf)
        return waiting[room - 1] if len(waiting) >= PENDING else None

    def check(self, leaf: int) -> None:
        """Unreachable, if the leaf is stuck."""
        count, since = len(self.of(leaf)), time.monotonic() - self._progress.get(leaf, 0.0)
        if count and since > self.stuck:
            raise Unreachable(
                f"Leaf {leaf} has {count} lessons and has learned none for {since:.0f} s. What "
                "was not acknowledged may still be learned: send it again under the same key."
            )

    def wait(self, future: Future[Any]) -> None:
        """Until it is done; Unreachable, if it is a lesson and its leaf is stuck."""
        while wait([future], min(1.0, self.stuck)).not_done:
            self.check_lesson(future)

    def check_lesson(self, future: Future[Any]) -> None:
        """Unreachable, if it is a lesson and its leaf is stuck."""
        for leaf in self.leaves():
            if future in self.of(leaf):
                self.check(leaf)

    def restart_clocks(self, leaves: Iterable[int]) -> None:
        """These leaves go on, from now."""
        now = time.monotonic()
        with self._lock:
            self._progress.update((leaf, now) for leaf in leaves)

    def drop(self, leaf: int) -> None:
        """The leaf is no more."""
        with self._lock:
            self._queues.pop(leaf, None)
            self._progress.pop(leaf, None)


class Silence:
    """Leaves that have left somebody without an answer, whom others need not wait for.

    Until they answer one of the questions that they still have, or fail to.

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
        """Not one that is silent; now and then one tries all the same, lest a word was lost."""
        now, since = time.monotonic(), self._since.get(leaf)
        if since is None:
            return True
        if now >= since + AGAIN:
            self._since[leaf] = now
        return now >= since + AGAIN

    def note(self, asked: Mapping[int, Future[Any]], answered: Mapping[int, Any]) -> None:
        """Who was asked, and who has answered in time."""
        for leaf, future in asked.items():
            if leaf in answered:
                self._since.pop(leaf, None)
            elif not future.done():  # rather than being started again, which takes nobody's time
                self._since[leaf] = time.monotonic()
                future.add_done_callback(functools.partial(self._heard, leaf))

    def _heard(self, leaf: int, _: Future[Any]) -> None:
        self._since.pop(leaf, None)
