"""Experts from outside, kept in step: what happens to an example happens to each of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from anytimecl.backbone.prior import Prior
from anytimecl.errors import PartError


class OtherExperts:
    """By name; `make` gives them anew, as they are before anything was learned."""

    def __init__(
        self, make: Callable[[int, Prior | None], dict[str, Any]], dim: int, prior: Prior | None
    ) -> None:
        self._make = partial(make, dim, prior)
        self.experts = self._make()

    @property
    def names(self) -> list[str]:
        """In the order of the settings."""
        return list(self.experts)

    def enter(self) -> None:
        """Another label."""
        for expert in self.experts.values():
            expert.enter()

    def drop(self, row: int) -> None:
        """A label was never seen."""
        for expert in self.experts.values():
            expert.drop(row)

    def add(self, examples: Sequence[int], rows: Sequence[int], images: Sequence[Tensor]) -> None:
        """Learn examples, in order."""
        for expert in self.experts.values():
            for example, row, image in zip(examples, rows, images, strict=True):
                expert.add(example, row, image)

    def remove(self, example: int, row: int, image: Tensor) -> None:
        """Take an example back."""
        for expert in self.experts.values():
            expert.remove(example, row, image)

    def count(
        self, examples: Sequence[int], rows: Sequence[int], images: Tensor, labels: int
    ) -> None:
        """These examples and no others, as if they were all that ever came."""
        self.experts = self._make()
        for _ in range(labels):
            self.enter()
        self.add(examples, rows, list(images))

    def scores(
        self, images: Tensor, rows: Sequence[int], device: torch.device
    ) -> dict[str, Tensor]:
        """What each says [image, label]."""
        asked = self.experts.items()
        return {name: expert.scores(images, rows).to(device) for name, expert in asked}

    def left_out(
        self, images: Tensor, rows: Sequence[int], examples: Sequence[int]
    ) -> dict[str, Tensor]:
        """[example, row], of examples that were learned, each as if it had not been."""
        found = self.experts.items()
        return {name: expert.left_out(images, rows, examples) for name, expert in found}

    def answering(self) -> OtherExperts:
        """As they are now, for whoever only asks."""
        found = copy.copy(self)
        found.experts = copy.deepcopy(self.experts)
        return found

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {
            f"expert.{name}.{key}": value
            for name, expert in self.experts.items()
            for key, value in expert.state().items()
        }

    def restore(self, state: Mapping[str, Tensor], there: Sequence[str]) -> bool:
        """Back from `state`, which has experts by these names; False: one is not there."""
        if not set(self.names) <= set(there):
            return False
        for name, expert in self.experts.items():
            own = f"expert.{name}."
            expert.restore({k.removeprefix(own): t for k, t in state.items() if k.startswith(own)})
        return True


def refuse_names(names: Sequence[str], taken: Sequence[str]) -> None:
    """PartError for an expert that is called as another one is."""
    for at, name in enumerate(names):
        if name in taken or name in names[:at]:
            raise PartError(f"There is an expert {name!r} already: each has a name of its own.")
