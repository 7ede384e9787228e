"""Counts and sums of image vectors, label by label, in whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

FIXED = float(1 << 16)  # a vector in whole numbers: sums of 2^31 of them are exact


class Statistics:
    """Sums in whole numbers: adding and taking back are exact, in any order."""

    def __init__(self, dim: int) -> None:
        self.rows = 0
        self._counts = torch.zeros(16, dtype=torch.long)  # with rows to spare
        self._sums = torch.zeros(16, dim, dtype=torch.long)
        self.moment = torch.zeros(dim, dim, dtype=torch.long)  # of all images

    @property
    def counts(self) -> Tensor:
        """[row], images of each label."""
        return self._counts[: self.rows]

    @property
    def sums(self) -> Tensor:
        """[row, dim]."""
        return self._sums[: self.rows]

    def add(self, rows: Sequence[int], images: Tensor, sign: int = 1) -> None:
        """Images [image, dim] of labels; with sign -1 they are taken back."""
        at, whole = torch.tensor(rows), (images.double() * FIXED).round()
        self.counts.index_add_(0, at, torch.full_like(at, sign))
        self.sums.index_add_(0, at, sign * whole.long())
        if len(whole) == 1:
            self.moment.addr_(whole[0].long(), whole[0].long(), alpha=sign)
        else:
            self.moment += sign * (whole.T @ whole).long()  # exact: far below 2^53

    def enter(self) -> None:
        """Another row; twice as many as there are, when there are too few."""
        if self.rows == len(self._counts):
            more = max(16, self.rows)
            self._counts = F.pad(self._counts, (0, more))
            self._sums = F.pad(self._sums, (0, 0, 0, more))
        self.rows += 1

    def drop(self, row: int) -> None:
        """A row goes, and those behind it move up."""
        left = [i for i in range(self.rows) if i != row]
        self._counts, self._sums = self.counts[left], self.sums[left]
        self.rows -= 1

    def state(self, name: str) -> dict[str, Tensor]:
        """For a checkpoint."""
        parts = {"counts": self.counts, "sums": self.sums, "moment": self.moment}
        return {f"{name}.{part}": value for part, value in parts.items()}


def last_step(example: int) -> int:
    """The last of 8, 16, ... 128, 160, 200, 250, ... that is not behind this example.

    >>> [last_step(n) for n in (7, 8, 100, 128, 159, 160)]
    [0, 8, 64, 128, 128, 160]
    """
    step, found = 8, 0
    while step <= example:
        found, step = step, 2 * step if step < 128 else step + step // 4
    return found
