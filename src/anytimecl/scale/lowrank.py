"""A tuned tail as a thin difference from the original: a leaf that sleeps and still answers.

Learning online moves a block a little, in few directions: each matrix becomes the original plus a
product of two thin ones, in half precision. It is not exact, so nobody learns on from it: who
teaches a sleeping leaf wakes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.blend import Estimates, Opinions
from anytimecl.scale.leaf import Answer, Leaf
from anytimecl.tail import embed

Factors = tuple[Tensor, Tensor]  # [row, rank], [rank, column]


@dataclass(frozen=True)
class Difference:
    """What learning changed; weights that did not change are not in it."""

    matrices: dict[str, Factors]
    vectors: dict[str, Tensor]

    def restored(self, original: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tuned weights, as near as the rank allows."""
        tuned = dict(original)
        for name, (left, right) in self.matrices.items():
            tuned[name] = original[name] + left.float() @ right.float()
        for name, vector in self.vectors.items():
            tuned[name] = original[name] + vector.float()
        return tuned


def compressed(
    original: Mapping[str, Tensor], tuned: Mapping[str, Tensor], rank: int
) -> Difference:
    """The difference of two tails.

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
    """Bytes."""
    pairs = [part for factors in thin.matrices.values() for part in factors]
    return sum(part.nbytes for part in [*pairs, *thin.vectors.values()])


class Dreaming:
    """What stays of a leaf that sleeps: enough to answer."""

    def __init__(self, leaf: Leaf, rank: int) -> None:
        student = leaf._student
        self._spec, self._blend = leaf.backbone.spec, leaf.settings.blend
        self._original = student.learner.original
        self._thin = compressed(self._original, student.learner.params, rank)
        self._other = student.learner.other_logit.clone()
        self._estimates = Estimates.restored(student.estimates.state())
        self._place = {label: place for place, label in enumerate(student.labels)}
        self._means = student.means(range(len(student.labels)))

    @torch.no_grad()
    def answer(self, tokens: Tensor, labels: Sequence[str], vectors: Tensor) -> Answer:
        """What the leaf would say, nearly."""
        records = [self._estimates.of(label) for label in labels]
        images = self._images(self._original, tokens)
        original = self._logits(images, vectors).softmax(1)
        tuned, none = original, original.new_zeros(len(original))
        if any(record.seen for record in records):
            restored = self._thin.restored(self._original)
            logits = self._logits(self._images(restored, tokens), vectors)
            other = self._other.expand(len(logits), 1)
            tuned, none = logits.softmax(1), torch.cat([logits, other], 1).softmax(1)[:, -1]
        opinions = Opinions(tuned, original, none, records, self._estimates.overall)
        if self._means is not None:
            places = torch.tensor([self._place.get(label, len(self._place)) for label in labels])
            votes = self._means._replace(places=places).votes(images)
            opinions = dataclasses.replace(opinions, votes=votes)
        return Answer.of(opinions, self._blend)

    def _images(self, params: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
        return F.normalize(embed(params, self._spec.tail, tokens), dim=-1)

    def _logits(self, images: Tensor, vectors: Tensor) -> Tensor:
        return self._spec.logit_scale * images @ vectors.T
