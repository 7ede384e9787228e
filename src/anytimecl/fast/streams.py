"""On a GPU: encoding and predictions beside the learning, each in a CUDA stream of its own."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from anytimecl.device import Streams
from anytimecl.learner import Learner


class _Kept(NamedTuple):
    of: Learner
    turn: int
    still: Learner


class CudaStreams(Streams):
    """Streams of its own for encoding and predicting, if the device has streams.

    What a GPU is asked to do waits in a stream, long after a lock was released. So for predictions
    the weights are copied in the learner's stream, between two updates, and read in that of the
    predictions, for which no update waits. On a CPU it changes nothing.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._kept: _Kept | None = None
        self._taking = threading.Lock()
        if device.type != "cuda":
            return
        self._encoder = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._predictor = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._learners = torch.cuda.current_stream(device)
        # What was made before, the model among it, is there for whoever comes.
        self._encoder.wait_stream(self._learners)
        self.encoding, self.predicting = self._encoding, self._predicting

    @contextmanager
    def _encoding(self) -> Iterator[None]:
        """What is done here waits for nobody; whoever goes on after it waits for it."""
        usual = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._encoder):
            yield
        usual.wait_stream(self._encoder)

    @contextmanager
    def _predicting(self) -> Iterator[None]:
        self._predictor.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._predictor):
            yield

    def still(self, learner: Learner, turn: int) -> Learner:
        """As it is at this turn of its lock, which the caller holds.

        Whoever is not `predicting` is in the learner's stream, and gets the learner itself.
        """
        if self.device.type != "cuda" or torch.cuda.current_stream(self.device) != self._predictor:
            return learner
        with self._taking:
            if self._kept is None or self._kept.of is not learner or self._kept.turn != turn:
                self._kept = _Kept(learner, turn, self._copy(learner))
            return self._kept.still

    def clear(self) -> None:
        """Nothing of what was learned may stay."""
        self._kept = None

    def _copy(self, learner: Learner) -> Learner:
        with torch.cuda.stream(self._learners):
            still = standing_still(learner)
        self._predictor.wait_stream(self._learners)
        for tensor in (*still.trainable().values(), still.shifts):
            tensor.record_stream(self._predictor)  # it may be read there when nobody here knows it
        return still


def standing_still(learner: Learner) -> Learner:
    """As it is now, to answer from while this one goes on learning."""
    found, mine = copy.copy(learner), learner.trainable()
    found.params = {n: p.clone() if n in mine else p for n, p in learner.params.items()}
    found.other, found.shifts = learner.other.clone(), learner.shifts.clone()
    return found
