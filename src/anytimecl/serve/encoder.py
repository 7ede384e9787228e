"""Batches images of all requests for the trunk, fairly between requests.

There are three queues. Learn requests have a quarter of each batch reserved, so that a single
correction does not wait behind many predictions; predictions have the other three quarters.
Requests with several images have a queue of their own and alternate with the others, a few images
at a time: on a CPU a full batch takes eight times as long as one image.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import torch
from torch import Tensor

from anytimecl.serve.decoder import check_room
from anytimecl.serve.fair import FairQueue, Ticket
from anytimecl.serve.problems import Problem
from anytimecl.serve.turns import STOPPING
from anytimecl.serve.worker import Worker

log = logging.getLogger("anytimecl.serve")
T = TypeVar("T")


class Encoder(Worker):
    """Encodes whatever waits as the next batch; never waits for a batch to fill.

    >>> encoder = Encoder(lambda pixels: 2 * pixels, batch=8, waiting=16)
    >>> [future.result().tolist() for future in encoder.submit(Ticket("me"), [torch.ones(2)])]
    [[2.0, 2.0]]
    >>> encoder.close()
    """

    def __init__(
        self,
        trunk: Callable[[Tensor], Tensor],
        *,
        batch: int,
        waiting: int,
        bulk: int = 2,
        observe: Callable[[int, float], None] = lambda images, seconds: None,
    ) -> None:
        self._trunk, self._batch, self._room, self._observe = trunk, batch, waiting, observe
        self._bulk = bulk  # batch size for requests with several images
        self._bulk_was_last = False
        self._several: FairQueue[tuple[Future[Tensor], Tensor]] = FairQueue()
        self._questions: FairQueue[tuple[Future[Tensor], Tensor]] = FairQueue()
        self._lessons: FairQueue[tuple[Future[Tensor], Tensor]] = FairQueue()
        self._lanes = (self._questions, self._lessons, self._several)
        super().__init__("encoder", self._run)

    def __len__(self) -> int:
        return sum(map(len, self._lanes))

    def submit(
        self, ticket: Ticket, images: Sequence[Tensor], *, lesson: bool = False
    ) -> list[Future[Tensor]]:
        """Encode pixels [3, height, width] of each image to tokens [token, width]; all or none."""
        futures: list[Future[Tensor]] = [Future() for _ in images]
        lane = self._lessons if lesson else self._questions
        lane = self._several if len(images) > 1 else lane
        with self._changed:
            if self._closing:
                raise Problem(503, STOPPING, retry_after=5)
            own = sum(lane.waiting(ticket.client) for lane in self._lanes)
            check_room(len(self), own, len(images), self._room)
            for item in zip(futures, images, strict=True):
                lane.push(ticket, 1, item)
            self._changed.notify()
        return futures

    def drop(self, ticket: Ticket) -> None:
        """Cancel the waiting images of a request."""
        with self._changed:
            for lane in self._lanes:
                for future, _ in lane.drop(ticket):
                    future.cancel()

    def _run(self) -> None:
        while batch := self._next():
            live = [item for item in batch if item[0].set_running_or_notify_cancel()]
            if live:
                self._encode(live)
            del batch, live  # else they are kept until the next batch

    def _next(self) -> list[tuple[Future[Tensor], Tensor]]:
        """The next batch; empty when closing."""
        with self._changed:
            self._changed.wait_for(lambda: len(self) or self._closing)
            others = len(self._questions) + len(self._lessons)
            if len(self._several) and not (others and self._bulk_was_last):
                self._bulk_was_last = True
                return _take(self._several, self._bulk)
            self._bulk_was_last = False
            share = max(1, self._batch // 4, self._batch - len(self._questions))
            taken = _take(self._lessons, share)
            return taken + _take(self._questions, self._batch - len(taken))

    def _encode(self, live: Sequence[tuple[Future[Tensor], Tensor]]) -> None:
        began = time.monotonic()
        try:
            with torch.no_grad():
                tokens = self._trunk(torch.stack([pixels for _, pixels in live]))
        except BaseException as error:
            log.exception("the trunk failed")
            for future, _ in live:
                future.set_exception(error)
            return
        seconds = time.monotonic() - began
        self._observe(len(live), seconds)
        for (future, _), one in zip(live, tokens, strict=True):
            future.set_result(one.clone())  # a view would keep the whole batch alive


def _take(lane: FairQueue[T], most: int) -> list[T]:
    taken: list[T] = []
    while len(taken) < most and (item := lane.pop()) is not None:
        taken.append(item)
    return taken
