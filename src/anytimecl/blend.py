"""Two opinions, one answer: how the tuned and the original model share a prediction.

Every blend gives each label a weight `alpha` for the tuned model,

    P(y) = alpha(y) * P_tuned(y) + (1 - alpha(y)) * P_original(y),

and `alpha` is 0 for a label never seen: such a label keeps exactly the original model's
probability. The weights differ from label to label, so the blended values need not sum to one.
The default goes two steps further: the tuned model hears what images of each label look like, and
what is given to all seen labels together is gated.

What is known about each model comes from examples scored just before they were learned.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

EPSILON = 1e-8
TINY = 1e-30
ETA = 0.99  # memory of the estimates: about the last hundred examples of a label


@dataclass
class Record:
    """How often each model was right about one label, and how often it alone was."""

    seen: int = 0
    tuned: float = 0.0  # estimated accuracy c_t
    original: float = 0.0  # estimated accuracy c_o
    tuned_alone: float = 0.0  # examples that only the tuned model got right, fading
    original_alone: float = 0.0

    def add(self, tuned: bool, original: bool, eta: float) -> None:
        """One more example: a plain mean at first, then an exponential moving average."""
        self.seen += 1
        # eta = 0.99 gives 1 / (1 - eta) = 99.99..., hence the rounding before the floor.
        plain = self.seen <= math.floor(round(1 / (1 - eta), 6))
        rate = 1 / self.seen if plain else 1 - eta
        self.tuned += rate * (tuned - self.tuned)
        self.original += rate * (original - self.original)
        if tuned != original:
            self.tuned_alone = eta * self.tuned_alone + tuned
            self.original_alone = eta * self.original_alone + original


class Estimates:
    """What pre-update evidence says of both models, label by label and over all labels.

    >>> estimates = Estimates()
    >>> estimates.add("cat", tuned=True, original=False)
    >>> estimates.of("cat").tuned, estimates.of("dog").seen
    (1.0, 0)
    """

    def __init__(self, eta: float = ETA) -> None:
        self.eta = eta
        self.overall = Record()
        self._labels: dict[str, Record] = {}

    def add(self, label: str, *, tuned: bool, original: bool) -> None:
        """An example of `label` was scored by both models, and not yet learned by either."""
        for record in (self._labels.setdefault(label, Record()), self.overall):
            record.add(tuned, original, self.eta)

    def of(self, label: str) -> Record:
        """The record of a label; an empty one if it was never seen."""
        return self._labels.get(label, Record())

    def forget(self, label: str) -> None:
        """The label was never seen."""
        self._labels.pop(label, None)

    def state(self) -> dict[str, Any]:
        """As plain JSON values."""
        labels = {label: vars(record) for label, record in self._labels.items()}
        return {"eta": self.eta, "overall": vars(self.overall), "labels": labels}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Estimates:
        """Back from `state`."""
        estimates = cls(state["eta"])
        estimates.overall = Record(**state["overall"])
        estimates._labels = {name: Record(**record) for name, record in state["labels"].items()}
        return estimates


@dataclass(frozen=True)
class Opinions:
    """Both models on a batch of images, and what is known about each for these labels."""

    tuned: Tensor  # [image, label], probabilities
    original: Tensor  # [image, label]
    other: Tensor  # [image], the tuned model's probability of "none of these"
    records: Sequence[Record]  # [label]
    overall: Record
    votes: Tensor | None = None  # [image, label], logits: see `recall.py`

    @classmethod
    def of(
        cls,
        tuned: Tensor,  # [image, label], logits
        original: Tensor,  # [image, label], logits
        other: Tensor,  # [], the logit of "none of these"
        records: Sequence[Record],
        overall: Record,
        votes: Tensor | None = None,
    ) -> Opinions:
        """From logits."""
        with_other = torch.cat([tuned, other.expand(len(tuned), 1)], 1).softmax(1)
        none = with_other[:, -1]
        return cls(tuned.softmax(1), original.softmax(1), none, records, overall, votes)

    @property
    def seen(self) -> Tensor:
        """[label], whether any example of it was learned."""
        return torch.tensor([record.seen > 0 for record in self.records], device=self.tuned.device)

    def column(self, value: Callable[[Record], float]) -> Tensor:
        """A number per label, [label]."""
        return self.tuned.new_tensor([value(record) for record in self.records])


Weights = Callable[[Opinions], Tensor]  # [label] or [image, label]; unseen labels are zeroed after


def blend(name: str, opinions: Opinions) -> Tensor:
    """Probabilities [image, label]."""
    if name == "recalled":
        return blend("gated", recalled(opinions))
    alpha = weights(name, opinions)
    mixed = alpha * opinions.tuned + (1 - alpha) * opinions.original
    return gate(mixed, opinions) if name == "gated" else mixed


def weights(name: str, opinions: Opinions) -> Tensor:
    """The tuned model's weight: [label], or [image, label] where it depends on the image."""
    alpha = BLENDS[name](opinions)
    # "tuned" is the one blend that speaks of labels it never saw: it is the comparison.
    return alpha if name == "tuned" else torch.where(opinions.seen, alpha, 0.0)


