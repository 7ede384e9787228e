"""What the tuned model compares images with: the text of a label, and what its images look like.

With `e` the text's vector, `x` the `n` images of the label as the original model sees them, and
`m0` the mean of images in general,

    w(y) = e(y) + strength * sum of (x - m0) / (n + TEXT),   of unit length:

weight imprinting, with the text for as many images as it is worth. Where labels are but codes,
images are all that tells them apart. It follows from the sums that the Gaussian expert keeps, and
so it goes back exactly when an example does.

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

TEXT = 16.0  # images that a text stands for


class Imprint:
    """What is added to the text embeddings of labels, from counts and sums of their images."""

    def __init__(self, strength: float, mean: Tensor) -> None:
        self._strength, self._mean = strength, mean.double()

    @classmethod
    def of_settings(cls, config: LearnerConfig, prior: Prior | None) -> Imprint | None:
        """None where text embeddings stand alone.

        So they do without a prior: only its mean tells what all images have in common.
        """
        if prior is None or not config.imprint or config.tune != "block":
            return None
        return cls(config.imprint, prior.mean)

    def of(self, known: Statistics, rows: Sequence[int]) -> Tensor:
        """Of these labels: [row, dim]."""
        at = list(rows)
        return self._from(known.counts[at], known.sums[at])

    def ahead(self, known: Statistics, rows: Sequence[int], images: Tensor) -> Tensor:
        """[example, dim]: of the label of each, when it and those before it are learned."""
        labels, whole = torch.tensor(rows), (images.double() * FIXED).round().long()
        counts, sums = torch.zeros_like(labels), torch.zeros_like(whole)
        for row in set(rows):
            own = (labels == row).nonzero().flatten()
            counts[own] = known.counts[row] + torch.arange(1, len(own) + 1)
            sums[own] = known.sums[row] + whole[own].cumsum(0)
        return self._from(counts, sums)

    def left_out(self, known: Statistics, rows: Sequence[int], images: Tensor) -> Tensor:
        """[example, dim]: of the label of each example that was learned, as if it had not been.

        The mean of the others in its place, as the Gaussian expert leaves it out; all 0 where
        there are no others.
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
    """Of images [example, dim] with labels [label, dim], as if none of them had been learned.

    Labels go with their `shifts` [label, dim], that of each example, `target` [example], with what
    is `left` [example, dim] without it. One that is the only one of its label is told by texts
    alone, or the others would be ahead.
    """
    own = F.normalize(texts[target] + left, dim=-1)
    said = tuned @ F.normalize(texts + shifts, dim=-1).T
    said = said.scatter(1, target.unsqueeze(1), (tuned * own).sum(1, keepdim=True))
    alone = (left == 0).all(1, keepdim=True)
    return torch.where(alone, tuned @ texts.T, said)
