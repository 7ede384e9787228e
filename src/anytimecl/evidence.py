"""Evidence for the pool weights: the latest examples, as just before they were learned."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anytimecl.pool import RECENT


class Evidence(NamedTuple):
    """An example's image embeddings just before it was learned."""

    example: int
    label: str
    tuned: Tensor  # [dim], unit, of the tuned model
    original: Tensor  # [dim], unit, of the original model


class Latest(deque[Evidence]):
    """Evidence of the latest examples, the oldest first.

    >>> one = torch.ones(1)
    >>> latest = Latest([Evidence(1, "cat", one, one), Evidence(2, "dog", one, one)])
    >>> latest.relabel(lambda seen: seen.label == "cat", "lion")
    >>> latest.drop([2])
    >>> [(seen.example, seen.label) for seen in latest]
    [(1, 'lion')]
    """

    def __init__(self, seen: Iterable[Evidence] = (), most: int | None = None) -> None:
        super().__init__(seen, most or RECENT)

    def relabel(self, about: Callable[[Evidence], bool], label: str) -> None:
        """Give another label to those that `about` says."""
        for place, seen in enumerate(self):
            if about(seen):
                self[place] = seen._replace(label=label)

    def drop(self, examples: Collection[int]) -> None:
        """Remove examples."""
        kept = [seen for seen in self if seen.example not in examples]
        self.clear()
        self.extend(kept)

    def tensors(self, dim: int) -> dict[str, Tensor]:
        """The embeddings, for a checkpoint: [example, dim] each."""
        return {
            f"evidence.{name}": torch.cat(
                [torch.empty(0, dim), *(getattr(seen, name).unsqueeze(0) for seen in self)]
            )
            for name in ("tuned", "original")
        }

    def plain(self) -> list[list[int | str]]:
        """The rest, as JSON values."""
        return [[seen.example, seen.label] for seen in self]

    def restore(self, tensors: Mapping[str, Tensor], plain: Iterable[Sequence[int | str]]) -> None:
        """Restore both."""
        pairs = zip(tensors["evidence.tuned"], tensors["evidence.original"], strict=True)
        for (example, label), (tuned, original) in zip(plain, pairs, strict=True):
            self.append(Evidence(int(example), str(label), tuned, original))
