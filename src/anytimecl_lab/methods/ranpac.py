"""RanPAC (McDonnell et al., NeurIPS 2023): ridge regression on a random ReLU projection."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from anytimecl_lab.methods._frozen import Frozen
from anytimecl_lab.methods._random import relu_features
from anytimecl_lab.methods._ridge import left_out, ridge
from anytimecl_lab.world import World

PENALTIES = tuple(10.0**power for power in range(-8, 9))  # the paper's
PLAIN = 0.1
SHARPNESS = 20.0  # scale from regression targets to logits


class RanPac(Frozen):
    """Ridge regression of one-hot labels; as in the paper, the penalty is chosen by held-out error.

    By leave-one-out in closed form instead of a held-out fifth, without examples that are the only
    one of their label. If none is left, the penalty is PLAIN. The paper's adapters are left out,
    since embeddings are frozen here.
    """

    def __init__(
        self,
        world: World,
        *,
        features: int = 4096,
        sharpness: float = SHARPNESS,
        zero_shot: Sequence[float] = (),
    ) -> None:
        super().__init__(world, zero_shot=zero_shot)
        self.sharpness = sharpness
        self.features = relu_features(world.spec.dim, features, world.seed, world.device)

    def _fit(self, vectors: Tensor, targets: Tensor) -> None:
        features = self.features(vectors.double())
        told = F.one_hot(targets).to(features)
        self.penalty = chosen(features, told)
        self.weight = ridge(features, self.penalty, features.T @ told)

    def _logits(self, images: Tensor) -> Tensor:
        return self.sharpness * self.features(images.double()) @ self.weight


def chosen(features: Tensor, told: Tensor) -> float:
    """The penalty with the least leave-one-out squared error."""
    counts = told.sum(0)[told.argmax(1)] > 1
    if not bool(counts.any()):
        return PLAIN
    guesses = left_out(features, told, PENALTIES)
    errors = [float((guess - told)[counts].square().sum()) for guess in guesses]
    return PENALTIES[errors.index(min(errors))]
