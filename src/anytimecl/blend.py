"""What the experts say of a batch of images, and how one answer is made of it.

The default is the pool (`pool.py`). The paper's blends, and some to compare with, give each label a
weight `alpha` for the tuned model,

    P(y) = alpha(y) * P_tuned(y) + (1 - alpha(y)) * P_original(y),

and `alpha` is 0 for a label never seen: such a label keeps exactly the original model's
probability. Their weights differ from label to label, so those values need not sum to one.

What is known about each model comes from examples scored just before they were learned. A blend of
your own: docs/extending.md.
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
ETA = 0.99  # memory of the estimates: about the last hundred examples of a label
POOL = "pool"


@dataclass
class LabelRecord:
    """How often each model was right about one label."""

    seen: int = 0
    tuned: float = 0.0  # estimated accuracy c_t
    original: float = 0.0  # estimated accuracy c_o

    def add(self, tuned: bool, original: bool, eta: float) -> None:
        """One more example: a plain mean at first, then an exponential moving average."""
        self.seen += 1
        # eta = 0.99 gives 1 / (1 - eta) = 99.99..., hence the rounding before the floor.
        plain = self.seen <= math.floor(round(1 / (1 - eta), 6))
        rate = 1 / self.seen if plain else 1 - eta
        self.tuned += rate * (tuned - self.tuned)
        self.original += rate * (original - self.original)


class Estimates:
    """What pre-update evidence says of both models, label by label.

    >>> estimates = Estimates()
    >>> estimates.add("cat", tuned=True, original=False)
    >>> estimates.of("cat").tuned, estimates.of("dog").seen
    (1.0, 0)
    """

    def __init__(self, eta: float = ETA) -> None:
        self.eta = eta
        self._labels: dict[str, LabelRecord] = {}

    def add(self, label: str, *, tuned: bool, original: bool) -> None:
        """An example of `label` was scored by both models, and not yet learned by either."""
        self._labels.setdefault(label, LabelRecord()).add(tuned, original, self.eta)

    def of(self, label: str) -> LabelRecord:
        """The record of a label; an empty one if it was never seen."""
        return self._labels.get(label, LabelRecord())

    def of_each(self, labels: Sequence[str]) -> list[LabelRecord]:
        """`of`, for each of these, as it is now."""
        return [replace(self.of(label)) for label in labels]

    def any_of(self, labels: Sequence[str]) -> bool:
        """Whether an example of any of these was learned."""
        return any(self.of(label).seen for label in labels)

    def forget(self, label: str) -> None:
        """The label was never seen."""
        self._labels.pop(label, None)

    def rename(self, label: str, to: str) -> None:
        """The label is called otherwise."""
        self._labels = {to if name == label else name: r for name, r in self._labels.items()}

    def state(self) -> dict[str, Any]:
        """As plain JSON values."""
        labels = {label: vars(record) for label, record in self._labels.items()}
        return {"eta": self.eta, "labels": labels}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Estimates:
        """Back from `state`; what older versions kept besides is left out."""
        estimates, known = cls(state["eta"]), {each.name for each in fields(LabelRecord)}
        estimates._labels = {
            name: LabelRecord(**{key: value for key, value in record.items() if key in known})
            for name, record in state["labels"].items()
        }
        return estimates


@dataclass(frozen=True)
class Opinions:
    """What is said of a batch of images, and what is known about whoever says it."""

    tuned: Tensor  # [image, label], probabilities
    original: Tensor  # [image, label]
    other: Tensor  # [image], the tuned model's probability of "none of these"
    records: Sequence[LabelRecord]  # [label]
    scores: Mapping[str, Tensor] = field(default_factory=dict)  # [image, label], of other experts
    weights: Mapping[str, float] = field(default_factory=lambda: START)  # in the pool
    typical: Tensor | None = None  # [label], the Gaussian expert's score of an image of that label
    copy: Tensor | None = None  # [image], probability that it is one that was taught
    copy_of: Tensor | None = None  # [image], and of which label
    by_text: Tensor | None = None  # [image, label], as `tuned`, of images beside texts alone
    familiar: Familiar | None = None  # what Gaussian scores tell of whether its label was taught

    @classmethod
    def of(
        cls,
        tuned: Tensor,  # [image, label], logits
        original: Tensor,  # [image, label], logits
        other: Tensor,  # [], the logit of "none of these"
        records: Sequence[LabelRecord],
        **said: Any,
    ) -> Opinions:
        """From logits."""
        with_other = torch.cat([tuned, other.expand(len(tuned), 1)], 1).softmax(1)
        return cls(tuned.softmax(1), original.softmax(1), with_other[:, -1], records, **said)

    @cached_property
    def seen(self) -> Tensor:
        """[label], whether any example of it was learned."""
        return torch.tensor([record.seen > 0 for record in self.records], device=self.tuned.device)

    def column(self, value: Callable[[LabelRecord], float]) -> Tensor:
        """A number per label, [label]."""
        return self.tuned.new_tensor([value(record) for record in self.records])

    def above(self) -> Tensor:
        """[image], the Gaussian expert's best score, less half of what is typical of that label.

        Over the labels seen. An image of one of them scores what is typical on average, one of a
        label never seen 0 at most: this is halfway.
        """
        assert self.typical is not None
        return (self.scores["gaussian"] - self.typical / 2)[:, self.seen].amax(1)

    def everyone(self) -> dict[str, Tensor]:
        """Log-scores [image, label] of every expert in the pool.

        The Gaussian expert's are less what is typical of the label: see docs/method.md.
        """
        tuned, original = (p.clamp_min(TINY).log() for p in (self.tuned, self.original))
        found = {"tuned": tuned, "original": original, **self.scores}
        if self.typical is not None:
            found["gaussian"] = found["gaussian"] - self.typical
        return found


def unlearned(original: Tensor, none_logit: float | None = None) -> Opinions:
    """What there is to say over labels [image, label], by logits, of which none was ever seen."""
    alone, none = original.softmax(1), with_none(original, none_logit)[1]
    return Opinions(alone, alone, none, [LabelRecord() for _ in range(original.shape[1])])


def pool(opinions: Opinions) -> Tensor:
    """The default: a log-linear pool of all experts among the labels seen, behind a gate."""
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
    """The pool's answer [image, label] where some of the labels were never seen."""
    counts = opinions.column(lambda record: record.seen)
    accuracies = opinions.column(lambda record: record.original)
    familiar = opinions.familiar
    ratio = None if familiar is None else familiar.ratio(opinions.above())
    # Only labels that were seen are compared by their images, too: of others texts know as much.
    tuned = opinions.tuned if opinions.by_text is None else opinions.by_text
    return gate(among, tuned, opinions.original, opinions.seen, counts, accuracies, ratio)


