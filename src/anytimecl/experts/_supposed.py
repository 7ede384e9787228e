"""What the Gaussian expert would say, had a label one image more."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from anytimecl.experts.statistics import FIXED, Statistics

if TYPE_CHECKING:
    from anytimecl.experts.gaussian import Space


class Supposed(NamedTuple):
    """Images, and others that labels might have as well; whitened once for all labels."""

    now: Statistics
    space: Space
    images: Tensor  # [image, dim]
    unknown: Tensor  # [image]
    others: Tensor  # [other, dim]

    def scores(self, row: int, who: Tensor | None = None) -> Tensor:
        """[image, other]: of a label, with one of the others in it.

        Row -1 is a label never seen; `who` are places among the others, all unless given.
        """
        space, now = self.space, self.now
        count = float(now.counts[row]) if row >= 0 else 0.0
        total = self.others if who is None else self.others[who]
        if row >= 0:
            learned = (now.sums[row].double() / FIXED).float() @ space.whiten
            total = total + (learned - count * space.centre)
        mean, variance = space.predictive(
            torch.tensor([count + 1]), total / (count + 1) + space.centre
        )
        pull = mean / variance
        offset = (pull * mean).sum(1) + variance.log().sum() - (1 + space.ratio).log().sum()
        distance = self.images.square() @ (1 / variance).T - 2 * self.images @ pull.T + offset
        return -0.5 * distance - self.unknown.unsqueeze(1)
