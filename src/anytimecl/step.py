"""What a step learns from, what it finds, and who asks for it."""

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
    """Examples to learn from, the newcomer first, and the labels they are told apart from."""

    tokens: Tensor | TailInput
    target: Tensor  # [example], index into `vectors`
    vectors: Tensor  # [label, dim], unit: embeddings of the candidate labels
    rows: Tensor  # [label], each label's number in order of first appearance; -1: never seen
    mask: Tensor | None = None  # [example, label]; 0, or -inf where a label is no candidate
    weight: Tensor | None = None  # [example], sum 1: of each in the loss; None: all alike


@dataclass(frozen=True)
class Update:
    """What a batch teaches, worked out but not yet applied."""

    logits: Tensor  # [example, label], from before the update; -inf where not a candidate
    images: Tensor  # [example, dim], unit vectors, as the tuned model sees them before the update
    gradients: Mapping[str, Gradient]

    def whole(self) -> dict[str, Tensor]:
        """Every gradient multiplied out."""
        return {n: g if isinstance(g, Tensor) else g.whole() for n, g in self.gradients.items()}


class Steps(Protocol):
    """Whoever takes steps: a trainer, one example at a time, or a stream, all on the device."""

    @property
    def rate(self) -> float | Tensor | None:
        """Of the step that was scored just now."""
        ...

    @property
    def count(self) -> Tensor | None:
        """Of optimiser steps, this one included; None: the learner counts."""
        ...

    def batch(self) -> Batch:
        """What the next step learns from."""
        ...

    def score(self, logits: Tensor, target: Tensor, images: Tensor) -> None:
        """Whether the newcomer was known, before it is learned, and so how far the step goes."""
        ...

    def changing(self) -> AbstractContextManager[None]:
        """Around the change of the weights."""
        ...


class DeviceSteps(Steps, Protocol):
    """Steps that go without a word to the host: all they need and change is on the device."""

    compiled: bool  # whether a compiler may go over the step

    def tensors(self) -> list[Tensor]:
        """All that steps change."""
        ...
