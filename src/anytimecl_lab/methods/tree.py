"""TreeProbe with AIM: a tree of clusters with a linear probe each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl_lab.methods.probe import Complementary, Linear, logistic
from anytimecl_lab.world import World


@dataclass(eq=False)
class VectorRegion:
    """A cluster."""

    centre: Tensor  # [dim], unit
    members: Tensor  # [member], rows of the stored embeddings
    probe: Linear | None = None  # None: not fitted since the last change
    labels: Tensor | None = None  # [label], rows of the probe's labels


class TreeProbe(Complementary):
    """A cluster that outgrows its `capacity` is split in two by k-means; only changed ones refit.

    With the predecessor's 50,000 examples per node, small data sets would have one node, the linear
    probe; recipes set the capacity. Deviation: examples arrive in stages, so clusters are updated
    once per stage. A prediction uses the `near` nearest clusters, weighted by the similarity of
    image and centre.
    """

    def __init__(
        self, world: World, *, capacity: int = 2000, near: int = 3, strength: float = 1000.0
    ) -> None:
        super().__init__(world)
        self.capacity, self.near, self.strength = capacity, near, strength
        self.leaves: list[VectorRegion] = []
        self._known = 0  # number of embeddings in the tree

    def _fit(self, vectors: Tensor, targets: Tensor) -> None:
        fresh = torch.arange(self._known, len(vectors), device=vectors.device)
        self._known = len(vectors)
        if not self.leaves:
            self.leaves = [VectorRegion(F.normalize(vectors.mean(0), dim=0), fresh[:0])]
        self._place(vectors, fresh)
        for leaf in self.leaves:
            if leaf.probe is None:
                own = targets[leaf.members]
                leaf.labels = torch.unique(own)
                places = torch.searchsorted(leaf.labels, own)
                count = len(leaf.labels)
                leaf.probe = logistic(vectors[leaf.members], places, count, self.strength)

    def _place(self, vectors: Tensor, fresh: Tensor) -> None:
        """Assign new examples to the nearest cluster, and split clusters that are too large."""
        centres = torch.stack([leaf.centre for leaf in self.leaves])
        nearest = (vectors[fresh] @ centres.T).argmax(1)
        todo = []
        for number, leaf in enumerate(self.leaves):
            own = fresh[nearest == number]
            if len(own):
                todo.append(VectorRegion(leaf.centre, torch.cat([leaf.members, own])))
            else:
                todo.append(leaf)
        self.leaves = []
        while todo:
            leaf = todo.pop()
            halves = split(vectors[leaf.members]) if len(leaf.members) > self.capacity else None
            if halves is None:
                self.leaves.append(leaf)
                continue
            for side in (0, 1):
                members = leaf.members[halves == side]
                todo.append(VectorRegion(F.normalize(vectors[members].mean(0), dim=0), members))

    def _scores(self, images: Tensor) -> Tensor:
        centres = torch.stack([leaf.centre for leaf in self.leaves])
        near = (images @ centres.T).topk(min(self.near, len(centres)), dim=1)
        weights = torch.zeros(len(images), len(centres), device=images.device)
        weights = weights.scatter(1, near.indices, (near.values / 0.05).softmax(1))
        total = torch.full((len(images), len(self.rows)), 1e-9, device=images.device)
        for number, leaf in enumerate(self.leaves):
            assert leaf.probe is not None
            assert leaf.labels is not None
            total[:, leaf.labels] += weights[:, number, None] * leaf.probe(images).softmax(1)
        return total


def split(vectors: Tensor, rounds: int = 20) -> Tensor | None:
    """Assignment of vectors [member, dim] to two clusters; None if all are equal.

    k-means from the two ends of the first principal direction: deterministic, no empty cluster.
    """
    centred = vectors - vectors.mean(0)
    widest = torch.linalg.eigh(centred.T @ centred).eigenvectors[:, -1]
    side = (centred @ widest > 0).long()
    for _ in range(rounds):
        if not 0 < int(side.sum()) < len(side):
            return None
        centres = torch.stack([vectors[side == part].mean(0) for part in (0, 1)])
        moved = torch.cdist(vectors, centres).argmin(1)
        if torch.equal(moved, side):
            break
        side = moved
    return side if 0 < int(side.sum()) < len(side) else None
