"""AnytimeCL, online: one step per example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from anytimecl.blend import ETA, Estimates, blend, none_of_these
from anytimecl.experts import Expert
from anytimecl.registry import Choice
from anytimecl.sampling import Sampler
from anytimecl.settings import LearnerConfig
from anytimecl.stream import StreamLearner
from anytimecl.tail import TailInput
from anytimecl_lab.methods._base import Method
from anytimecl_lab.methods._paper import (
    PaperStream,
    chosen,
    every_blend,
    inputs,
)
from anytimecl_lab.world import World


class Online(Method):
    """This project's method, as in `AnytimeClassifier`, with all blends evaluated in one run.

    `batch` keeps the ratio of learning rate to batch size, as in the paper's ablation. `etas` are
    further decay rates of the estimates, evaluated as "ocw eta=0.9" and so on; they need no runs of
    their own, since all estimates use the same scored examples. `imprint` is that of
    `LearnerConfig`, its default unless given. `paper` selects the paper's setting
    where this project's defaults differ: see `_paper.py`.
    """

    online = True

    def __init__(
        self,
        world: World,
        *,
        batch: int = 32,
        beta: float = 0.1,
        sampler: Choice[Sampler] = "class_balanced",
        experts: Sequence[Choice[Expert]] = (),
        tune: Literal["block", "classifier", "both"] = "block",
        imprint: float | None = None,
        paper: bool = False,
        etas: Sequence[float] = (),
    ) -> None:
        super().__init__(world)
        plain = LearnerConfig()
        if imprint is not None:
            plain = replace(plain, imprint=imprint)
        config = replace(
            plain, batch=batch, beta=beta, tune=tune, lr=plain.lr * batch / plain.batch
        )
        settings = chosen(config, world.seed, paper=paper, sampler=sampler, experts=experts)
        self.default = settings.name_of("blend")
        self.stream = (PaperStream if paper else StreamLearner)(
            *inputs(world, settings, paper=paper), prior=world.prior
        )
        self.etas = [Estimates(eta) for eta in etas]
        self.stream.model.estimates = _Shared(settings.eta, self.etas)

    def learn(self, examples: Sequence[int]) -> None:
        """One online step for each."""
        self.stream.learn(examples)

    def predict(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor:
        """The default blend."""
        return self.readings(tokens, names)[self.default]

    def readings(self, tokens: Tensor | TailInput, names: Sequence[str]) -> dict[str, Tensor]:
        """Every blend."""
        vectors = self.world.label_vectors(names)
        opinions = self.stream.opinions(tokens, names, vectors)
        read = every_blend(opinions)
        if not bool(opinions.seen.any()):  # all other readings are the original model's then
            unseen = torch.full((len(names),), -1, device=vectors.device)
            read["tuned"] = self.stream.learner.tuned_logits(tokens, vectors, unseen).softmax(1)
        for estimates in self.etas:
            records = [estimates.of(name) for name in names]
            other = replace(opinions, records=records)
            for name in (self.default, "ocw"):
                read[f"{name} eta={estimates.eta:g}"] = blend(name, other)
        if "gaussian" in opinions.scores:
            read["gaussian"] = opinions.scores["gaussian"].softmax(1)
        return read

    def none(self, tokens: Tensor | TailInput, names: Sequence[str]) -> Tensor:
        """Probabilities [image] of "none of these"."""
        vectors = self.world.label_vectors(names)
        return none_of_these(self.stream.opinions(tokens, names, vectors))


class _Shared(Estimates):
    """Estimates that forward every scored example to others."""

    def __init__(self, eta: float = ETA, others: Sequence[Estimates] = ()) -> None:
        super().__init__(eta)
        self._others = others

    def add(self, label: str, *, tuned: bool, original: bool) -> None:
        for estimates in self._others:
            estimates.add(label, tuned=tuned, original=original)
        super().add(label, tuned=tuned, original=original)
