"""Blends: how the experts' scores for a batch of images become one prediction.

The default is the pool (`pool.py`). The paper's blends, and some baselines, weight the tuned model
by `alpha` for each label,

    P(y) = alpha(y) * P_tuned(y) + (1 - alpha(y)) * P_original(y),

with `alpha` 0 for an unseen label, which keeps exactly the original model's probability. Weights
differ between labels, so these values need not sum to one.

Each model's accuracy is measured on examples just before they are learned (progressive
validation). Custom blends: docs/extending.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from anytimecl.backbone.zero_shot import with_none
from anytimecl.pool import START, TINY, Familiar, gate, pooled
from anytimecl.registry import Choice, Registry

EPSILON = 1e-8
ETA = 0.99  # decay of the running accuracies: about the last hundred examples of a label
POOL = "pool"


@dataclass
class LabelRecord:
    """Running accuracy of each model on one label."""

    seen: int = 0  # examples added
    tuned: float = 0.0  # estimated accuracy c_t
    original: float = 0.0  # estimated accuracy c_o

    def add(self, tuned: bool, original: bool, eta: float) -> None:
        """Add an example: a plain mean at first, then an exponential moving average."""
        self.seen += 1
        # eta = 0.99 gives 1 / (1 - eta) = 99.99..., hence the rounding before the floor.
        plain = self.seen <= math.floor(round(1 / (1 - eta), 6))
        rate = 1 / self.seen if plain else 1 - eta
        self.tuned += rate * (tuned - self.tuned)
        self.original += rate * (original - self.original)


class Estimates:
    """Running accuracies of both models by label, from predictions made before each update.

    >>> estimates = Estimates()
    >>> estimates.add("cat", tuned=True, original=False)
    >>> estimates.of("cat").tuned, estimates.of("dog").seen
    (1.0, 0)
    """

    def __init__(self, eta: float = ETA) -> None:
        self.eta = eta
        self._labels: dict[str, LabelRecord] = {}

    def add(self, label: str, *, tuned: bool, original: bool) -> None:
        """Add an example that was scored before it was learned: whether each model was right."""
        self._labels.setdefault(label, LabelRecord()).add(tuned, original, self.eta)

    def of(self, label: str) -> LabelRecord:
        """The record of a label; an empty one if it is unseen."""
        return self._labels.get(label, LabelRecord())

    def of_each(self, labels: Sequence[str]) -> list[LabelRecord]:
        """Copies of the records of these labels."""
        return [replace(self.of(label)) for label in labels]

    def any_of(self, labels: Sequence[str]) -> bool:
        """Whether any of these labels is seen."""
        return any(self.of(label).seen for label in labels)

    def forget(self, label: str) -> None:
        """Drop a label's record."""
        self._labels.pop(label, None)

    def rename(self, label: str, to: str) -> None:
        """Rename a label."""
        self._labels = {to if name == label else name: r for name, r in self._labels.items()}

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        labels = {label: vars(record) for label, record in self._labels.items()}
        return {"eta": self.eta, "labels": labels}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Estimates:
        """Restore from `state`; fields of older versions are ignored."""
        estimates, known = cls(state["eta"]), {each.name for each in fields(LabelRecord)}
        estimates._labels = {
            name: LabelRecord(**{key: value for key, value in record.items() if key in known})
            for name, record in state["labels"].items()
        }
        return estimates


