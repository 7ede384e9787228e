"""Multinomial logistic regression on embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from anytimecl_lab.methods._frozen import Frozen
from anytimecl_lab.methods.probe import logistic
from anytimecl_lab.world import World


class Logistic(Frozen):
    """With an L2 penalty; `strength` is scikit-learn's C. Refitted to all examples."""

    online = False

    def __init__(
        self, world: World, *, strength: float = 1000.0, zero_shot: Sequence[float] = ()
    ) -> None:
        super().__init__(world, zero_shot=zero_shot)
        self.strength = strength

    def _fit(self, vectors: Tensor, targets: Tensor) -> None:
        self.classify = logistic(vectors, targets, len(self.rows), self.strength)

    def _logits(self, images: Tensor) -> Tensor:
        return self.classify(images)
