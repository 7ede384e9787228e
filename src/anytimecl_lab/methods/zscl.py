"""In the style of ZSCL (Zheng et al., 2023): distillation and a weight ensemble."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from anytimecl.tail import Params
from anytimecl_lab.methods.tuned import Distilled, distillation
from anytimecl_lab.world import World

WORDS = tuple((resources.files(__package__) / "words.txt").read_text(encoding="utf-8").splitlines())


class Zscl(Distilled):
    """Cross-entropy, distillation from the original model over reference texts, weight ensemble.

    Temperature 2 and weight 1. Predictions use the running mean of the weights over all steps.
    Deviation, hence "in the style": ZSCL distils on 100,000 external images and sentences; here
    only data of the run may be used, so the stage's images are the reference images, and 100 common
    nouns the reference texts.
    """

    def __init__(self, world: World, **options: Any) -> None:
        super().__init__(world, **options)
        self.ensemble = {name: value.clone() for name, value in self.block.items()}
        self._steps = 0
        self._words = [word for word in WORDS if word in world.vectors]  # a file may not have all

    def _weights(self) -> Params:
        return self._with(self.ensemble)

    @torch.no_grad()
    def _after_step(self) -> None:
        self._steps += 1
        for name, mean in self.ensemble.items():
            mean.lerp_(self.block[name], 1 / (self._steps + 1))

    def _loss(self, leaves: Mapping[str, Tensor], chosen: list[int]) -> Tensor:
        images = self.world.image_vectors(self._with(leaves), self.world.take(chosen))
        original = self.world.original_vectors[torch.tensor(chosen, device=images.device)]
        told, teacher = (self._logits(each, self._words) for each in (images, original))
        kept = distillation(told, teacher, self.temperature)
        return self._cross_entropy(images, chosen) + self.weight * kept
