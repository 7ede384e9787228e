"""AnytimeCL, offline: some epochs over all stored examples after each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anytimecl.bench.methods._base import Method
from anytimecl.bench.methods._batches import Schedule, train
from anytimecl.bench.world import World
from anytimecl.blend import BLENDS, Estimates, blend
from anytimecl.learner import Learner, LearnerConfig
from anytimecl.loss import anytime_loss
from anytimecl.recall import Recall
from anytimecl.settings import Settings
from anytimecl.stream import opinions_of
from anytimecl.tail import Seen


class Offline(Method):
    """The paper's AnytimeCL (Offline), with the epochs that suit small sets: the paper has ten.

    What is known of the models must come from examples that the tuned one has not met, and a
    model from before the stage says nothing about labels that are new in it. So one is trained
    without each half of the newcomers, and asked about that half.
    """

    def __init__(self, world: World, *, epochs: int = 32, batch: int = 256) -> None:
        super().__init__(world)
        self.default = Settings().blend
        self.learner = Learner(world.spec, world.tail, LearnerConfig())
        self.estimates = Estimates()
        self.recall = Recall(world.spec.dim)
        self.schedule = Schedule(epochs=epochs, batch=batch)
        self.stored: list[int] = []
        self.rows: dict[str, int] = {}

    def learn(self, examples: Sequence[int]) -> None:
        """Score, store, train over everything."""
        labels = self.world.labels
        for i in examples:
            self.rows.setdefault(labels[i], len(self.rows))
        self.recall.make_room(len(self.rows))
        images = self.world.original_vectors[list(examples)].cpu()
        self.recall.add([self.rows[labels[i]] for i in examples], images)
        if not self.stored:
            first = self._logits(self.learner.original, examples[:1])[0]
            self.learner.begin(float(first[self.rows[labels[examples[0]]]]))
        self._score(examples)
        self.stored += examples
        for name, value in self._trained(self.stored).items():
            self.learner.trainable()[name].copy_(value)

    def _trained(self, examples: Sequence[int]) -> dict[str, Tensor]:
        """What training on these makes of the weights, which stay."""
        leaves = {name: value.clone() for name, value in self.learner.trainable().items()}
        train(leaves, self._loss, examples, self.schedule, self.world.seed + len(examples))
        return leaves

    def predict(self, tokens: Tensor | Seen, names: Sequence[str]) -> Tensor:
        """The default blend."""
        return self.readings(tokens, names)[self.default]

    def readings(self, tokens: Tensor | Seen, names: Sequence[str]) -> dict[str, Tensor]:
        """Every blend."""
        vectors = self.world.label_vectors(names)
        opinions = opinions_of(
            self.learner, self.estimates, self.recall, self.rows, tokens, names, vectors
        )
        return {name: blend(name, opinions) for name in BLENDS}

    @torch.no_grad()
    def _score(self, examples: Sequence[int]) -> None:
        halves = list(examples[::2]), list(examples[1::2])
        right: dict[int, tuple[bool, bool]] = {}
        for asked, learned in (halves, halves[::-1]):
            known = [*self.stored, *learned]
            tuned = {**self.learner.params, **(self._trained(known) if known else {})}
            right |= self._answers(asked, tuned)
        for i in examples:
            tuned_right, original_right = right[i]
            self.estimates.add(self.world.labels[i], tuned=tuned_right, original=original_right)

    def _answers(
        self, asked: Sequence[int], tuned: Mapping[str, Tensor]
    ) -> dict[int, tuple[bool, bool]]:
        """Whether the tuned and the original model are right about each."""
        right = {}
        for start in range(0, len(asked), self.schedule.batch):
            some = asked[start : start + self.schedule.batch]
            rows = [self.rows[self.world.labels[i]] for i in some]
            answers = [
                self._logits(params, some).argmax(1).tolist()
                for params in (tuned, self.learner.original)
            ]
            for i, row, its_tuned, its_original in zip(some, rows, *answers, strict=True):
                right[i] = its_tuned == row, its_original == row
        return right

    def _logits(self, params: Mapping[str, Tensor], examples: Sequence[int]) -> Tensor:
        world = self.world
        images = world.image_vectors(params, world.take(examples))
        return world.spec.logit_scale * images @ world.label_vectors(list(self.rows)).T

    def _loss(self, leaves: Mapping[str, Tensor], chosen: list[int]) -> Tensor:
        config = self.learner.config
        own = self.world.spec.logit_scale
        soft = (config.scale or own) / own
        logits = self._logits({**self.learner.params, **leaves}, chosen)
        target = torch.tensor(
            [self.rows[self.world.labels[i]] for i in chosen], device=logits.device
        )
        return anytime_loss(soft * logits, soft * own * leaves["other"], target, config.beta)
