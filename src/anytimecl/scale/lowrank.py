"""Sleeping leaves: a tuned tail as a low-rank difference from the original, for prediction.

Online learning changes a block little and in few directions, so each matrix is approximated by the
original plus a product of two thin ones, in half precision. Learning needs the exact weights: it
wakes a sleeping leaf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.blend import unlearned
from anytimecl.learner import shifted
from anytimecl.scale.leaf import Leaf, LeafAnswer
from anytimecl.tail import images_of

Factors = tuple[Tensor, Tensor]  # [row, rank], [rank, column]


@dataclass(frozen=True)
class Difference:
    """Differences of the weights that learning changed."""

    matrices: dict[str, Factors]
    vectors: dict[str, Tensor]

    def restored(self, original: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The approximate tuned weights."""
        tuned = dict(original)
        for name, (left, right) in self.matrices.items():
            tuned[name] = original[name] + left.float() @ right.float()
        for name, vector in self.vectors.items():
            tuned[name] = original[name] + vector.float()
        return tuned


def compressed(
    original: Mapping[str, Tensor], tuned: Mapping[str, Tensor], rank: int
) -> Difference:
    """The low-rank difference of two tails.

    >>> one = {"w": torch.zeros(4, 3), "b": torch.zeros(4), "fixed": torch.ones(2)}
    >>> other = {**one, "w": torch.ones(4, 1) @ torch.ones(1, 3), "b": torch.ones(4)}
    >>> thin = compressed(one, other, rank=1)
    >>> torch.allclose(thin.restored(one)["w"], other["w"], atol=1e-3), sorted(thin.vectors)
    (True, ['b'])
    """
    matrices, vectors = {}, {}
    for name, value in tuned.items():
        change = value - original[name]
        if not change.any():
            continue
        if change.ndim == 2 and min(change.shape) > rank:
            u, s, v = torch.svd_lowrank(change, q=min(rank + 8, *change.shape), niter=4)
            matrices[name] = (u[:, :rank] * s[:rank]).half(), v[:, :rank].T.half()
        else:
            vectors[name] = change.half()
    return Difference(matrices, vectors)


def size_of(thin: Difference) -> int:
    """Size in bytes."""
    pairs = [part for factors in thin.matrices.values() for part in factors]
    return sum(part.nbytes for part in [*pairs, *thin.vectors.values()])


class SleepingLeaf:
    """The state of a sleeping leaf, for prediction only."""

    def __init__(self, leaf: Leaf, rank: int) -> None:
        learner = leaf._trainer.learner
        self._spec = leaf.backbone.spec
        self._blend = leaf.settings.blend
        self._original = learner.original
        self._thin = compressed(self._original, learner.params, rank)
        self._other = learner.other_logit.clone()
        self._shifts = learner.shifts.clone()
        self._model = leaf._trainer.model.answering()

    @torch.no_grad()
    def answer(self, tokens: Tensor, labels: Sequence[str], vectors: Tensor) -> LeafAnswer:
        """The leaf's approximate answer."""
        images = images_of(self._original, self._spec.tail, tokens)
        original = self._spec.logit_scale * images @ vectors.T
        if not any(label in self._model.rows for label in labels):
            return LeafAnswer.of(unlearned(original, self._spec.none_logit), self._blend)
        tuned = images_of(self._thin.restored(self._original), self._spec.tail, tokens)
        logits = self._spec.logit_scale * tuned @ self._moved(labels, vectors).T
        texts = self._model.by_text(tuned, vectors, labels)
        opinions = self._model.of_logits(logits, original, self._other, images, labels, texts)
        return LeafAnswer.of(opinions, self._blend)

    def _moved(self, labels: Sequence[str], vectors: Tensor) -> Tensor:
        """As `Learner.moved`."""
        if not len(self._shifts):
            return vectors
        rows = torch.tensor([self._model.rows.get(label, -1) for label in labels])
        return F.normalize(shifted(vectors, self._shifts, rows.to(vectors.device)), dim=-1)