def recalled(opinions: Opinions, kept: float = 0.1) -> Opinions:
    """The tuned model's opinion once it hears whose images look alike.

    A tenth of the original model's is `kept` in it: where that one is good, two see more than one.
    """
    if opinions.votes is None:
        return opinions
    tuned, original = (p.clamp_min(TINY).log() for p in (opinions.tuned, opinions.original))
    heard = (1 - kept) * tuned + kept * original + opinions.votes
    return dataclasses.replace(opinions, tuned=heard.softmax(1), votes=None)


def gate(mixed: Tensor, opinions: Opinions, many: float = 20.0, caution: float = 1.0) -> Tensor:
    """Share out among seen labels only what belongs to them, [image, label].

    Whoever learns many examples of some labels forgets that there are others: the tuned model
    comes to give the seen labels everything. With few examples each, its odds of seen against
    unseen labels are the better ones; with many, the original model's are, as far as it knows the
    label at all, and some `caution` towards the seen ones. Unseen labels keep what the original
    model gives them, so only its favourite among them can be answered: the odds are against that
    one, whatever else the tuned model would rather have named.
    """
    seen = opinions.seen
    if not seen.any():
        return mixed
    examples = opinions.column(lambda record: record.seen)[seen].mean()  # a label has
    learned = 1 - 1 / (1 + (examples / many) ** 2)  # from 0, a few, to 1, many
    knows = (2 * opinions.column(lambda record: record.original)).clamp(max=1.0)  # [label]
    trust = 1 - knows * learned  # in the tuned model's odds
    unseen = opinions.original * ~seen
    rival = unseen.argmax(1, keepdim=True)  # [image, 1]
    before, after = (_odds(p, seen, rival) for p in (opinions.original, opinions.tuned))
    odds = before + trust * (after - before) - caution * learned  # [image, label]
    best = unseen.gather(1, rival).clamp_min(TINY).log()
    # The rival keeps what it has, so this is what the odds leave to the seen labels.
    mass = (best + odds).clamp(max=0.0).exp()
    among_seen = mixed * seen / _total(mixed, seen)
    # Where that is enough to win, they may as well have what they are believed to have.
    wins = (mass * among_seen).amax(1, keepdim=True) >= best.exp()
    against_all = odds + best - _total(unseen, ~seen).log()
    mass = torch.where(wins, torch.maximum(mass, against_all.sigmoid()), mass)
    return torch.where(seen, mass * among_seen, opinions.original)


def _odds(probabilities: Tensor, seen: Tensor, rival: Tensor) -> Tensor:
    """Log-odds [image, 1] of all seen labels against one unseen label, if there is any."""
    of_rival = (probabilities * ~seen).gather(1, rival).clamp_min(TINY).log()
    return _total(probabilities, seen).log() - of_rival


def _total(probabilities: Tensor, labels: Tensor) -> Tensor:
    """[image, 1], never quite zero."""
    return (probabilities * labels).sum(1, keepdim=True).clamp_min(TINY)


def paired(opinions: Opinions, prior: float = 20.0, share: float = 10.0) -> Tensor:
    """The default's weights: trust whoever was right when the two disagreed.

    Examples on which both are right, or both wrong, say nothing about whom to trust. The rest are
    counted, per label and over all labels; the overall share, which starts `prior` to one for the
    tuned model (it begins as the original and takes small steps), stands in for `share` counts of
    each label. Cubing the odds makes the better model win where the evidence is clear.
    """
    t, o = opinions.overall.tuned_alone, opinions.overall.original_alone
    overall = (t + prior) / (t + o + prior + 1)
    tuned = opinions.column(lambda record: record.tuned_alone) + share * overall
    original = opinions.column(lambda record: record.original_alone) + share * (1 - overall)
    return tuned**3 / (tuned**3 + original**3)


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


BLENDS: dict[str, Weights] = {
    "recalled": paired,
    "gated": paired,
    "paired": paired,
    "ocw": ocw,
    "ocw_other": ocw_other,
    "ocw_rounded": ocw_rounded,
    "aim": aim,
    "average": average,
    "tuned": tuned_only,
    "original": original_only,
}
