"""Weight imprinting: label vectors of the tuned model from text embeddings and image embeddings.

With `e` the text embedding, `x` the original model's embeddings of the label's `n` images, and `m0`
the mean of the prior,

    w(y) = e(y) + strength * sum of (x - m0) / (n + TEXT),   of unit length:

so that the text counts as `TEXT` images. Computed from the sums of the Gaussian expert: forgetting
an example is exact.

(Qi, Brown and Lowe, "Low-Shot Learning with Imprinted Weights", CVPR 2018.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone.prior import Prior
from anytimecl.experts.statistics import FIXED, Statistics
from anytimecl.settings import LearnerConfig

TEXT = 16.0  # images that a text embedding counts as


class Imprint:
    """Shifts of the text embeddings, from counts and sums of image embeddings by label."""

    def __init__(self, strength: float, mean: Tensor) -> None:
        self._strength, self._mean = strength, mean.double()

    @classmethod
    def of_settings(cls, config: LearnerConfig, prior: Prior | None) -> Imprint | None:
        """None if label vectors are the text embeddings alone, as they are without a prior mean."""
        if prior is None or not config.imprint or config.tune != "block":
            return None
        return cls(config.imprint, prior.mean)

    def of(self, known: Statistics, rows: Sequence[int]) -> Tensor:
        """Shifts of these labels, [row, dim]."""
        at = list(rows)
        return self._from(known.counts[at], known.sums[at])

    def into(self, shifts: Tensor, known: Statistics, rows: Sequence[int]) -> Tensor:
        """Write those of these labels into `shifts` [row, dim], or a longer copy if it is full."""
        missing = max(rows, default=-1) + 1 - len(shifts)
        if missing > 0:  # twice as many, so that a new label costs O(1)
            shifts = F.pad(shifts, (0, 0, 0, max(16, missing, len(shifts))))
        shifts[list(rows)] = self.of(known, rows).to(shifts)
        return shifts

    def ahead(self, known: Statistics, rows: Sequence[int], images: Tensor) -> Tensor:
        """Shift of each example's label once it and those before it are learned, [example, dim]."""
        labels, whole = torch.tensor(rows), (images.double() * FIXED).round().long()
        counts, sums = torch.zeros_like(labels), torch.zeros_like(whole)
        for row in set(rows):
            own = (labels == row).nonzero().flatten()
            counts[own] = known.counts[row] + torch.arange(1, len(own) + 1)
            sums[own] = known.sums[row] + whole[own].cumsum(0)
        return self._from(counts, sums)

    def left_out(self, known: Statistics, rows: Sequence[int], images: Tensor) -> Tensor:
        """Shift of each example's label with that example left out, [example, dim].

        The mean of the label's other examples replaces it, as in the Gaussian expert; 0 if none.
        """
        counts = known.counts[list(rows)].unsqueeze(1)
        rest = known.sums[list(rows)].double() / FIXED - images
        mean = rest / (counts - 1).clamp_min(1)
        share = self._strength * counts / (counts + TEXT) * (counts > 1)
        return (share * (mean - self._mean)).float()

    def _from(self, counts: Tensor, sums: Tensor) -> Tensor:
        count = counts.double().unsqueeze(1)
        away = sums.double() / FIXED - count * self._mean
        return (self._strength * away / (count + TEXT)).float()


def left_out_cosines(
    tuned: Tensor, texts: Tensor, shifts: Tensor, target: Tensor, left: Tensor
) -> Tensor:
    """Leave-one-out cosines [example, label] of embeddings `tuned` with the label vectors.

    Label vectors are `texts` plus `shifts`, [label, dim] each; for each example's own label
    (`target`), plus `left` [example, dim], the shift without it. For the only example of a label,
    text embeddings alone, since only the other labels would have a shift.
    """
    own = F.normalize(texts[target] + left, dim=-1)
    said = tuned @ F.normalize(texts + shifts, dim=-1).T
    said = said.scatter(1, target.unsqueeze(1), (tuned * own).sum(1, keepdim=True))
    alone = (left == 0).all(1, keepdim=True)
    return torch.where(alone, tuned @ texts.T, said)