def none_of_these(opinions: Opinions) -> Tensor:
    """The probability [image] that it is of none of the labels that were taught.

    The Gaussian expert decides halfway (`Opinions.above`). The tuned model's "other" is heard too,
    each with its weight in the pool.
    """
    seen = opinions.seen
    if not seen.any():
        return opinions.other  # the original model's own, if it has one
    if "gaussian" not in opinions.scores or opinions.typical is None:
        return opinions.other
    other = opinions.other.clamp(1e-6, 1 - 1e-6).logit()
    odds = opinions.weights["tuned"] * other - opinions.weights["gaussian"] * opinions.above()
    none = odds.sigmoid()
    return none if opinions.copy is None else none * (1 - opinions.copy)


class Blend:
    """How one answer is made of opinions; a subclass says at least that.

    >>> class Loudest(Blend):
    ...     def __call__(self, opinions):
    ...         return torch.maximum(opinions.tuned, opinions.original)
    """

    hears_experts = True  # whether experts beside the two models are asked at all

    def __call__(self, opinions: Opinions) -> Tensor:
        """Probabilities [image, label]."""
        raise NotImplementedError

    def share(self, opinions: Opinions) -> Tensor:
        """The tuned model's weight: [label], or [image, label] where it depends on the image."""
        part = opinions.weights["tuned"] / sum(opinions.weights.values())
        return torch.where(opinions.seen, opinions.column(lambda record: part), 0.0)

    def speakers(self, opinions: Opinions, best: Tensor) -> list[str]:
        """Whose word weighs most in the answer [image]: an expert, for each image."""
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
    """The default: `pool`."""

    def __call__(self, opinions: Opinions) -> Tensor:
        """Probabilities [image, label]."""
        return pool(opinions)


