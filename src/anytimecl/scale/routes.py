"""Routing of images to leaves: a binary tree of centres, grown by splitting leaves.

Centres are fixed when a leaf splits, so an image is always routed to the leaf that has its example.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anytimecl.errors import StoreError
from anytimecl.files import replacing

# Version 1 had no owner.
VERSION, READABLE = "2", ("1", "2")


class Halves(NamedTuple):
    """Two clusters."""

    side: Tensor  # [example], 0 or 1: the nearer centre
    centres: Tensor  # [2, dim]


def two_means(vectors: Tensor, rounds: int = 20) -> Halves | None:
    """Two clusters of vectors [example, dim]; None if they cannot be separated.

    2-means, initialised with the two ends of the first principal direction: deterministic.

    >>> two_means(torch.tensor([[0.0, 0.0], [0.0, 0.1], [1.0, 0.0]])).side.tolist() in (
    ...     [0, 0, 1], [1, 1, 0])
    True
    >>> two_means(torch.ones(5, 2)) is None
    True
    """
    centred = vectors - vectors.mean(0)
    widest = torch.linalg.eigh((centred.T @ centred).double()).eigenvectors[:, -1]
    side = (centred @ widest.to(vectors.dtype) > 0).long()
    for _ in range(rounds):
        if not 0 < int(side.sum()) < len(side):
            return None
        centres = torch.stack([vectors[side == part].mean(0) for part in (0, 1)])
        moved = nearer(vectors, centres)
        if torch.equal(moved, side):
            break
        side = moved
    return Halves(side, centres) if 0 < int(side.sum()) < len(side) else None


def nearer(vectors: Tensor, centres: Tensor) -> Tensor:
    """Index of the nearer centre, [vector], computed so that it does not depend on the batch."""
    along = centres[1] - centres[0]
    middle = (centres[0] + centres[1]) / 2
    return (((vectors - middle) * along).sum(-1) > 0).long()


@dataclass(frozen=True, eq=False)
class Routes:
    """The tree of centres. Leaves have numbers that are never reused; the first one is 0.

    Immutable, so that routing needs no lock: a split creates another one.
    """

    centres: Tensor  # [node, 2, dim]
    children: list[tuple[int, int]] = field(default_factory=list)  # a node, or -1 - leaf
    next_leaf: int = 1

    @classmethod
    def single(cls, dim: int) -> Routes:
        """A tree of one leaf."""
        return cls(torch.empty(0, 2, dim))

    def leaf_of(self, vector: Tensor) -> int:
        """The leaf of a vector [dim]."""
        at = 0 if self.children else -1
        while at >= 0:
            at = self.children[at][int(nearer(vector, self.centres[at]))]
        return -1 - at

    def leaves(self) -> list[int]:
        """All leaves, in order."""
        ends = [child for pair in self.children for child in pair if child < 0] or [-1]
        return sorted(-1 - end for end in ends)

    def near(self, vector: Tensor, count: int) -> list[tuple[int, float]]:
        """The leaf of a vector, then those with the nearest centres, with their distances.

        A single leaf has the distance 0.
        """
        own = self.leaf_of(vector)
        if count == 1 or not self.children:
            return [(own, 0.0)]  # a single leaf needs no weight
        leaves, centres = self._centred
        away = dict(zip(leaves, (vector - centres).norm(dim=-1).tolist(), strict=True))
        others = sorted((leaf for leaf in leaves if leaf != own), key=away.__getitem__)
        return [(leaf, away[leaf]) for leaf in [own, *others[: count - 1]]]

    @cached_property
    def _centred(self) -> tuple[list[int], Tensor]:
        """Leaves with a centre, and their centres [leaf, dim]."""
        found = [
            (-1 - child, node, part)
            for node, pair in enumerate(self.children)
            for part, child in enumerate(pair)
            if child < 0
        ]
        leaves, nodes, parts = map(list, zip(*found, strict=True))
        return leaves, self.centres[nodes, parts]

    def split(self, leaf: int, centres: Tensor) -> tuple[Routes, tuple[int, int]]:
        """A tree with a leaf replaced by two new ones, and their numbers."""
        new = self.next_leaf, self.next_leaf + 1
        here, node = -1 - leaf, len(self.children)
        children = [
            (node if left == here else left, node if right == here else right)
            for left, right in self.children
        ]
        children.append((-1 - new[0], -1 - new[1]))
        grown = torch.cat([self.centres, centres.cpu().float().unsqueeze(0)])
        return Routes(grown, children, self.next_leaf + 2), new

    def save(self, file: Path, meta: dict[str, str]) -> None:
        """Write the file, atomically."""
        told = {"version": VERSION, "next": str(self.next_leaf), **meta}
        told["children"] = json.dumps(self.children)
        with replacing(file) as draft:
            save_file({"centres": self.centres}, draft, metadata=told)

    @classmethod
    def load(cls, file: Path) -> tuple[Routes, dict[str, str]]:
        """Load what `save` wrote, with its metadata."""
        told = read_meta(file)
        try:
            with safe_open(file, framework="pt") as opened:
                centres = opened.get_tensor("centres").clone()
            children = [(int(a), int(b)) for a, b in json.loads(told.pop("children"))]
            return cls(centres, children, int(told.pop("next"))), told
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            raise StoreError(f"{file} is not a whole tree: {error}.") from error


def read_meta(file: Path) -> dict[str, str]:
    """The metadata of `Routes.save`; raises for an unsupported version."""
    try:
        with safe_open(file, framework="pt") as opened:
            told = dict(opened.metadata() or {})
        version = told.pop("version")
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise StoreError(f"{file} is not a whole tree: {error}.") from error
    if version not in READABLE:
        raise StoreError(
            f"{file} has version {version}, and this anytimecl reads {', '.join(READABLE)}: use "
            "the anytimecl that wrote it, or a newer one."
        )
    return told
