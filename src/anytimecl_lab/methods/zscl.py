"""In the style of ZSCL (Zheng et al., 2023): distillation and a weight ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from anytimecl_lab.methods.tuned import Distilled, distillation
from anytimecl_lab.world import World

WORDS = tuple((resources.files(__package__) / "words.txt").read_text(encoding="utf-8").splitlines())


class Zscl(Distilled):
    """Cross-entropy, distillation from the original model, weight ensemble.

    Distillation is of each image over the reference texts and of each text over the batch's images,
    with temperature 2 and weight 1. A stage ends with the mean of its weights over all steps, and
    the next one starts from there. Deviation, hence "in the style": ZSCL distils on 100,000
    external images and sentences; here only data of the run may be used, so the stage's images are
    the reference images, and 100 common nouns the reference texts.
    """

    def __init__(self, world: World, **options: Any) -> None:
        super().__init__(world, **options)
        self._words = [word for word in WORDS if word in world.vectors]  # a file may not have all

    def learn(self, examples: Sequence[int]) -> None:
        """Fine-tune, and keep the mean of the weights."""
        self._steps = 0
        self._mean = {name: value.clone() for name, value in self.block.items()}
        super().learn(examples)
        self.block = self._mean

    @torch.no_grad()
    def _after_step(self) -> None:
        self._steps += 1
        for name, mean in self._mean.items():
            mean.lerp_(self.block[name], 1 / (self._steps + 1))

    def _loss(self, leaves: Mapping[str, Tensor], chosen: list[int]) -> Tensor:
        images = self.world.image_vectors(self._with(leaves), self.world.take(chosen))
        original = self.world.original_vectors[torch.tensor(chosen, device=images.device)]
        told, teacher = (self._logits(each, self._words) for each in (images, original))
        kept = distillation(told, teacher, self.temperature)
        kept = kept + distillation(told.T, teacher.T, self.temperature)
        return self._cross_entropy(images, chosen) + self.weight * kept
