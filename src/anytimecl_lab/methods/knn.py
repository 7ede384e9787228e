"""kNN with AIM."""

from __future__ import annotations

import torch
from torch import Tensor

from anytimecl_lab.methods.probe import Complementary
from anytimecl_lab.world import World


class NearestNeighbours(Complementary):
    """The `k` nearest examples vote for their labels, weighted by similarity.

    The weight is `exp(cosine / warmth)`. Labels without a neighbour get almost no weight, so that
    the original model decides about them.
    """

    def __init__(self, world: World, *, k: int = 10, warmth: float = 0.05) -> None:
        super().__init__(world)
        self.k, self.warmth = k, warmth

    def _fit(self, vectors: Tensor, targets: Tensor) -> None:
        self._vectors, self._targets = vectors, targets

    def _scores(self, images: Tensor) -> Tensor:
        return votes(images, self._vectors, self._targets, len(self.rows), self.k, self.warmth)


def votes(
    images: Tensor, vectors: Tensor, targets: Tensor, labels: int, k: int, warmth: float
) -> Tensor:
    """Normalised votes [image, label] of the k nearest neighbours, all positive.

    >>> vectors, targets = torch.eye(3), torch.tensor([0, 1, 1])
    >>> votes(torch.tensor([[0.0, 0.8, 0.6]]), vectors, targets, labels=2, k=2, warmth=0.1).argmax()
    tensor(1)
    """
    near = (images @ vectors.T).topk(min(k, len(vectors)), dim=1)
    weights = (near.values / warmth).softmax(1)
    shares = torch.full((len(images), labels), 1e-9, device=images.device)
    return shares.scatter_add(1, targets[near.indices], weights)
