"""The paper's setting where this project's default differs from it.

Cosines are scaled by 100 (Eq. 2), whatever the model's own scale is; "other" is a bias in logits
that begins at zero; every example is learned at the same rate; a tuned classifier is a free linear
layer that begins as the label vectors; predictions are weighed by OCW.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from anytimecl.acceleration import OnlineLearner
from anytimecl.backbone.spec import Spec
from anytimecl.blend import Opinions
from anytimecl.experts import Expert
from anytimecl.learner import shifted
from anytimecl.optimiser import Gradient
from anytimecl.registry import Choice
from anytimecl.sampling import Sampler
from anytimecl.settings import LearnerConfig, Settings
from anytimecl.stream import StreamLearner
from anytimecl.tail import Params
from anytimecl_lab.examples import Examples
from anytimecl_lab.world import World

SCALE = 100.0  # of cosines
BLEND = "ocw"
SAMPLER = "class_balanced"
SEEN = "tuned if all are seen"  # a reading: the simple rule of the paper's section on MTIL


Inputs = tuple[Spec, Params, Settings, Examples, Sequence[str], Mapping[str, Tensor]]  # of a stream


def scaled(spec: Spec) -> Spec:
    """The model at the paper's scale."""
    return replace(spec, logit_scale=SCALE)


def paper_config(config: LearnerConfig) -> LearnerConfig:
    """One scale for loss and answers, one rate for all examples."""
    return replace(config, scale=None, eager=0.0, imprint=0.0)


def chosen(
    config: LearnerConfig,
    seed: int,
    *,
    paper: bool,
    sampler: Choice[Sampler] = SAMPLER,
    experts: Sequence[Choice[Expert]] = (),
) -> Settings:
    """The settings of a stream, this project's or the paper's."""
    plain = Settings(seed=seed, sampler=sampler, learner=config, experts=tuple(experts))
    return replace(plain, learner=paper_config(config), blend=BLEND) if paper else plain


def inputs(world: World, settings: Settings, *, paper: bool) -> Inputs:
    """What a stream is made of."""
    spec = scaled(world.spec) if paper else world.spec
    return spec, world.tail, settings, world.examples, world.labels, world.vectors


class PaperLearner(OnlineLearner):
    """The tuned model as the paper has it; the optimiser's steps are those of `Learner`."""

    def begin(self, logit: float) -> None:
        """Nothing: "other" begins at zero."""

    def update(self, gradients: Mapping[str, Gradient], lr: Tensor, count: Tensor) -> None:
        """The step; that of "other", which is kept in units of a cosine, is one of its logit."""
        if "other" not in gradients:
            super().update(gradients, lr, count)
            return
        decayed = self.other * (1 - lr * self.config.weight_decay)
        super().update(gradients, lr, count)
        # AdamW's steps have one size whatever the unit is, so they are brought to the logit's.
        self.other.copy_(decayed + (self.other - decayed) / self.spec.logit_scale)

    def moved(self, vectors: Tensor, shifts: Tensor, rows: Tensor) -> Tensor:
        """[label, dim]; a tuned classifier's rows need not be of unit length.

        Kept as what was added to the vectors, so weight decay draws a row to where it began and not
        to zero: at the paper's rate a difference of half a per cent in ten thousand steps.
        """
        return shifted(vectors, shifts, rows) if len(shifts) else vectors


class PaperStream(StreamLearner):
    """A stream that such a model learns."""

    learner_type = PaperLearner


def if_all_seen(opinions: Opinions) -> Tensor:
    """The tuned model where it has met every candidate, the original model otherwise."""
    seen = all(record.seen for record in opinions.records)
    return opinions.tuned if seen else opinions.original
