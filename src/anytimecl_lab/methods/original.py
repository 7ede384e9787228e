"""The original model, which never learns: the reference for all methods."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from anytimecl.tail import TailInput
from anytimecl_lab.methods._base import Method


class Original(Method):
    """Zero-shot prediction."""

    online = True

    def learn(self, examples: Sequence[int]) -> None:
        """Do nothing."""

    def predict(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor:
        """Probabilities of the frozen tail."""
        images = self.world.image_vectors(self.world.tail, tokens)
        return self.world.logits(images, names).softmax(1)
