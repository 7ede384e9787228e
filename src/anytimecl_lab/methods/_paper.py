"""The paper's setting, where this project's defaults differ.

The logit scale is 100 (Eq. 2) for every model; "other" is a logit initialised with zero; the
learning rate is constant; a tuned classifier is a linear layer initialised with the label
embeddings; the blend is OCW.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from anytimecl.acceleration import OnlineLearner
from anytimecl.backbone.spec import Spec
from anytimecl.blend import BLENDS, Opinions, blend
from anytimecl.experts import Expert
from anytimecl.learner import shifted
from anytimecl.optimiser import Gradient
from anytimecl.registry import Choice
from anytimecl.sampling import Sampler
from anytimecl.settings import LearnerConfig, Settings
from anytimecl.stream import StreamLearner
from anytimecl.tail import Params
from anytimecl_lab.examples import Examples
from anytimecl_lab.scenarios import SEEN
from anytimecl_lab.world import World

SCALE = 100.0  # of cosines
BLEND = "ocw"
SAMPLER = "class_balanced"


Inputs = tuple[Spec, Params, Settings, Examples, Sequence[str], Mapping[str, Tensor]]  # of a stream


def scaled(spec: Spec) -> Spec:
    """The model with the paper's logit scale."""
    return replace(spec, logit_scale=SCALE)


def paper_config(config: LearnerConfig) -> LearnerConfig:
    """The same scale in loss and predictions, and a constant learning rate."""
    return replace(config, scale=None, eager=0.0, imprint=0.0)


def chosen(
    config: LearnerConfig,
    seed: int,
    *,
    paper: bool,
    sampler: Choice[Sampler] = SAMPLER,
    experts: Sequence[Choice[Expert]] = (),
) -> Settings:
    """Settings of a stream, this project's or the paper's."""
    plain = Settings(seed=seed, sampler=sampler, learner=config, experts=tuple(experts))
    return replace(plain, learner=paper_config(config), blend=BLEND) if paper else plain


def inputs(world: World, settings: Settings, *, paper: bool) -> Inputs:
    """Constructor arguments of a stream."""
    spec = scaled(world.spec) if paper else world.spec
    return spec, world.tail, settings, world.examples, world.labels, world.vectors


class PaperLearner(OnlineLearner):
    """The paper's tuned model; optimiser steps are those of `Learner`."""

    def begin(self, logit: float) -> None:
        """No-op: "other" is initialised with zero."""

    def update(self, gradients: Mapping[str, Gradient], lr: Tensor, count: Tensor) -> None:
        """AdamW step, with that of "other" in units of its logit instead of a cosine."""
        if "other" not in gradients:
            super().update(gradients, lr, count)
            return
        decayed = self.other * (1 - lr * self.config.weight_decay)
        super().update(gradients, lr, count)
        # AdamW's step size does not depend on the unit, so it is rescaled to the logit's.
        self.other.copy_(decayed + (self.other - decayed) / self.spec.logit_scale)

    def moved(self, vectors: Tensor, shifts: Tensor, rows: Tensor) -> Tensor:
        """Label vectors [label, dim]; a tuned classifier's rows need not be of unit length.

        Stored as differences from the text embeddings, so weight decay pulls a row to its initial
        value instead of zero: at the paper's rate, by half a per cent in ten thousand steps.
        """
        return shifted(vectors, shifts, rows) if len(shifts) else vectors


class PaperStream(StreamLearner):
    """A stream with the paper's learner."""

    learner_type = PaperLearner


def every_blend(opinions: Opinions) -> dict[str, Tensor]:
    """Every blend, and the simple rule."""
    return {name: blend(name, opinions) for name in BLENDS} | {SEEN: if_all_seen(opinions)}


def if_all_seen(opinions: Opinions) -> Tensor:
    """The tuned model if every candidate is seen, else the original model."""
    seen = all(record.seen for record in opinions.records)
    return opinions.tuned if seen else opinions.original
