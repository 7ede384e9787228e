"""The original model: never learns, and is what everything else is measured against."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from anytimecl.tail import TailInput
from anytimecl_lab.methods._base import Method


class Original(Method):
    """Zero-shot prediction."""

    online = True

    def learn(self, examples: Sequence[int]) -> None:
        """Nothing."""

    def predict(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor:
        """Probabilities of the frozen tail."""
        world = self.world
        images = world.image_vectors(world.tail, tokens)
        return (world.spec.logit_scale * images @ world.label_vectors(names).T).softmax(1)
