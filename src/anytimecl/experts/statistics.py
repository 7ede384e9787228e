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
        self._room = torch.zeros(16, dtype=torch.long), torch.zeros(16, dim, dtype=torch.long)
        self.moment = torch.zeros(dim, dim, dtype=torch.long)  # of all images
        self._show(0)

    def _show(self, rows: int) -> None:
        """So many; the rest of the room is to spare."""
        self.rows = rows
        counts, sums = self._room
        self.counts = counts[:rows]  # [row], images of each label
        self.sums = sums[:rows]  # [row, dim]

    def add(self, rows: Sequence[int], images: Tensor, sign: int = 1) -> None:
        """Images [image, dim] of labels; with sign -1 they are taken back."""
        at, whole = torch.tensor(rows, dtype=torch.long), (images.double() * FIXED).round()
        self.counts.index_add_(0, at, torch.full_like(at, sign))
        self.sums.index_add_(0, at, sign * whole.long())
        if len(whole) == 1:
            self.moment.addr_(whole[0].long(), whole[0].long(), alpha=sign)
        else:
            self.moment += sign * (whole.T @ whole).long()  # exact: far below 2^53

    def enter(self) -> None:
        """Another row; twice as many as there are, when there are too few."""
        if self.rows == len(self._room[0]):
            more = max(16, self.rows)
            self._room = F.pad(self.counts, (0, more)), F.pad(self.sums, (0, 0, 0, more))
        self._show(self.rows + 1)

    def drop(self, row: int) -> None:
        """A row goes, and those behind it move up."""
        left = [i for i in range(self.rows) if i != row]
        self._room = self.counts[left], self.sums[left]
        self._show(len(left))

    def state(self, name: str) -> dict[str, Tensor]:
        """For a checkpoint."""
        parts = {"counts": self.counts, "sums": self.sums, "moment": self.moment}
        return {f"{name}.{part}": value for part, value in parts.items()}
