"""On a GPU: predictions beside the learning, from weights that stand still."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from anytimecl.learner import Learner


class _Kept(NamedTuple):
    of: Learner
    turn: int
    still: Learner


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
        self._kept: _Kept | None = None
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
        """As it is at this turn of its lock, which the caller holds.

        Whoever is not `predicting` is in the learner's stream, and gets the learner itself.
        """
        if self._stream is None or torch.cuda.current_stream(self._stream.device) != self._stream:
            return learner
        with self._taking:
            if self._kept is None or self._kept.of is not learner or self._kept.turn != turn:
                self._kept = _Kept(learner, turn, self._copy(learner, self._stream))
            return self._kept.still

    def clear(self) -> None:
        """Nothing of what was learned may stay."""
        self._kept = None

    def _copy(self, learner: Learner, stream: torch.cuda.Stream) -> Learner:
        with torch.cuda.stream(self._learners):
            still = learner.still()
        stream.wait_stream(self._learners)
        for tensor in still.trainable().values():
            tensor.record_stream(stream)  # it may be read there when nobody here knows it
        return still
