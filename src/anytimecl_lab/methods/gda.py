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
    for N embeddings of dimension d and their within-label covariance S. The paper adds the
    zero-shot logits; here that is the reading "+ zero-shot", with a fixed weight.

    With one example per label there is no covariance to estimate (the paper has no such setting).
    Then the precision is the identity times the original model's logit scale, i.e. nearest class
    mean.
    """

    def _fit(self, vectors: Tensor, targets: Tensor) -> None:
        scale = self.world.spec.logit_scale
        self.classify = discriminants(vectors.double(), targets, scale)

    def _logits(self, images: Tensor) -> Tensor:
        return self.classify(images.double())


def discriminants(vectors: Tensor, targets: Tensor, scale: float) -> Linear:
    """Linear discriminants from embeddings [example, dim], with the paper's precision matrix.

    If the embeddings of each label are identical, the precision is the identity times `scale`.
    """
    centres = means(vectors, targets)
    apart = vectors - centres[targets]
    dim, freedom = vectors.shape[1], max(len(vectors) - 1, 1)
    trace = float(apart.square().sum()) / freedom or dim / scale
    weight = dim * ridge(apart, trace, centres.T).T  # the precision matrix times each mean
    return Linear(weight, -(weight * centres).sum(1) / 2)
