"""Tip-Adapter (Zhang et al., ECCV 2022), training-free: zero-shot plus a cache of examples."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from anytimecl_lab.methods._frozen import Frozen, reading
from anytimecl_lab.world import World


class TipAdapter(Frozen):
    """Zero-shot logits plus `alpha` times the affinities of cached examples to their labels.

    An example at cosine c adds `exp(-beta (1 - c))`. Both have the paper's values for ImageNet; on
    other data sets it searches, which is left to other weights of the zero-shot logits here. These
    have the original model's scale.
    """

    default = reading(1)

    def __init__(
        self,
        world: World,
        *,
        alpha: float = 1.17,
        beta: float = 5.5,
        zero_shot: Sequence[float] = (1.0,),
    ) -> None:
        super().__init__(world, zero_shot=zero_shot)
        self.alpha, self.beta = alpha, beta

    def _fit(self, vectors: Tensor, targets: Tensor) -> None:
        self.keys, self.values = vectors, F.one_hot(targets).to(vectors)

    def _logits(self, images: Tensor) -> Tensor:
        affinity = (-self.beta * (1 - images @ self.keys.T)).exp()
        return self.alpha * affinity @ self.values
