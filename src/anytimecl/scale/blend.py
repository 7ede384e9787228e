"""Any number of opinions, one answer: the blend of two models, for as many as there are.

The original model comes first; it answers for labels that no other model has seen. Every other
model (tuned CLIP, tuned DINOv2, a scorer of the user's own) gets a weight for each label,

    P(y) = sum over the others of alpha_m(y) * P_m(y)  +  (1 - their sum) * P_original(y),

from how often it was right about that label, just before it learned each example. With two models
`ocw` is `anytimecl.blend`'s OCW bit for bit, and `gated` its `gated`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anytimecl import blend as pair
from anytimecl.blend import EPSILON, ETA, TINY

PRIOR = 20.0  # to one: trust in a model that began as the original, before any evidence
SHARE = 10.0  # examples of a label that the evidence over all labels stands for
SHARPNESS = 3.0


@dataclass
class Mark:
    """How often one model was right, and how often it was when not all were."""

    seen: int = 0
    right: float = 0.0  # estimated accuracy
    alone: float = 0.0  # examples that divided the models and that it got right, fading

    def add(self, right: bool, eta: float) -> None:
        """A plain mean at first, then an exponential moving average."""
        self.seen += 1
        plain = self.seen <= math.floor(round(1 / (1 - eta), 6))
        rate = 1 / self.seen if plain else 1 - eta
        self.right += rate * (right - self.right)


class Estimates:
    """What evidence from before each update says of every model, by label and over all labels.

    >>> estimates = Estimates(["original", "tuned", "dino"])
    >>> estimates.add("cat", {"original": False, "tuned": True, "dino": True})
    >>> [mark.right for mark in estimates.of("cat")], estimates.of("cat")[1].alone
    ([0.0, 1.0, 1.0], 0.5)
    """

    def __init__(self, models: Sequence[str], eta: float = ETA) -> None:
        if len(models) < 2 or len(set(models)) < len(models):
            raise ValueError(f"A blend has at least two models, each with its name: {models!r}.")
        self.models = tuple(models)
        self.eta = eta
        self.overall = self._blank()
        self._labels: dict[str, list[Mark]] = {}

    def add(self, label: str, right: Mapping[str, bool]) -> None:
        """An example of `label` was scored by these models, before any of them learned it."""
        divided = len(set(right.values())) > 1
        share = 1 / max(1, sum(right.values()))
        for marks in (self._labels.setdefault(label, self._blank()), self.overall):
            for model, mark in zip(self.models, marks, strict=True):
                if model in right:
                    mark.add(right[model], self.eta)
                if divided:
                    mark.alone = self.eta * mark.alone + share * right.get(model, False)

    def of(self, label: str) -> list[Mark]:
        """[model]; blank marks for a label never seen."""
        return self._labels.get(label) or self._blank()

    def _blank(self) -> list[Mark]:
        return [Mark() for _ in self.models]

    def state(self) -> dict[str, Any]:
        """As plain JSON values."""
        plain = {name: [vars(mark) for mark in marks] for name, marks in self._labels.items()}
        overall = [vars(mark) for mark in self.overall]
        return {"models": self.models, "eta": self.eta, "overall": overall, "labels": plain}

    @classmethod
    def restored(cls, state: Mapping[str, Any], models: Sequence[str]) -> Estimates:
        """Back from `state`; a model that joined since starts without evidence."""
        estimates = cls(models, state["eta"])

        def marks(rows: Sequence[Mapping[str, Any]]) -> list[Mark]:
            known = dict(zip(state["models"], rows, strict=True))
            return [Mark(**known.get(model, {})) for model in models]

        estimates.overall = marks(state["overall"])
        estimates._labels = {name: marks(rows) for name, rows in state["labels"].items()}
        return estimates


@dataclass(frozen=True)
class Panel:
    """All models on a batch of images, and what is known of each for these labels."""

    probabilities: Sequence[Tensor]  # [model] of [image, label]; the original model's first
    marks: Sequence[Sequence[Mark]]  # [label][model]
    overall: Sequence[Mark]  # [model]
    softness: float = 1.0  # temperature at which seen labels are weighed; see `softness`

    @property
    def seen(self) -> Tensor:
        """[label], whether any model has learned an example of it."""
        known = [any(mark.seen for mark in marks) for marks in self.marks]
        return torch.tensor(known, device=self.probabilities[0].device)

    def column(self, value: Callable[[Mark], float]) -> Tensor:
        """A number for each model and label, [model, label]."""
        rows = [[value(mark) for mark in marks] for marks in self.marks]
        return self.probabilities[0].new_tensor(rows).T


def blend(name: str, panel: Panel) -> Tensor:
    """Probabilities [image, label]."""
    alpha = weights(name, panel)
    soft = [_softened(p, panel.softness if name == "gated" else 1.0) for p in panel.probabilities]
    original, *others = soft
    mixed: Tensor = _total([a * p for a, p in zip(alpha, others, strict=True)])
    mixed = mixed + (1 - _total(alpha)) * original
    return gate(mixed, alpha, panel) if name == "gated" else mixed


def softness(logit_scale: float, loss_scale: float | None) -> float:
    """The temperature that takes a model's answers back to the scale at which it learned.

    At the scale of its answers a tuned model is too sure: with two models the better one wins
    anyway, with three the surest would outvote the other two.
    """
    return logit_scale / (loss_scale or logit_scale)


def _softened(probabilities: Tensor, temperature: float) -> Tensor:
    if temperature == 1.0:
        return probabilities
    return (probabilities.clamp_min(TINY).log() / temperature).softmax(1)


def weights(name: str, panel: Panel) -> Tensor:
    """[model but the first, label]; what is left of one belongs to the original model."""
    return torch.where(panel.seen, BLENDS[name](panel), 0.0)


def ocw(panel: Panel) -> Tensor:
    """Each model in proportion to its estimated accuracy."""
    right = panel.column(lambda mark: mark.right)  # [model, label]
    others: Tensor = right[1:]
    return others / (_total(others) + right[0] + EPSILON)


def shared(panel: Panel) -> Tensor:
    """The default's weights: trust whoever was right when the models were divided.

    An example on which all are right, or none, says nothing about whom to trust. Of the rest, the
    models that were right share one count. The shares over all labels stand in for `SHARE` counts
    of each label; they start `PRIOR` to one for a model that the others had to teach nothing.
    """
    start = [1.0] + [PRIOR] * (len(panel.overall) - 1)
    counts = [mark.alone + prior for mark, prior in zip(panel.overall, start, strict=True)]
    overall = panel.probabilities[0].new_tensor(counts) / sum(counts)
    alone = panel.column(lambda mark: mark.alone) + SHARE * overall.unsqueeze(1)
    sharp: Tensor = alone**SHARPNESS
    return sharp[1:] / sharp.sum(0)


def gate(mixed: Tensor, alpha: Tensor, panel: Panel) -> Tensor:
    """The gate of two models, with all that learned in the place of the tuned one."""
    original, *others = panel.probabilities
    share = alpha.mean(1) / alpha.mean(1).sum().clamp_min(TINY)  # [model but the first]
    learned = _total([part * p for part, p in zip(share, others, strict=True)])
    records = [
        pair.Record(seen=max(mark.seen for mark in marks), original=marks[0].right)
        for marks in panel.marks
    ]
    silent = original.new_zeros(len(original))
    return pair.gate(mixed, pair.Opinions(learned, original, silent, records, pair.Record()))


def _total(parts: Sequence[Tensor] | Tensor) -> Tensor:
    """Their sum, in their order: with one part it is that part, bit for bit."""
    first, *rest = parts
    for part in rest:
        first = first + part
    return first


def average(panel: Panel) -> Tensor:
    """All alike."""
    count = len(panel.probabilities)
    return panel.column(lambda mark: 1 / count)[1:]


BLENDS: dict[str, Callable[[Panel], Tensor]] = {
    "gated": shared,
    "shared": shared,
    "ocw": ocw,
    "average": average,
}
