"""Counts and sums of image embeddings by label, as 64-bit integers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

FIXED = float(1 << 16)  # fixed-point scale: sums of 2^31 vectors are exact


class Statistics:
    """Fixed-point sums: adding and subtracting are exact, in any order."""

    def __init__(self, dim: int) -> None:
        self._room = torch.zeros(16, dtype=torch.long), torch.zeros(16, dim, dtype=torch.long)
        self.moment = torch.zeros(dim, dim, dtype=torch.long)  # sum of x x' over all images
        self._show(0)

    def _show(self, rows: int) -> None:
        """Set the number of rows; the rest is spare capacity."""
        self.rows = rows
        counts, sums = self._room
        self.counts = counts[:rows]  # [row], images of each label
        self.sums = sums[:rows]  # [row, dim]

    def add(self, rows: Sequence[int], images: Tensor, sign: int = 1) -> None:
        """Add images [image, dim] of labels; subtract them with sign -1."""
        at, whole = torch.tensor(rows, dtype=torch.long), (images.double() * FIXED).round()
        self.counts.index_add_(0, at, torch.full_like(at, sign))
        self.sums.index_add_(0, at, sign * whole.long())
        if len(whole) == 1:
            self.moment.addr_(whole[0].long(), whole[0].long(), alpha=sign)
        else:
            self.moment += sign * (whole.T @ whole).long()  # exact: far below 2^53

    def enter(self) -> None:
        """Add a row; doubles the capacity when full."""
        if self.rows == len(self._room[0]):
            more = max(16, self.rows)
            self._room = F.pad(self.counts, (0, more)), F.pad(self.sums, (0, 0, 0, more))
        self._show(self.rows + 1)

    def drop(self, row: int) -> None:
        """Remove a row; later rows move up."""
        left = [i for i in range(self.rows) if i != row]
        self._room = self.counts[left], self.sums[left]
        self._show(len(left))

    def state(self, name: str) -> dict[str, Tensor]:
        """State for a checkpoint."""
        parts = {"counts": self.counts, "sums": self.sums, "moment": self.moment}
        return {f"{name}.{part}": value for part, value in parts.items()}
