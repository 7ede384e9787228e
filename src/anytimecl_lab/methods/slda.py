"""Streaming linear discriminant analysis (Hayes and Kanan, 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anytimecl_lab.methods._frozen import Frozen
from anytimecl_lab.methods.class_mean import means
from anytimecl_lab.methods.probe import Linear
from anytimecl_lab.world import World


class Slda(Frozen):
    """Running class means, and a shared covariance updated with every example.

    The precision matrix is `((1 - e) S + e 1)^-1`; the paper's e is 1e-4, with embeddings that are
    not normalised. The paper initialises S on a first batch; here S starts at zero, and the first
    example of a label does not update it.
    """

    def __init__(
        self, world: World, *, shrinkage: float = 1e-3, zero_shot: Sequence[float] = ()
    ) -> None:
        super().__init__(world, zero_shot=zero_shot)
        self.shrinkage = shrinkage

    def _fit(self, vectors: Tensor, targets: Tensor) -> None:
        self.classify = streamed(vectors.double(), targets, self.shrinkage)

    def _logits(self, images: Tensor) -> Tensor:
        return self.classify(images.double())


def streamed(vectors: Tensor, targets: Tensor, shrinkage: float) -> Linear:
    """Discriminants after all examples [example, dim], in the order of their arrival."""
    steps = _apart(vectors, targets)
    # The recursive update adds t / (t + 1) of each outer product to t times the covariance:
    # this is a single sum.
    before = torch.arange(len(vectors), device=vectors.device).to(vectors)
    weighed = steps * (before / (before + 1)).sqrt()[:, None]
    covariance = weighed.T @ weighed / len(vectors)
    shrunken = (1 - shrinkage) * covariance
    shrunken.diagonal().add_(shrinkage)
    centres = means(vectors, targets)
    weight = torch.linalg.solve(shrunken, centres.T).T
    return Linear(weight, -(weight * centres).sum(1) / 2)


def _apart(vectors: Tensor, targets: Tensor) -> Tensor:
    """Differences [example, dim] from the mean of earlier examples of the label."""
    steps = torch.zeros_like(vectors)
    for row in range(int(targets.max()) + 1):
        at = (targets == row).nonzero()[:, 0]
        own = vectors[at]
        counts = torch.arange(1, len(at), device=at.device).to(own)[:, None]
        steps[at[1:]] = own[1:] - own.cumsum(0)[:-1] / counts
    return steps
