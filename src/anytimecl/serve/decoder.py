"""Decodes images in a few threads, fairly between clients and within a budget of pixels.

One thread decodes the large ones, one by one at a lower priority, so small ones wait neither for
them nor for the CPU. New labels are embedded by another `Decoder`, with a budget of labels.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from anytimecl.serve.fair import FairQueue, Ticket
from anytimecl.serve.problems import Busy, Problem
from anytimecl.serve.turns import STOPPING
from anytimecl.serve.worker import Worker

T = TypeVar("T")
NICE = 10  # for large images: about a tenth of the CPU time under contention
SMALL = 16  # an image is small if this many of its size fit into the budget


class _Item(NamedTuple):
    future: Future[Any]
    cost: int
    work: Callable[[], Any]


class Decoder(Worker):
    """Runs functions, each with a cost (pixels held while it runs), in a bounded queue.

    >>> decoder = Decoder(budget=160, waiting=8, waiting_pixels=1000)
    >>> [future.result() for future in decoder.submit(Ticket("me"), [(10, lambda: "done")])]
    ['done']
    >>> decoder.close()
    """

    def __init__(
        self,
        *,
        budget: int,
        waiting: int,
        waiting_pixels: int,
        threads: int = 3,
        what: str = "images",
    ) -> None:
        self.small = budget // SMALL
        self.largest = budget - (threads - 1) * self.small  # beside small ones in others
        self.most = 0  # maximum of pixels held at once so far
        self._room, self._room_pixels, self._what = waiting, waiting_pixels, what
        self._queue: FairQueue[_Item] = FairQueue()
        self._held = 0
        first = functools.partial(self._run, large=threads > 1, behind=True)
        others = functools.partial(self._run, large=False, behind=False)
        super().__init__(what, first, *[others] * (threads - 1))

    def __len__(self) -> int:
        return len(self._queue)

    def submit(
        self, ticket: Ticket, work: Sequence[tuple[int, Callable[[], T]]]
    ) -> list[Future[T]]:
        """Queue (cost, function) pairs, all or none; `drop` removes those that still wait.

        Requests with small images only are limited by the number of images, others also by pixels:
        a queue full of large images still accepts small ones.
        """
        items = [_Item(Future(), cost, job) for cost, job in work]
        with self._changed:
            if self._closing:
                raise Problem(503, STOPPING, retry_after=5)
            own = self._queue.waiting(ticket.client)
            check_room(len(self._queue), own, len(items), self._room, self._what)
            large = any(item.cost > self.small for item in items)
            pixels = self._queue.cost + sum(item.cost for item in items)
            if large and pixels > self._room_pixels:
                raise Busy("Too many large images wait to be decoded; ask again later.", 5)
            for item in items:
                self._queue.push(ticket, max(1, item.cost), item)
            self._changed.notify_all()
        return [item.future for item in items]

    def drop(self, ticket: Ticket) -> None:
        """Cancel the waiting items of a request."""
        with self._changed:
            for item in self._queue.drop(ticket):
                item.future.cancel()

    def _run(self, *, large: bool, behind: bool) -> None:
        if behind:
            _step_back()
        while (item := self._next(large)) is not None:
            if item.future.set_running_or_notify_cancel():
                try:
                    item.future.set_result(item.work())
                except BaseException as error:
                    item.future.set_exception(error)
            with self._changed:
                self._held -= item.cost
                self._changed.notify_all()
            del item  # else its image is kept until the next item

    def _next(self, large: bool) -> _Item | None:
        with self._changed:
            while (item := self._queue.pop(lambda cost: (cost > self.small) == large)) is None:
                if self._closing and not len(self._queue):
                    return None
                self._changed.wait()
            self._held += item.cost
            self.most = max(self.most, self._held)
            return item


def _step_back() -> None:
    """Lower this thread's priority (on Linux)."""
    if sys.platform == "linux":
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, own + NICE))


def check_room(waiting: int, own: int, count: int, room: int, what: str = "images") -> None:
    """Raise Busy if a request exceeds the queue's or the client's share of the room.

    The last quarter is reserved for single images, the last eighth for clients with few waiting: a
    queue full of batches still accepts a single picture.
    """
    full = waiting + count > room
    crowded = count > 1 and waiting and waiting + count > room * 3 // 4
    greedy = waiting and own + count > room * 7 // 8
    if full or crowded or greedy:
        raise Busy(f"Too many {what} wait to be looked at; ask again later.", 1 + waiting / 20)
