"""Experts: each scores images against labels, and learns one example at a time.

Besides the original and the tuned model there are a generative classifier (`GaussianExpert`) and a
detector of learned images and their near copies (`InstanceExpert`). `anytimecl.pool` combines all.
Custom experts are registered by name (`EXPERTS`): docs/extending.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from anytimecl.experts.gaussian import GaussianExpert
from anytimecl.experts.instance import InstanceExpert
from anytimecl.experts.others import OtherExperts
from anytimecl.registry import Registry

__all__ = ["EXPERTS", "Expert", "GaussianExpert", "InstanceExpert", "OtherExperts"]


class Expert(Protocol):
    """Learns from unit image embeddings of the original model; knows labels by their row.

    Rows are numbered in order of first appearance. Removing an example is exact.
    """

    def add(self, example: int, row: int, image: Tensor) -> None:
        """Learn an example [dim]; a relabelled one was removed before."""

    def remove(self, example: int, row: int, image: Tensor) -> None:
        """Remove an example, exactly."""

    def enter(self) -> None:
        """Add a label, which gets the next row."""

    def drop(self, row: int) -> None:
        """Remove a label without examples; later rows move up."""

    def scores(self, images: Tensor, rows: Sequence[int]) -> Tensor:
        """Log-scores [image, label] of unit vectors [image, dim]; 0 for row -1, an unseen label."""
        ...

    def left_out(
        self, images: Tensor, rows: Sequence[int], examples: Sequence[int] | None = None
    ) -> Tensor:
        """Leave-one-out scores [example, row] of learned examples.

        Leaving an example out must not reveal its label: where labels do not differ, neither do
        their scores, however few examples they have.
        """
        ...

    def state(self) -> dict[str, Tensor]:
        """State for a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore from `state`."""


# Custom experts; each is constructed with the width of image embeddings and the prior, or None.
EXPERTS: Registry[Expert] = Registry("expert", {}, context=2, copies=True)