@dataclass(frozen=True)
class Opinions:
    """Scores of each expert for a batch of images, with what blends need to combine them."""

    tuned: Tensor  # [image, label], probabilities
    original: Tensor  # [image, label], probabilities
    other: Tensor  # [image], the tuned model's probability of "other"
    records: Sequence[LabelRecord]  # [label]
    scores: Mapping[str, Tensor] = field(default_factory=dict)  # [image, label], other experts'
    weights: Mapping[str, float] = field(default_factory=lambda: START)  # in the pool, by expert
    typical: Tensor | None = None  # [label], T: expected Gaussian score of an image of the label
    copy: Tensor | None = None  # [image], k: probability that it is a learned image
    copy_of: Tensor | None = None  # [image], index of that image's label
    by_text: Tensor | None = None  # [image, label], as `tuned`, from text embeddings alone
    familiar: Familiar | None = None  # likelihood ratio of seen against unseen labels

    @classmethod
    def of(
        cls,
        tuned: Tensor,  # [image, label], logits
        original: Tensor,  # [image, label], logits
        other: Tensor,  # [], the logit of "other"
        records: Sequence[LabelRecord],
        **said: Any,
    ) -> Opinions:
        """From logits."""
        with_other = torch.cat([tuned, other.expand(len(tuned), 1)], 1).softmax(1)
        return cls(tuned.softmax(1), original.softmax(1), with_other[:, -1], records, **said)

    @cached_property
    def seen(self) -> Tensor:
        """Whether each label is seen, [label]."""
        return torch.tensor([record.seen > 0 for record in self.records], device=self.tuned.device)

    def column(self, value: Callable[[LabelRecord], float]) -> Tensor:
        """A value of each label's record, [label]."""
        return self.tuned.new_tensor([value(record) for record in self.records])

    def above(self) -> Tensor:
        """max over seen y of G(y) - T(y) / 2, [image].

        An image of y scores T(y) on average, an image of an unseen label at most 0: 0 is halfway.
        """
        assert self.typical is not None
        return (self.scores["gaussian"] - self.typical / 2)[:, self.seen].amax(1)

    def everyone(self) -> dict[str, Tensor]:
        """Log-scores [image, label] of each expert in the pool; `G - T` for the Gaussian expert."""
        tuned, original = (p.clamp_min(TINY).log() for p in (self.tuned, self.original))
        found = {"tuned": tuned, "original": original, **self.scores}
        if self.typical is not None:
            found["gaussian"] = found["gaussian"] - self.typical
        return found


def unlearned(original: Tensor, none_logit: float | None = None) -> Opinions:
    """From the original model's logits [image, label], where every label is unseen."""
    alone, none = original.softmax(1), with_none(original, none_logit)[1]
    return Opinions(alone, alone, none, [LabelRecord() for _ in range(original.shape[1])])


def pool(opinions: Opinions) -> Tensor:
    """Probabilities [image, label]: pool over the seen labels, gate, and instance expert."""
    seen = opinions.seen
    if not seen.any():
        return opinions.original
    said = opinions.everyone()
    values = pooled(list(said.values()), [opinions.weights[name] for name in said], seen)
    if not seen.all():
        values = _gated(opinions, values)
    if opinions.copy is None or opinions.copy_of is None:
        return values
    sure = opinions.copy.unsqueeze(1)
    taught = torch.zeros_like(values).scatter(1, opinions.copy_of.unsqueeze(1), sure)
    return torch.where(seen, (1 - sure) * values + taught, values)


def _gated(opinions: Opinions, among: Tensor) -> Tensor:
    """Probabilities [image, label] where some labels are unseen."""
    counts = opinions.column(lambda record: record.seen)
    accuracies = opinions.column(lambda record: record.original)
    familiar = opinions.familiar
    ratio = None if familiar is None else familiar.ratio(opinions.above())
    # The gate compares by texts alone: only seen labels have imprinted vectors.
    tuned = opinions.tuned if opinions.by_text is None else opinions.by_text
    return gate(among, tuned, opinions.original, opinions.seen, counts, accuracies, ratio)


def none_of_these(opinions: Opinions) -> Tensor:
    """Probability [image] that no candidate label fits.

    A weighted sum of log-odds: the Gaussian expert's (`Opinions.above`) and the tuned model's
    "other", each with its weight in the pool.
    """
    seen = opinions.seen
    if not seen.any():
        return opinions.other  # the original model's, if it has one
    if "gaussian" not in opinions.scores or opinions.typical is None:
        return opinions.other
    other = opinions.other.clamp(1e-6, 1 - 1e-6).logit()
    odds = opinions.weights["tuned"] * other - opinions.weights["gaussian"] * opinions.above()
    none = odds.sigmoid()
    return none if opinions.copy is None else none * (1 - opinions.copy)


class Blend:
    """Base of blends: combines the experts' scores; subclasses implement `__call__`.

    >>> class Loudest(Blend):
    ...     def __call__(self, opinions):
    ...         return torch.maximum(opinions.tuned, opinions.original)
    """

    hears_experts = True  # whether experts besides the two models are computed

    def __call__(self, opinions: Opinions) -> Tensor:
        """Probabilities [image, label]."""
        raise NotImplementedError

    def share(self, opinions: Opinions) -> Tensor:
        """The tuned model's weight: [label], or [image, label] where it depends on the image."""
        part = opinions.weights["tuned"] / sum(opinions.weights.values())
        return torch.where(opinions.seen, opinions.column(lambda record: part), 0.0)

    def speakers(self, opinions: Opinions, best: Tensor) -> list[str]:
        """For each image, the expert that contributed most to its label, `best` [image]."""
        at = best.unsqueeze(1)
        names, parts = [], []
        for expert, said in opinions.everyone().items():
            gain = said.gather(1, at)[:, 0] - said[:, opinions.seen].mean(1)
            names.append(expert)
            parts.append(opinions.weights[expert] * gain)
        loudest = torch.stack(parts).argmax(0).tolist()
        seen = opinions.seen[best].tolist()
        copies = [0.0] * len(best) if opinions.copy is None else opinions.copy.tolist()
        return [
            "original" if not known else "instance" if copy > 0.5 else names[who]
            for known, copy, who in zip(seen, copies, loudest, strict=True)
        ]


