"""A bounded queue of work for one thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from anytimecl.serve.problems import Busy, Problem
from anytimecl.serve.worker import Worker

T = TypeVar("T")
STOPPING = "The service is stopping; ask again when it is back."


class Turns(Worker):
    """Work in the order of arrival; Busy if too much is queued.

    >>> turns = Turns("learner", waiting=2)
    >>> turns.submit(lambda: 1 + 1).result()
    2
    >>> turns.close()
    """

    def __init__(self, name: str, waiting: int) -> None:
        self._room = waiting
        self._queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._seconds = 0.05  # moving average of the time per item
        super().__init__(name, self._run)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def wait(self) -> float:
        """Seconds after which a retry may succeed."""
        return min(60.0, self._seconds * (len(self._queue) + 1))

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue work. Cancelling the future removes it, unless it has started."""
        future: Future[T] = Future()
        with self._changed:
            if self._closing:
                raise Problem(503, STOPPING, retry_after=5)
            if len(self._queue) >= self._room:
                raise Busy("Too many changes wait for their turn; ask again later.", self.wait)
            self._queue.append((future, work))
            self._changed.notify()
        return future

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                future, work = self._queue.popleft()
            if future.set_running_or_notify_cancel():
                began = time.monotonic()
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
                self._seconds += 0.1 * (min(time.monotonic() - began, 60.0) - self._seconds)
            del future, work  # else its tensors are kept until the next item
