"""The custom experts of a model, updated together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class OtherExperts:
    """Experts by name; `make` constructs them without examples."""

    def __init__(self, make: Callable[[], dict[str, Any]]) -> None:
        self._make = make
        self.experts = make()

    def enter(self) -> None:
        """Add a label."""
        for expert in self.experts.values():
            expert.enter()

    def drop(self, row: int) -> None:
        """Remove a label; later rows move up."""
        for expert in self.experts.values():
            expert.drop(row)

    def add(self, examples: Sequence[int], rows: Sequence[int], images: Sequence[Tensor]) -> None:
        """Learn examples, in order."""
        for expert in self.experts.values():
            for example, row, image in zip(examples, rows, images, strict=True):
                expert.add(example, row, image)

    def remove(self, example: int, row: int, image: Tensor) -> None:
        """Remove an example."""
        for expert in self.experts.values():
            expert.remove(example, row, image)

    def count(
        self, examples: Sequence[int], rows: Sequence[int], images: Tensor, labels: int
    ) -> None:
        """Start over with these examples and no others."""
        self.experts = self._make()
        for _ in range(labels):
            self.enter()
        self.add(examples, rows, list(images))

    def scores(
        self, images: Tensor, rows: Sequence[int], device: torch.device
    ) -> dict[str, Tensor]:
        """Scores [image, label] by expert."""
        found = {name: expert.scores(images, rows) for name, expert in self.experts.items()}
        return {name: scores.to(device) for name, scores in found.items()}

    def left_out(
        self, images: Tensor, rows: Sequence[int], examples: Sequence[int]
    ) -> dict[str, Tensor]:
        """Leave-one-out scores [example, row] by expert."""
        found = self.experts.items()
        return {name: expert.left_out(images, rows, examples) for name, expert in found}

    def answering(self) -> OtherExperts:
        """A snapshot for prediction."""
        found = copy.copy(self)
        found.experts = copy.deepcopy(self.experts)
        return found

    def state(self) -> dict[str, Tensor]:
        """State for a checkpoint."""
        return {
            f"expert.{name}.{key}": value
            for name, expert in self.experts.items()
            for key, value in expert.state().items()
        }

    def restore(self, state: Mapping[str, Tensor], there: Sequence[str]) -> bool:
        """Restore from `state`, which has experts by the names `there`; False if one is missing."""
        if not self.experts.keys() <= set(there):
            return False
        for name, expert in self.experts.items():
            own = f"expert.{name}."
            expert.restore({k.removeprefix(own): t for k, t in state.items() if k.startswith(own)})
        return True