class Pool(Blend):
    """The default blend, `pool`."""

    def __call__(self, opinions: Opinions) -> Tensor:
        """Probabilities [image, label]."""
        return pool(opinions)


class Mixture(Blend):
    """Weighted mean of the two models' probabilities; weight 0 for unseen labels by default."""

    hears_experts = False

    def __init__(self, alpha: Callable[[Opinions], Tensor], *, unseen: bool = False) -> None:
        self._alpha, self._unseen = alpha, unseen

    def __call__(self, opinions: Opinions) -> Tensor:
        """Probabilities [image, label]."""
        alpha = self.share(opinions)
        return alpha * opinions.tuned + (1 - alpha) * opinions.original

    def share(self, opinions: Opinions) -> Tensor:
        """The tuned model's weight."""
        alpha = self._alpha(opinions)
        return alpha if self._unseen else torch.where(opinions.seen, alpha, 0.0)

    def speakers(self, opinions: Opinions, best: Tensor) -> list[str]:
        """The model with the larger weight."""
        alpha = self.share(opinions).expand_as(opinions.tuned).gather(1, best.unsqueeze(1))[:, 0]
        return ["tuned" if value > 0.5 else "original" for value in alpha.tolist()]


def blend_of(choice: Choice[Blend]) -> Blend:
    """Instantiate a blend; blends given by name alone are cached."""
    return _by_name(choice) if isinstance(choice, str) else BLENDS.make(choice)


def blend(choice: Choice[Blend], opinions: Opinions) -> Tensor:
    """Probabilities [image, label]."""
    return blend_of(choice)(opinions)


def weights(choice: Choice[Blend], opinions: Opinions) -> Tensor:
    """The tuned model's weight: [label], or [image, label] where it depends on the image."""
    return blend_of(choice).share(opinions)


def speakers(choice: Choice[Blend], opinions: Opinions, best: Tensor) -> list[str]:
    """For each image, the expert that contributed most to its label, `best` [image]."""
    if not opinions.seen.any():
        return ["original"] * len(best)
    return blend_of(choice).speakers(opinions, best)


def ocw(opinions: Opinions) -> Tensor:
    """The paper's Online Class-wise Weighting: in proportion to the running accuracies."""
    tuned = opinions.column(lambda record: record.tuned)
    original = opinions.column(lambda record: record.original)
    return tuned / (tuned + original + EPSILON)


def ocw_other(opinions: Opinions) -> Tensor:
    """OCW with the tuned model's accuracy scaled by 1 - P(other)."""
    tuned = opinions.column(lambda record: record.tuned) * (1 - opinions.other.unsqueeze(1))
    original = opinions.column(lambda record: record.original)
    return tuned / (tuned + original + EPSILON)


def ocw_rounded(opinions: Opinions) -> Tensor:
    """OCW (0/1): weights rounded, so that one model decides for each label."""
    return (ocw(opinions) > 0.5).to(opinions.tuned.dtype)


def aim(opinions: Opinions) -> Tensor:
    """AIM: the original model's mass on seen labels, for each image."""
    mass = (opinions.original * opinions.seen).sum(1, keepdim=True)
    return mass.clamp(max=1.0)  # a sum of probabilities may exceed 1 by rounding


def always(alpha: float) -> Callable[[Opinions], Tensor]:
    """The same weight for every label."""
    return lambda opinions: opinions.column(lambda record: alpha)


BLENDS: Registry[Blend] = Registry(
    "blend",
    {
        POOL: Pool,
        "ocw": lambda: Mixture(ocw),
        "ocw_other": lambda: Mixture(ocw_other),
        "ocw_rounded": lambda: Mixture(ocw_rounded),
        "aim": lambda: Mixture(aim),
        "average": lambda: Mixture(always(0.5)),
        # A baseline: the one blend that uses the tuned model for unseen labels.
        "tuned": lambda: Mixture(always(1.0), unseen=True),
        "original": lambda: Mixture(always(0.0)),
    },
)


@cache
def _by_name(name: str) -> Blend:
    return BLENDS.make(name)
