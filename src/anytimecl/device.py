"""Contexts for encoding and predicting while learning; on a CPU they do nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from anytimecl.learner import Learner

Scope = Callable[[], AbstractContextManager[None]]


class Streams:
    """Contexts that separate concurrent work on one device; here, no-ops.

    >>> with Streams(torch.device("cpu")).predicting():
    ...     print(torch.ones(2).sum())
    tensor(2.)
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.encoding: Scope = nullcontext  # around the trunk's forward pass
        self.predicting: Scope = nullcontext  # around a prediction, until on the host

    def still(self, learner: Learner, turn: int) -> Learner:
        """A snapshot of the learner at this turn of its lock, which the caller holds."""
        return learner

    def clear(self) -> None:
        """Drop snapshots."""
