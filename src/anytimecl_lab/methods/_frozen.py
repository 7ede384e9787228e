"""Methods on frozen image embeddings: classifiers of all examples so far."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from anytimecl.tail import TailInput
from anytimecl_lab.methods._base import Method
from anytimecl_lab.world import World


class OnEmbeddings(Method):
    """Base of methods that need only the original model's unit embeddings, and refit to all."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.stored: list[int] = []
        self.rows: dict[str, int] = {}  # label -> row, in order of appearance

    def learn(self, examples: Sequence[int]) -> None:
        """Store the examples, and fit to all so far."""
        labels, device = self.world.labels, self.world.device
        self.stored += examples
        for i in examples:
            self.rows.setdefault(labels[i], len(self.rows))
        targets = torch.tensor([self.rows[labels[i]] for i in self.stored], device=device)
        at = torch.tensor(self.stored, device=device)
        self._fit(self.world.original_vectors[at], targets)

    def predict(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor:
        """The default reading."""
        return self.readings(tokens, names)[self.default]

    @torch.no_grad()
    def readings(self, tokens: Tensor | TailInput, names: Sequence[str]) -> dict[str, Tensor]:
        """Every reading."""
        return self.read(self.world.image_vectors(self.world.tail, tokens), names)

    @abstractmethod
    def read(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Every reading, from unit embeddings [image, dim]."""

    @abstractmethod
    def _fit(self, vectors: Tensor, targets: Tensor) -> None:
        """Fit to unit embeddings [example, dim] and rows of labels [example], in order."""


class Frozen(OnEmbeddings):
    """Base of classifiers whose answer is that of the original model for unseen labels.

    Unseen labels keep the original model's probability exactly. Its total probability of the seen
    labels is distributed among them by the classifier, so that the classifier alone decides if
    every candidate is seen.

    `zero_shot` are weights of the original model's logits, added to the classifier's: each is
    evaluated as a variant, besides the classifier alone.
    """

    online = True

    def __init__(self, world: World, *, zero_shot: Sequence[float] = ()) -> None:
        super().__init__(world)
        self.weights = (0.0, *zero_shot)

    @torch.no_grad()
    def read(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """The classifier alone, and with each weight of the original model's logits."""
        original = self.world.logits(images, names)
        places = torch.tensor([self.rows.get(name, -1) for name in names], device=images.device)
        seen = places >= 0
        if not bool(seen.any()):
            return {reading(weight): original.softmax(1) for weight in self.weights}
        own = self._logits(images)[:, places[seen]].to(original)
        return {
            reading(weight): share(original.softmax(1), own + weight * original[:, seen], seen)
            for weight in self.weights
        }

    @abstractmethod
    def _logits(self, images: Tensor) -> Tensor:
        """Logits [image, seen label] of unit embeddings [image, dim]."""


def share(original: Tensor, logits: Tensor, seen: Tensor) -> Tensor:
    """Probabilities [image, label]: the seen labels' total mass, redistributed by `logits`.

    >>> original = torch.tensor([[0.2, 0.5, 0.3]])
    >>> share(original, torch.tensor([[0.0, 0.0]]), torch.tensor([True, False, True]))
    tensor([[0.2500, 0.5000, 0.2500]])
    """
    told = original.clone()
    told[:, seen] = original[:, seen].sum(1, keepdim=True) * logits.softmax(1)
    return told


def reading(weight: float) -> str:
    """Name of the variant with a weight of the original model's logits.

    >>> [reading(weight) for weight in (0, 0.3, 1)]
    ['', '+ 0.3 zero-shot', '+ zero-shot']
    """
    if weight == 0:
        return ""
    return "+ zero-shot" if weight == 1 else f"+ {weight:g} zero-shot"