class Mixture(Blend):
    """Of the two models alone, by the tuned one's weight; 0 for a label never seen."""

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
    """The blend itself; one without options is made once."""
    return _by_name(choice) if isinstance(choice, str) else BLENDS.make(choice)


def blend(choice: Choice[Blend], opinions: Opinions) -> Tensor:
    """Probabilities [image, label]."""
    return blend_of(choice)(opinions)


def weights(choice: Choice[Blend], opinions: Opinions) -> Tensor:
    """The tuned model's weight: [label], or [image, label] where it depends on the image."""
    return blend_of(choice).share(opinions)


def speakers(choice: Choice[Blend], opinions: Opinions, best: Tensor) -> list[str]:
    """Whose word weighs most in the answer [image]: an expert, for each image."""
    if not opinions.seen.any():
        return ["original"] * len(best)
    return blend_of(choice).speakers(opinions, best)


def ocw(opinions: Opinions) -> Tensor:
    """The paper's Online Class-wise Weighting: in proportion to the estimated accuracies."""
    tuned = opinions.column(lambda record: record.tuned)
    original = opinions.column(lambda record: record.original)
    return tuned / (tuned + original + EPSILON)


def ocw_other(opinions: Opinions) -> Tensor:
    """OCW with the tuned model's accuracy scaled by how sure it is that a label applies."""
    tuned = opinions.column(lambda record: record.tuned) * (1 - opinions.other.unsqueeze(1))
    original = opinions.column(lambda record: record.original)
    return tuned / (tuned + original + EPSILON)


def ocw_rounded(opinions: Opinions) -> Tensor:
    """OCW (0/1): one model or the other for each label."""
    return (ocw(opinions) > 0.5).to(opinions.tuned.dtype)


def aim(opinions: Opinions) -> Tensor:
    """AIM: the mass that the original model puts on seen labels, for each image."""
    mass = (opinions.original * opinions.seen).sum(1, keepdim=True)
    return mass.clamp(max=1.0)  # a sum of probabilities may end a rounding error above 1


def average(opinions: Opinions) -> Tensor:
    """Half each."""
    return opinions.column(lambda record: 0.5)


def tuned_only(opinions: Opinions) -> Tensor:
    """The tuned model alone, unseen labels included."""
    return opinions.column(lambda record: 1.0)


def original_only(opinions: Opinions) -> Tensor:
    """The original model alone."""
    return opinions.column(lambda record: 0.0)


BLENDS: Registry[Blend] = Registry(
    "blend",
    {
        POOL: Pool,
        "ocw": lambda: Mixture(ocw),
        "ocw_other": lambda: Mixture(ocw_other),
        "ocw_rounded": lambda: Mixture(ocw_rounded),
        "aim": lambda: Mixture(aim),
        "average": lambda: Mixture(average),
        # The one blend that speaks of labels it never saw: it is the comparison.
        "tuned": lambda: Mixture(tuned_only, unseen=True),
        "original": lambda: Mixture(original_only),
    },
)


@cache
def _by_name(name: str) -> Blend:
    return BLENDS.make(name)
