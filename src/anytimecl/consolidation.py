"""Consolidation: offline training over the whole memory, when there is idle time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

import torch
from torch import Tensor

from anytimecl.learner import Learner
from anytimecl.memory.contract import Progress
from anytimecl.optimiser import AdamW, Gradient
from anytimecl.trainer import Trainer

CHUNK = 256  # examples of an offline batch in RAM at once


class OfflineTrainer(Trainer):
    """A trainer that consolidates: several epochs of large batches, at a cosine learning rate."""

    @torch.no_grad()
    def consolidate(
        self,
        epochs: int,
        event: int,
        progress: Progress | None = None,
        done: Callable[[], object] = lambda: None,
    ) -> None:
        """Train over all examples stored before `event`, whose number is the seed.

        Trains a copy and swaps it in at the end, so that an interrupt changes nothing. `done` is
        called just before the swap.
        """
        # From the trainer's state: in a replay, the memory lacks examples that were removed later.
        ids = self.examples.ids(before=event)
        config = self.settings.learner
        size = min(config.offline_batch, len(ids))
        steps = epochs * -(-len(ids) // size) if ids else 0
        copy = self.learner_type(self.backbone.spec, self.backbone.tail, config)
        copy.restore(self.learner.state())
        if self.model.imprint is not None:
            copy.shifts = self.learner.shifts  # no step changes them
        optimiser = copy.fresh_optimiser()
        for number, chosen in enumerate(_epochs(ids, size, epochs, Random(event))):
            gradients = self._offline_gradients(chosen, copy)
            if not gradients:
                continue  # every record of the batch is damaged
            offline_step(copy, gradients, optimiser, number / steps, size)
            if progress is not None:
                progress(number + 1, steps)
        done()
        with self.lock.writing():
            self.learner.restore(copy.state())
            self.event = event

    def _offline_gradients(self, chosen: Sequence[int], learner: Learner) -> dict[str, Tensor]:
        """Mean gradient over an offline batch, in chunks."""
        total: dict[str, Tensor] = {}
        count = 0
        for start in range(0, len(chosen), CHUNK):
            stored = self.memory.stored(chosen[start : start + CHUNK])
            if not stored:
                continue
            for name, gradient in learner.look_ahead(self._batch(stored)).whole().items():
                total[name] = total.get(name, 0) + gradient * len(stored)
            count += len(stored)
        return {name: gradient / count for name, gradient in total.items()}


def offline_step(
    learner: Learner,
    gradients: Mapping[str, Gradient],
    optimiser: AdamW,
    progress: float,
    size: int,
) -> None:
    """A step with a batch of `size` examples, at `progress` (0 to 1) of the cosine schedule.

    The caller passes a fresh optimiser for each run: moments of online steps do not suit batches
    of thousands.
    """
    config = learner.config
    least = config.offline_least_lr
    lr = max(config.offline_lr * size / config.offline_batch, least)
    lr = least + (lr - least) * (1 + math.cos(math.pi * progress)) / 2
    optimiser.step(learner.trainable(), gradients, lr)


def _epochs(ids: list[int], size: int, epochs: int, random: Random) -> Iterator[list[int]]:
    for _ in range(epochs if ids else 0):
        order = random.sample(ids, len(ids))
        for start in range(0, len(order), size):
            yield order[start : start + size]
