"""Shortlists for predictions over very many labels.

A label's score takes a fraction of a microsecond to compute and some microseconds to blend and
send. So above some thousand labels each expert selects its best, and only these are blended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anytimecl.model import Model

ABOVE = 4096  # labels above which shortlists are used
BEST = 128  # labels that each expert selects


class ManyLabels(NamedTuple):
    """Candidate labels, kept for further calls."""

    labels: tuple[str, ...]
    vectors: Tensor  # [label, dim]
    place: dict[str, int]

    @classmethod
    def of(cls, labels: Sequence[str], vectors: Tensor) -> ManyLabels:
        """With the index of each label."""
        return cls(tuple(labels), vectors, {label: at for at, label in enumerate(labels)})


@torch.no_grad()
def named_by_original(images: Tensor, many: ManyLabels) -> list[list[int]]:
    """Indices of the original model's best labels, for each of the images [image, dim].

    >>> many = ManyLabels.of(["cat", "dog"], torch.eye(2))
    >>> named_by_original(torch.tensor([[0.0, 1.0]]), many)
    [[1, 0]]
    """
    return _best(images @ many.vectors.T)


@torch.no_grad()
def named(model: Model, tokens: Tensor, many: ManyLabels) -> list[set[int]]:
    """Indices of the best labels of any expert, for each of the images [image, token, width]."""
    images, tuned = model.learner.both_images(tokens)
    taught = [(many.place[label], row) for label, row in model.rows.items() if label in many.place]
    at = torch.tensor([place for place, _ in taught], dtype=torch.long)
    rows = [row for _, row in taught]
    moved = torch.full((len(many.labels),), -1)
    moved[at] = torch.tensor(rows, dtype=torch.long)
    chosen = [
        named_by_original(images, many),
        _best(model.learner.named_by_tuned(tuned, many.vectors, moved.to(tuned.device))),
    ]
    if taught:
        seen = images.float().cpu()
        scores = [model.gaussian.judged(seen, rows)[0]]
        if model.others.experts:
            scores += model.others.scores(seen, rows, seen.device).values()
        chosen += [[at[best].tolist() for best in _best(score)] for score in scores]
        _, copied = model.instances.nearest(seen, rows)
        chosen.append([[int(at[one])] for one in copied.tolist()])
    return [{place for part in parts for place in part} for parts in zip(*chosen, strict=True)]


def _best(scores: Tensor) -> list[list[int]]:
    return scores.topk(min(BEST, scores.shape[1]), dim=1).indices.tolist()


class SentLabels:
    """Cache of recent label sets, by number."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sets: OrderedDict[str, ManyLabels] = OrderedDict()

    def get(self, number: str, fetch: Callable[[], tuple[Sequence[str], Tensor]]) -> ManyLabels:
        """The set with a number; `fetch` returns labels and vectors if it is not cached."""
        found = self._sets.pop(number, None) or ManyLabels.of(*fetch())
        self._sets[number] = found  # the latest is the last
        while len(self._sets) > self._most:
            self._sets.popitem(last=False)
        return found
