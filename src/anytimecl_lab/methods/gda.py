"""Gaussian discriminant analysis (Wang et al., ICLR 2024, "A hard-to-beat baseline")."""

from __future__ import annotations

from torch import Tensor

from anytimecl_lab.methods._frozen import Frozen
from anytimecl_lab.methods._ridge import ridge
from anytimecl_lab.methods.class_mean import means
from anytimecl_lab.methods.probe import Linear


class Gda(Frozen):
    """Linear discriminants with one covariance for all labels, and equal priors.

    The precision matrix is the paper's empirical-Bayes ridge estimate, `d ((N - 1) S + tr(S) 1)^-1`
    for N vectors of width d and their covariance S within labels. The paper adds the zero-shot
    logits; here that is the reading "+ zero-shot", and its weight is not searched for.

    With one example of each label there is no covariance to estimate, which the paper's settings
    never meet: then the precision is the identity times the original model's logit scale, which
    is the nearest mean.
    """

    def _fit(self, vectors: Tensor, targets: Tensor) -> None:
        scale = self.world.spec.logit_scale
        self.classify = discriminants(vectors.double(), targets, scale)

    def _logits(self, images: Tensor) -> Tensor:
        return self.classify(images.double())


def discriminants(vectors: Tensor, targets: Tensor, scale: float) -> Linear:
    """Logits that are linear in vectors [example, dim], with the precision matrix of the paper.

    Where vectors of a label are all the same, the precision matrix is the identity times `scale`.
    """
    centres = means(vectors, targets)
    apart = vectors - centres[targets]
    dim, freedom = vectors.shape[1], max(len(vectors) - 1, 1)
    trace = float(apart.square().sum()) / freedom or dim / scale
    weight = dim * ridge(apart, trace, centres.T).T  # the precision matrix times each mean
    return Linear(weight, -(weight * centres).sum(1) / 2)
