"""RAIL (Xu et al., NeurIPS 2024): recursive ridge regression, primal or kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from anytimecl_lab.methods._frozen import Frozen
from anytimecl_lab.methods._random import fourier_features, relu_features
from anytimecl_lab.methods._ridge import ridge
from anytimecl_lab.methods.ranpac import PLAIN, SHARPNESS
from anytimecl_lab.world import World


class Rail(Frozen):
    """Ridge regression of one-hot labels on a random hidden layer, or on an RBF kernel.

    The paper's recursion over tasks gives the same weights as a fit to all examples, up to
    rounding, so they are fitted at once. `kernel` selects the paper's other form, here with random
    Fourier features, so that its size does not grow. The paper uses the original model to decide
    whether an image is of a learned task; here unseen labels keep its probability, as in every
    method of this kind.
    """

    def __init__(
        self,
        world: World,
        *,
        kernel: bool = False,
        features: int = 4096,
        width: float = 1.0,
        penalty: float = PLAIN,
        sharpness: float = SHARPNESS,
        zero_shot: Sequence[float] = (),
    ) -> None:
        super().__init__(world, zero_shot=zero_shot)
        self.penalty, self.sharpness = penalty, sharpness
        dim, seed, device = world.spec.dim, world.seed, world.device
        self.features = (
            fourier_features(dim, features, width, seed, device)
            if kernel
            else relu_features(dim, features, seed, device)
        )

    def _fit(self, vectors: Tensor, targets: Tensor) -> None:
        features = self.features(vectors.double())
        told = features.T @ F.one_hot(targets).to(features)
        self.weight = ridge(features, self.penalty, told)

    def _logits(self, images: Tensor) -> Tensor:
        return self.sharpness * self.features(images.double()) @ self.weight
