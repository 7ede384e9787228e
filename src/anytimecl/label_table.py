"""The seen labels: a row each, in order of first appearance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Subset(NamedTuple):
    """The candidate labels of a batch, for `step.Batch`."""

    target: Tensor  # [example], index into `vectors`
    vectors: Tensor  # [label, dim]
    rows: Tensor  # [label], each label's row; -1: never seen
    mask: Tensor | None  # [example, label]; 0, or -inf where a label is no candidate


class LabelTable:
    """Labels, their rows and their embeddings.

    >>> table = LabelTable(torch.empty(0, 2))
    >>> for label, vector in zip(["cat", "dog"], torch.eye(2)):
    ...     row = table.enter(label, vector)
    >>> table.retire("cat"), table.labels, table.rows, table.vectors.tolist()
    (0, ['dog'], {'dog': 0}, [[0.0, 1.0]])
    """

    def __init__(self, empty: Tensor) -> None:
        self.labels: list[str] = []
        self.rows: dict[str, int] = {}
        self._vectors = empty  # [row, dim], with spare capacity

    @property
    def vectors(self) -> Tensor:
        """Embeddings of the labels, [row, dim]."""
        return self._vectors[: len(self.labels)]

    def enter(self, label: str, vector: Tensor) -> int:
        """Add a label; returns its row."""
        row = len(self.labels)
        if row == len(self._vectors):  # double the capacity: O(1) for each label, amortised
            room = self._vectors.new_empty(max(16, row), len(vector))
            self._vectors = torch.cat([self._vectors, room])
        self._vectors[row] = vector
        self.labels.append(label)
        self.rows[label] = row
        return row

    def retire(self, label: str) -> int:
        """Remove a label; returns its row. Later rows move up."""
        row = self.rows.pop(label)
        del self.labels[row]
        for later in self.labels[row:]:
            self.rows[later] -= 1
        self._vectors = torch.cat([self._vectors[:row], self._vectors[row + 1 :]])
        return row

    def rename(self, label: str, to: str, vector: Tensor) -> None:
        """Rename a label."""
        row = self.rows.pop(label)
        self.labels[row], self.rows[to], self._vectors[row] = to, row, vector

    def subset(
        self,
        names: Sequence[str],
        sets: Sequence[Sequence[str] | None],
        embed: Callable[[list[str]], Tensor],
    ) -> Subset:
        """Candidate labels of examples with labels `names` and candidate sets `sets`.

        Without a set, every seen label is a candidate; `embed` gives the vectors of unseen ones.
        """
        vectors, known = self.vectors, len(self.labels)
        rows = torch.arange(known, device=vectors.device)
        target = torch.tensor([self.rows[name] for name in names], device=vectors.device)
        if all(some is None for some in sets):
            return Subset(target, vectors, rows, None)
        extra = sorted({y for some in sets if some is not None for y in some} - self.rows.keys())
        if extra:
            vectors = torch.cat([vectors, embed(extra)])
            rows = torch.cat([rows, rows.new_full((len(extra),), -1)])
        column = self.rows | {name: known + i for i, name in enumerate(extra)}
        mask = torch.full((len(names), len(vectors)), -torch.inf)
        for i, (name, some) in enumerate(zip(names, sets, strict=True)):
            if some is None:
                mask[i, :known] = 0
            else:
                mask[i, [column[y] for y in (*some, name)]] = 0
        return Subset(target, vectors, rows, mask.to(vectors.device))
