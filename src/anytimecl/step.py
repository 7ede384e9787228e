"""One online step: its batch, its update, and the interface of those that take steps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from anytimecl.optimiser import Gradient
from anytimecl.tail import TailInput


@dataclass(frozen=True)
class Batch:
    """Examples to learn from, the new one first, and their candidate labels."""

    tokens: Tensor | TailInput
    target: Tensor  # [example], index into `vectors`
    vectors: Tensor  # [label, dim], unit: embeddings of the candidate labels
    rows: Tensor  # [label], each label's row in order of first appearance; -1: never seen
    mask: Tensor | None = None  # [example, label]; 0, or -inf where a label is no candidate
    weight: Tensor | None = None  # [example], sums to 1: weights in the loss; None: equal


@dataclass(frozen=True)
class Update:
    """Scores and gradients of a batch, computed but not yet applied."""

    logits: Tensor  # [example, label], before the update; -inf where not a candidate
    images: Tensor  # [example, dim], unit: the tuned model's embeddings before the update
    gradients: Mapping[str, Gradient]

    def whole(self) -> dict[str, Tensor]:
        """Gradients as full tensors."""
        return {n: g if isinstance(g, Tensor) else g.whole() for n, g in self.gradients.items()}


class Steps(Protocol):
    """A trainer, one example at a time, or a stream, with everything on the device."""

    @property
    def rate(self) -> float | Tensor | None:
        """Learning rate of the step that was just scored."""
        ...

    @property
    def count(self) -> Tensor | None:
        """Optimiser steps, this one included; None: the learner counts them."""
        ...

    def batch(self) -> Batch:
        """The batch of the next step."""
        ...

    def score(self, logits: Tensor, target: Tensor, images: Tensor) -> None:
        """Record whether the new example was predicted rightly; this decides the rate."""
        ...

    def changing(self) -> AbstractContextManager[None]:
        """A context around the update of the weights."""
        ...


class DeviceSteps(Steps, Protocol):
    """Steps without synchronisation with the host: all they need and change is on the device."""

    compiled: bool  # whether the step may be compiled

    def tensors(self) -> list[Tensor]:
        """All that steps change."""
        ...
