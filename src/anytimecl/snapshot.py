"""On a GPU: predictions beside the learning, from weights that stand still."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from anytimecl.learner import Learner


class Snapshot:
    """The learner as predictions see it, and the stream they run on.

    What a GPU is asked to do waits in a stream, long after a lock was released. So the weights are
    copied in the learner's stream, between two updates, and read in that of the predictions,
    for which no update waits. On a CPU it is the learner itself.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._learners = torch.cuda.current_stream(device)
        self._kept: tuple[Learner, int, Learner] | None = None
        self._taking = threading.Lock()

    @contextmanager
    def predicting(self) -> Iterator[None]:
        """Around a prediction, until it is plain numbers."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def of(self, learner: Learner, turn: int) -> Learner:
        """As it is at this turn of its lock, which the caller holds."""
        if self._stream is None:
            return learner
        with self._taking:
            if self._kept is None or self._kept[0] is not learner or self._kept[1] != turn:
                self._kept = learner, turn, self._copy(learner)
            torch.cuda.current_stream(self._stream.device).wait_stream(self._learners)
            return self._kept[2]

    def _copy(self, learner: Learner) -> Learner:
        assert self._stream is not None
        with torch.cuda.stream(self._learners):
            still = learner.still()
        for tensor in still.trainable().values():
            tensor.record_stream(self._stream)  # it may be read there when nobody here knows it
        return still
