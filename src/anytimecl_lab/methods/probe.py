"""The predecessor's complementary memory systems: an exemplar classifier and CLIP, mixed by AIM.

Zhu et al. ("Continual Learning in Open-vocabulary Classification with Complementary Memory
Systems") store every example's image embedding and train a classifier on them, which is weighted by
the original model's probability that the image has one of its labels. They average either
probabilities (AIM), like this project's blend "aim", or embeddings (AIM-Emb): the image's and that
of the label that the classifier finds most probable. Both are evaluated in one run.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.blend import LabelRecord, Opinions, aim, blend
from anytimecl_lab.methods._frozen import OnEmbeddings
from anytimecl_lab.world import World

EMBEDDING = "AIM-Emb"


class Complementary(OnEmbeddings):
    """A classifier over the embeddings of all examples, blended with the original model by AIM."""

    @torch.no_grad()
    def read(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """By probabilities and by embeddings."""
        world = self.world
        original = world.logits(images, names).softmax(1)
        places = torch.tensor([self.rows.get(name, -1) for name in names], device=world.device)
        known = places >= 0
        told = torch.zeros_like(original)
        if bool(known.any()):
            scores = self._scores(images)[:, places[known]]
            told[:, known] = scores / scores.sum(1, keepdim=True).clamp_min(1e-12)
        records = [LabelRecord(seen=int(name in self.rows)) for name in names]
        nobody = original.new_zeros(len(original))
        opinions = Opinions(told, original, nobody, records)
        return {
            self.default: blend("aim", opinions),
            EMBEDDING: self._by_embedding(images, told, aim(opinions), names),
        }

    def _by_embedding(
        self, images: Tensor, told: Tensor, mass: Tensor, names: Sequence[str]
    ) -> Tensor:
        """AIM-Emb: the most probable label's and the image's embedding, weighted by `mass`."""
        vectors = self.world.label_vectors(names)
        mixed = mass * vectors[told.argmax(1)] + (1 - mass) * images
        return self.world.logits(F.normalize(mixed, dim=-1), names).softmax(1)

    @abstractmethod
    def _scores(self, images: Tensor) -> Tensor:
        """Probabilities [image, seen label] from unit embeddings [image, dim]."""


class LinearProbe(Complementary):
    """Logistic regression on all stored embeddings."""

    def __init__(self, world: World, *, strength: float = 1000.0) -> None:
        super().__init__(world)
        self.strength = strength

    def _fit(self, vectors: Tensor, targets: Tensor) -> None:
        self._probe = logistic(vectors, targets, len(self.rows), self.strength)

    def _scores(self, images: Tensor) -> Tensor:
        return self._probe(images).softmax(1)


class Linear:
    """Logits [image, label] of unit embeddings [image, dim]."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, images: Tensor) -> Tensor:
        return images @ self.weight.T + self.bias


def logistic(
    vectors: Tensor, targets: Tensor, labels: int, strength: float, steps: int = 200
) -> Linear:
    """Multinomial logistic regression with an L2 penalty, by L-BFGS on the device.

    `strength` is scikit-learn's C: the sum of losses, plus half the squared weights over C.
    """
    weight = vectors.new_zeros(labels, vectors.shape[1]).requires_grad_()
    bias = vectors.new_zeros(labels).requires_grad_()
    optimiser = torch.optim.LBFGS(
        [weight, bias],
        max_iter=steps,
        history_size=10,
        tolerance_grad=1e-6,
        tolerance_change=1e-9,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(vectors @ weight.T + bias, targets)
        loss = loss + weight.square().sum() / (2 * strength * len(vectors))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with torch.enable_grad():
        optimiser.step(closure)  # type: ignore[no-untyped-call]
    return Linear(weight.detach(), bias.detach())
