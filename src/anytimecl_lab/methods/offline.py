"""AnytimeCL, offline: several epochs over all stored examples after each stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from anytimecl.evidence import Evidence
from anytimecl.loss import anytime_loss
from anytimecl.model import Model
from anytimecl.settings import LearnerConfig, Settings
from anytimecl.tail import TailInput
from anytimecl_lab.methods._base import Method
from anytimecl_lab.methods._batches import Schedule, train
from anytimecl_lab.methods._paper import (
    BLEND,
    PaperLearner,
    every_blend,
    paper_config,
    scaled,
)
from anytimecl_lab.world import World


class Offline(Method):
    """AnytimeCL, offline, with epochs suitable for small data sets and this project's blend.

    Estimates of accuracy need examples that the tuned model was not trained on, and the model
    before the stage does not know its new labels. So two models are trained, each without one half
    of the new examples, and evaluated on that half.
    """

    def __init__(self, world: World, *, epochs: int = 32, batch: int = 256) -> None:
        super().__init__(world)
        self.default = Settings().name_of("blend")
        self.model = Model(world.spec, world.tail, Settings(), world.prior)
        self.learner = self.model.learner
        self.schedule = Schedule(epochs=epochs, batch=batch)
        self.stored: list[int] = []
        self.rows = self.model.rows

    def learn(self, examples: Sequence[int]) -> None:
        """Score, store, then train on everything."""
        labels = self.world.labels
        for i in examples:
            if labels[i] not in self.rows:
                self.model.enter(labels[i], self.world.vectors[labels[i]])
        if not self.stored:
            first = self._logits(self.learner.original, examples[:1])[0]
            self.learner.begin(float(first[self.rows[labels[examples[0]]]]))
        self._score(examples)
        self.stored += examples
        self._take(self._trained(self.stored))

    def _take(self, trained: Mapping[str, Tensor]) -> None:
        for name, value in trained.items():
            self.learner.trainable()[name].copy_(value)

    def _evidence(
        self, asked: Sequence[int], tuned: Mapping[str, Tensor]
    ) -> Iterator[tuple[int, Tensor]]:
        """Embeddings of examples by weights that were not trained on them."""
        for start in range(0, len(asked), self.schedule.batch):
            some = asked[start : start + self.schedule.batch]
            images = self.world.image_vectors(tuned, self.world.take(some)).cpu()
            yield from zip(some, images, strict=True)

    def _trained(self, examples: Sequence[int]) -> dict[str, Tensor]:
        """The weights after training on these examples; the learner's are unchanged."""
        leaves = {name: value.clone() for name, value in self.learner.trainable().items()}
        train(leaves, self._loss, examples, self.schedule, self.world.seed + len(examples))
        return leaves

    def predict(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor:
        """The default blend."""
        return self.readings(tokens, names)[self.default]

    def readings(self, tokens: Tensor | TailInput, names: Sequence[str]) -> dict[str, Tensor]:
        """Every blend."""
        vectors = self.world.label_vectors(names)
        return every_blend(self.model.opinions(tokens, names, vectors))

    @torch.no_grad()
    def _score(self, examples: Sequence[int]) -> None:
        halves = list(examples[::2]), list(examples[1::2])
        right: dict[int, tuple[bool, bool]] = {}
        units: dict[int, Tensor] = {}
        for asked, learned in (halves, halves[::-1]):
            known = [*self.stored, *learned]
            tuned = {**self.learner.params, **(self._trained(known) if known else {})}
            right |= self._answers(asked, tuned)
            units |= self._evidence(asked, tuned)
        images = self.world.original_vectors[list(examples)].cpu()
        seen = [
            Evidence(len(self.stored) + at, self.world.labels[i], units[i], images[at - 1])
            for at, i in enumerate(examples, start=1)
        ]
        self.model.learned_many(seen, [right[i] for i in examples])

    def _answers(
        self, asked: Sequence[int], tuned: Mapping[str, Tensor]
    ) -> dict[int, tuple[bool, bool]]:
        """Whether the tuned and the original model are right about each example."""
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
        images = self.world.image_vectors(params, self.world.take(examples))
        return self.world.logits(images, list(self.rows))

    def _loss(self, leaves: Mapping[str, Tensor], chosen: list[int]) -> Tensor:
        config = self.learner.config
        own = self.world.spec.logit_scale
        soft = (config.scale or own) / own
        logits = self._logits({**self.learner.params, **leaves}, chosen)
        target = torch.tensor(
            [self.rows[self.world.labels[i]] for i in chosen], device=logits.device
        )
        return anytime_loss(soft * logits, soft * own * leaves["other"], target, config.beta)


class PaperOffline(Offline):
    """The paper's AnytimeCL (Offline): ten epochs in batches of 2,048 at 6e-4, scale 100, OCW.

    As in the text, new examples are scored by the model before the stage. A data set smaller than a
    batch is one batch, at the same rate.
    """

    def __init__(self, world: World, *, epochs: int = 10, batch: int = 2048) -> None:
        super().__init__(world, epochs=epochs, batch=batch)
        settings = Settings(learner=paper_config(LearnerConfig()), blend=BLEND)
        spec, self.default = scaled(world.spec), settings.name_of("blend")
        self.learner = PaperLearner(spec, world.tail, settings.learner)
        self.model = Model(spec, world.tail, settings, learner=self.learner)
        self.rows = self.model.rows
        plain = settings.learner
        self.schedule = Schedule(epochs, batch, plain.offline_lr, per_example=False)

    def _score(self, examples: Sequence[int]) -> None:
        right = self._answers(examples, self.learner.params)
        for i in examples:
            tuned, original = right[i]
            self.model.estimates.add(self.world.labels[i], tuned=tuned, original=original)

    def _trained(self, examples: Sequence[int]) -> dict[str, Tensor]:
        """As `Offline`; "other" is trained in logits."""
        leaves = {name: value.clone() for name, value in self.learner.trainable().items()}
        leaves["other"] *= self.learner.spec.logit_scale
        train(leaves, self._loss, examples, self.schedule, self.world.seed + len(examples))
        leaves["other"] /= self.learner.spec.logit_scale
        return leaves

    def _logits(self, params: Mapping[str, Tensor], examples: Sequence[int]) -> Tensor:
        images = self.world.image_vectors(params, self.world.take(examples))
        return self.learner.named(images, self.world.label_vectors(list(self.rows)))

    def _loss(self, leaves: Mapping[str, Tensor], chosen: list[int]) -> Tensor:
        logits = self._logits({**self.learner.params, **leaves}, chosen)
        rows = [self.rows[self.world.labels[i]] for i in chosen]
        target = torch.tensor(rows, device=logits.device)
        return anytime_loss(logits, leaves["other"], target, self.learner.config.beta)
