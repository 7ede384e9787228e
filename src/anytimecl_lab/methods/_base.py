"""The interface of methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from anytimecl.tail import TailInput
from anytimecl_lab.world import World


class Method(ABC):
    """Learns the examples of a stage, and predicts over any labels at any time."""

    online: ClassVar[bool] = False  # learns example by example, not whole stages or tasks

    default: str = ""  # the reading used by default

    refused: float = 0.5  # above this value of `none` an image is rejected

    def __init__(self, world: World) -> None:
        self.world = world

    @abstractmethod
    def learn(self, examples: Sequence[int]) -> None:
        """Learn these examples of the world, in order."""

    @abstractmethod
    def predict(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor:
        """Scores [image, label] of a batch over these labels; the highest is the prediction."""

    def readings(self, tokens: Tensor | TailInput, names: Sequence[str]) -> dict[str, Tensor]:
        """Predictions of several variants of the same learned state, by name; mostly one."""
        return {self.default: self.predict(tokens, names)}

    def none(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor | None:
        """Scores [image] of "none of these"; None if the method does not predict it."""
        return None
