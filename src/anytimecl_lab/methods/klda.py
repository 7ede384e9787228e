"""KLDA (Momeni et al., AAAI 2025): linear discriminants of random Fourier features."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from anytimecl_lab.methods._frozen import Frozen
from anytimecl_lab.methods._random import fourier_features
from anytimecl_lab.methods.gda import discriminants
from anytimecl_lab.world import World


class Klda(Frozen):
    """Random features of an RBF kernel of this width, and one covariance for all labels.

    The paper inverts the covariance, estimated from tens of thousands of examples. Here labels have
    few examples, so it is regularised as in `gda`.
    """

    def __init__(
        self,
        world: World,
        *,
        features: int = 4096,
        width: float = 1.0,
        zero_shot: Sequence[float] = (),
    ) -> None:
        super().__init__(world, zero_shot=zero_shot)
        self.features = fourier_features(world.spec.dim, features, width, world.seed, world.device)

    def _fit(self, vectors: Tensor, targets: Tensor) -> None:
        scale = self.world.spec.logit_scale
        self.classify = discriminants(self.features(vectors.double()), targets, scale)

    def _logits(self, images: Tensor) -> Tensor:
        return self.classify(self.features(images.double()))
