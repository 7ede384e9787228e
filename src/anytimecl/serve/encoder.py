"""Images of all requests go through the trunk together, in the order of arrival.

Lessons have a lane of their own with a quarter of every batch: a person who corrects does not wait
behind fifty programs that ask, and however many teach, those who ask keep three quarters.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import torch
from torch import Tensor

from anytimecl.serve.problems import Busy, Problem
from anytimecl.serve.turns import STOPPING

log = logging.getLogger("anytimecl.serve")


class Encoder:
    """Batches for a trunk: it never waits for a batch to fill, it takes what there is.

    >>> encoder = Encoder(lambda pixels: 2 * pixels, batch=8, waiting=16)
    >>> [future.result().tolist() for future in encoder.submit([torch.ones(2)])]
    [[2.0, 2.0]]
    >>> encoder.close()
    """

    def __init__(
        self,
        trunk: Callable[[Tensor], Tensor],
        *,
        batch: int,
        waiting: int,
        observe: Callable[[int, float], None] = lambda images, seconds: None,
    ) -> None:
        self._trunk, self._batch, self._room, self._observe = trunk, batch, waiting, observe
        self._questions: deque[tuple[Future[Tensor], Tensor]] = deque()
        self._lessons: deque[tuple[Future[Tensor], Tensor]] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._seconds = 0.05  # for one image, as of late
        self._thread = threading.Thread(target=self._run, name="anytimecl-encoder", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._questions) + len(self._lessons)

    @property
    def alive(self) -> bool:
        """Whether images are still being encoded."""
        return self._thread.is_alive() and not self._closing

    def submit(self, images: Sequence[Tensor], *, lesson: bool = False) -> list[Future[Tensor]]:
        """Pixels [3, height, width] of each image, to its tokens [token, width]; all or none."""
        futures: list[Future[Tensor]] = [Future() for _ in images]
        with self._changed:
            if self._closing:
                raise Problem(503, STOPPING, retry_after=5)
            if len(self) + len(images) > self._room:
                wait = min(60.0, self._seconds * len(self))
                raise Busy("Too many images wait to be looked at; ask again later.", wait)
            lane = self._lessons if lesson else self._questions
            lane.extend(zip(futures, images, strict=True))
            self._changed.notify()
        return futures

    def close(self) -> None:
        """Finish what waits, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            live = [item for item in batch if item[0].set_running_or_notify_cancel()]
            if live:
                self._encode(live)
            del batch, live  # or they would stay until the next comes

    def _next(self) -> list[tuple[Future[Tensor], Tensor]]:
        """What waits, at most a batch; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: len(self) or self._closing)
            share = max(1, self._batch // 4, self._batch - len(self._questions))
            taken = [self._lessons.popleft() for _ in range(min(share, len(self._lessons)))]
            room = min(self._batch - len(taken), len(self._questions))
            return taken + [self._questions.popleft() for _ in range(room)]

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
        self._seconds += 0.1 * (seconds / len(live) - self._seconds)
        self._observe(len(live), seconds)
        for (future, _), one in zip(live, tokens, strict=True):
            future.set_result(one.clone())  # a row would keep the whole batch alive
