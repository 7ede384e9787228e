"""Learning without Forgetting (Li and Hoiem, 2016): distillation of old outputs on new images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anytimecl_lab.methods.tuned import Distilled, distillation
from anytimecl_lab.world import World


class LwF(Distilled):
    """Cross-entropy, plus distillation from the model before the stage over its seen labels.

    Temperature 2 and weight 1, as in the paper; no example is stored. Forced by the setting: old
    "heads" are the label embeddings of earlier stages. In the first stage there are none.
    """

    def __init__(self, world: World, **options: Any) -> None:
        super().__init__(world, **options)
        self._old: list[str] = []
        self._before: dict[str, Tensor] = {}

    def learn(self, examples: Sequence[int]) -> None:
        """Fine-tune with distillation from the model before this stage."""
        self._old = list(self.rows)
        self._before = {name: value.clone() for name, value in self.block.items()}
        super().learn(examples)

    def _loss(self, leaves: Mapping[str, Tensor], chosen: list[int]) -> Tensor:
        tokens = self.world.take(chosen)
        images = self.world.image_vectors(self._with(leaves), tokens)
        loss = self._cross_entropy(images, chosen)
        if not self._old:
            return loss
        with torch.no_grad():
            before = self.world.image_vectors(self._with(self._before), tokens)
        old, new = self._logits(before, self._old), self._logits(images, self._old)
        return loss + self.weight * distillation(new, old, self.temperature)
