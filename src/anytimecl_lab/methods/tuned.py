"""Stage-wise fine-tuning of the last block: lower bound, upper bound, and base of baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.settings import LearnerConfig
from anytimecl.tail import Params, TailInput
from anytimecl_lab.methods._base import Method
from anytimecl_lab.methods._batches import Schedule, train
from anytimecl_lab.methods._paper import SCALE
from anytimecl_lab.world import World


class Sequential(Method):
    """Sequential fine-tuning without replay: the lower bound.

    All fine-tuning baselines train the same block as AnytimeCL, with frozen label embeddings, over
    all labels seen so far, with the same logit scale in the loss and the same schedule.
    """

    def __init__(self, world: World, *, epochs: int = 32, batch: int = 256) -> None:
        super().__init__(world)
        self.schedule = Schedule(epochs=epochs, batch=batch)
        self.block = {n: v.clone() for n, v in world.tail.items() if n.startswith("layers.")}
        self.rows: dict[str, int] = {}  # labels seen, in order
        self.stages = 0
        self._soft = LearnerConfig().scale or world.spec.logit_scale

    def learn(self, examples: Sequence[int]) -> None:
        """Fine-tune on these examples."""
        self._meet(examples)
        self._train(examples)

    def predict(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor:
        """Probabilities of the tuned model alone."""
        with torch.no_grad():
            images = self.world.image_vectors(self._weights(), tokens)
        return self.world.logits(images, names).softmax(1)

    def _weights(self) -> Params:
        """The weights that predict."""
        return self._with(self.block)

    def _with(self, block: Params) -> Params:
        return {**self.world.tail, **block}

    def _meet(self, examples: Sequence[int]) -> None:
        for i in examples:
            self.rows.setdefault(self.world.labels[i], len(self.rows))
        self.stages += 1

    def _train(self, examples: Sequence[int]) -> None:
        seed = 1000 * self.world.seed + self.stages
        train(self.block, self._loss, examples, self.schedule, seed, self._after_step)

    def _after_step(self) -> None:
        """Hook for weight ensembles."""

    def _loss(self, leaves: Mapping[str, Tensor], chosen: list[int]) -> Tensor:
        """Cross-entropy over the seen labels."""
        images = self.world.image_vectors(self._with(leaves), self.world.take(chosen))
        return self._cross_entropy(images, chosen)

    def _cross_entropy(self, images: Tensor, chosen: list[int]) -> Tensor:
        rows = [self.rows[self.world.labels[i]] for i in chosen]
        target = torch.tensor(rows, device=images.device)
        return F.cross_entropy(self._logits(images, list(self.rows)), target)

    def _logits(self, images: Tensor, names: Sequence[str]) -> Tensor:
        """Logits with the scale of the loss."""
        return self._soft * images @ self.world.label_vectors(names).T


class Joint(Sequential):
    """Joint training on all examples of the run: the upper bound, not a continual learner."""

    def learn(self, examples: Sequence[int]) -> None:
        """Train on everything, once."""
        if not self.stages:
            super().learn(self.world.arriving)


class FineTune(Sequential):
    """The protocol of the paper's tables of codecs: ten epochs, batches of 32, constant rate 5e-6.

    Over all examples of a stage, decoded from their records; cosines times 100.
    """

    def __init__(
        self, world: World, *, epochs: int = 10, batch: int = 32, lr: float = 5e-6
    ) -> None:
        super().__init__(world, epochs=epochs, batch=batch)
        self.schedule = Schedule(epochs, batch, lr, least=lr, per_example=False)
        self._soft = SCALE


class Distilled(Sequential):
    """Fine-tuning with distillation from another model."""

    def __init__(
        self,
        world: World,
        *,
        weight: float = 1.0,
        temperature: float = 2.0,
        epochs: int = 32,
        batch: int = 256,
    ) -> None:
        super().__init__(world, epochs=epochs, batch=batch)
        self.weight, self.temperature = weight, temperature


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Cross-entropy to the teacher's softened probabilities; logits [image, label] of both.

    Multiplied by the squared temperature, to keep the gradients' scale (Hinton et al., 2015).
    """
    soft = (teacher / temperature).softmax(1)
    told = (student / temperature).log_softmax(1)
    return -(soft * told).sum(1).mean() * temperature**2
