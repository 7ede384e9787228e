"""Experts: each gives scores over labels for a batch of images, and learns one example at a time.

The original and the tuned model are two; beside them stand what images of a label look like
(`GaussianExpert`) and images that were taught before (`InstanceExpert`). `anytimecl.pool` makes one
answer of them. One of your own joins them by name (`EXPERTS`): docs/extending.md.
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
    """Learns from unit image vectors of the original model; knows labels by their row.

    Rows are numbered in order of first appearance. An example that is taken back leaves no trace.
    """

    def add(self, example: int, row: int, image: Tensor) -> None:
        """Learn an example [dim], or one again that had another label."""

    def remove(self, example: int, row: int, image: Tensor) -> None:
        """Take an example back, exactly."""

    def enter(self) -> None:
        """A label never seen before gets the next row."""

    def drop(self, row: int) -> None:
        """A label has no example left; later rows move up."""

    def scores(self, images: Tensor, rows: Sequence[int]) -> Tensor:
        """Log-scores [image, label] of unit vectors [image, dim]; 0 for row -1, never seen."""
        ...

    def left_out(
        self, images: Tensor, rows: Sequence[int], examples: Sequence[int] | None = None
    ) -> Tensor:
        """[example, row]: scores of examples that were learned, each as if it had not been.

        The label of each should not show: the same for all labels where all are alike, however
        few examples they have.
        """
        ...

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Back from `state`."""


# Experts from outside, each made with the width of image vectors and the model's prior, or None.
EXPERTS: Registry[Expert] = Registry("expert", {}, context=2, copies=True)
