"""Answers of several leaves as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.blend import Opinions, Record
from anytimecl.classifier import LabelStats
from anytimecl.prediction import Prediction
from anytimecl.scale.leaf import Answer, image_vectors


@dataclass(frozen=True)
class TreePrediction(Prediction):
    """A prediction, the leaves that made it, and those that should have but could not."""

    leaves: tuple[int, ...] = field(default=(), repr=False)
    missing: tuple[int, ...] = ()

    @property
    def degraded(self) -> bool:
        """Whether a leaf that matters was out of reach: what it learned had no say."""
        return bool(self.missing)


def mixed(answers: Sequence[Answer], weights: Tensor) -> Answer:
    """The mean of what leaves say, by their weights [image, leaf]; one leaf is left as it is.

    A label is known if one of them has seen it; its record is that of the leaf that saw it most.
    """
    if len(answers) == 1:
        return answers[0]
    weights = weights.to(answers[0].values)

    def mean(parts: Sequence[Tensor]) -> Tensor:
        shape = (-1, *[1] * (parts[0].ndim - 1))
        total = torch.zeros_like(parts[0])
        for part, weight in zip(parts, weights.T, strict=True):
            total += weight.view(shape) * part
        return total

    records = [
        max(of_label, key=lambda record: record.seen)
        for of_label in zip(*(answer.opinions.records for answer in answers), strict=True)
    ]
    opinions = dataclasses.replace(
        answers[0].opinions,
        tuned=mean([answer.opinions.tuned for answer in answers]),
        original=mean([answer.opinions.original for answer in answers]),
        other=mean([answer.opinions.other for answer in answers]),
        records=records,
        votes=None,
    )
    alpha = mean([answer.alpha.expand_as(answer.values) for answer in answers])
    return Answer(opinions, alpha, mean([answer.values for answer in answers]))


def original_only(backbone: Backbone, tokens: Tensor, vectors: Tensor) -> Answer:
    """What is left when no leaf can be reached: the model as it always was."""
    logits = backbone.spec.logit_scale * image_vectors(backbone, tokens) @ vectors.T
    original = logits.softmax(1)
    records = [Record() for _ in vectors]
    opinions = Opinions(original, original, original.new_zeros(len(original)), records, Record())
    return Answer(opinions, original.new_zeros(len(vectors)), original)


def gathered(
    waiting: dict[int, Future[Answer]], patience: float
) -> tuple[dict[int, Answer], tuple[int, ...]]:
    """The answers that came, and the leaves that did not answer."""
    answers, missing = {}, []
    for leaf, future in waiting.items():
        try:
            answers[leaf] = future.result(timeout=patience)
        except (ConnectionError, TimeoutError):
            missing.append(leaf)
    return answers, tuple(missing)


def pooled(stats: Sequence[Mapping[str, LabelStats]]) -> dict[str, LabelStats]:
    """What leaves know of their labels: examples summed, the rest the mean by their examples.

    >>> one, two = LabelStats(1, 0.0, 1.0, 0.5), LabelStats(3, 1.0, 0.0, 0.5)
    >>> pooled([{"cat": one}, {"cat": two}])
    {'cat': LabelStats(examples=4, tuned=0.75, original=0.25, weight=0.5)}
    """
    by_label: dict[str, list[LabelStats]] = {}
    for of_leaf in stats:
        for label, known in of_leaf.items():
            by_label.setdefault(label, []).append(known)
    found = {}
    for label, parts in by_label.items():
        count = sum(part.examples for part in parts)
        shares = [part.examples / count for part in parts]
        means = [
            sum(share * value for share, value in zip(shares, values, strict=True))
            for values in zip(*(part[1:] for part in parts), strict=True)
        ]
        found[label] = LabelStats(count, *means)
    return found
