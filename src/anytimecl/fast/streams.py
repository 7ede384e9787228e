"""On a GPU: encoding, prediction and learning in a CUDA stream each."""

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
    """CUDA streams for encoding and prediction; does nothing on a CPU.

    Kernels run long after the lock that guarded their launch was released. So predictions read a
    copy of the weights, made in the learner's stream between two updates, and updates need not wait
    for them.
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
        # Whatever was launched before, such as loading the model, is complete for the encoder.
        self._encoder.wait_stream(self._learners)
        self.encoding, self.predicting = self._encoding, self._predicting

    @contextmanager
    def _encoding(self) -> Iterator[None]:
        """Run in the encoder's stream, which waits for no other; afterwards the usual one waits."""
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
        """A snapshot of the learner at this turn of its lock, which the caller holds.

        Outside `predicting`, in the learner's stream, this is the learner itself.
        """
        if self.device.type != "cuda" or torch.cuda.current_stream(self.device) != self._predictor:
            return learner
        with self._taking:
            if self._kept is None or self._kept.of is not learner or self._kept.turn != turn:
                self._kept = _Kept(learner, turn, self._copy(learner))
            return self._kept.still

    def clear(self) -> None:
        """Drop the snapshot."""
        self._kept = None

    def _copy(self, learner: Learner) -> Learner:
        with torch.cuda.stream(self._learners):
            still = standing_still(learner)
        self._predictor.wait_stream(self._learners)
        for tensor in (*still.trainable().values(), still.shifts):
            tensor.record_stream(self._predictor)  # may be read there without a reference
        return still


def standing_still(learner: Learner) -> Learner:
    """A snapshot for prediction, with its own copy of the trainable tensors."""
    found, mine = copy.copy(learner), learner.trainable()
    found.params = {n: p.clone() if n in mine else p for n, p in learner.params.items()}
    found.other, found.shifts = learner.other.clone(), learner.shifts.clone()
    return found
