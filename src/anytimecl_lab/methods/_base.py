"""The one small interface of every method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from anytimecl.tail import TailInput
from anytimecl_lab.world import World


class Method(ABC):
    """Learns the examples of a stage, and answers over any labels at any time."""

    online: ClassVar[bool] = False  # learns every example as it comes, not a whole stage or task

    default: str = ""  # which of its readings is the answer

    refused: float = 0.5  # an image is none of the labels where `none` is above this

    def __init__(self, world: World) -> None:
        self.world = world

    @abstractmethod
    def learn(self, examples: Sequence[int]) -> None:
        """These examples of the world arrive, in this order."""

    @abstractmethod
    def predict(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor:
        """Scores [image, label] of a batch over these labels; the highest is the answer."""

    def readings(self, tokens: Tensor | TailInput, names: Sequence[str]) -> dict[str, Tensor]:
        """Several ways to read the same learned state, by name; most methods have one."""
        return {self.default: self.predict(tokens, names)}

    def none(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor | None:
        """[image], how much each is none of these labels; None: the method has no say in it."""
        return None
