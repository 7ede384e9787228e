"""Where encoding and predicting run beside learning: on a CPU, wherever they are called."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from anytimecl.learner import Learner

Scope = Callable[[], AbstractContextManager[None]]


class Streams:
    """What keeps work on one device apart; here nothing does, and nothing has to.

    >>> with Streams(torch.device("cpu")).predicting():
    ...     print(torch.ones(2).sum())
    tensor(2.)
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.encoding: Scope = nullcontext  # around the trunk's work
        self.predicting: Scope = nullcontext  # around a prediction, until it is plain numbers

    def still(self, learner: Learner, turn: int) -> Learner:
        """As it is at this turn of its lock, which the caller holds."""
        return learner

    def clear(self) -> None:
        """Nothing of what was learned may stay."""
