"""Nearest class mean (prototypes)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.tail import TailInput
from anytimecl_lab.methods._frozen import Frozen


class ClassMean(Frozen):
    """Cosine to the mean of each label's embeddings, at the original model's logit scale.

    "None of these" is the distance to the nearest mean.
    """

    def _fit(self, vectors: Tensor, targets: Tensor) -> None:
        self.means = F.normalize(means(vectors, targets), dim=-1)

    def _logits(self, images: Tensor) -> Tensor:
        return self.world.spec.logit_scale * images @ self.means.T

    @torch.no_grad()
    def none(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor | None:
        """1 - cosine to the nearest mean of these labels."""
        rows = [self.rows[name] for name in names if name in self.rows]
        if not rows:
            return None
        images = self.world.image_vectors(self.world.tail, tokens)
        return 1 - (images @ self.means[rows].T).amax(1)


def means(vectors: Tensor, targets: Tensor) -> Tensor:
    """Mean embedding of each label, [row, dim].

    >>> means(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1]))
    tensor([[1.],
            [5.]])
    """
    rows = int(targets.max()) + 1
    total = torch.zeros(rows, vectors.shape[1]).to(vectors).index_add(0, targets, vectors)
    return total / targets.bincount(minlength=rows)[:, None].to(vectors)
