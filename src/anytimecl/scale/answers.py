"""Combines the predictions of several leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.blend import POOL, Opinions, unlearned
from anytimecl.classifier import LabelStats
from anytimecl.prediction import Prediction
from anytimecl.scale.leaf import LeafAnswer, image_vectors

T = TypeVar("T")


@dataclass(frozen=True)
class TreePrediction(Prediction):
    """A prediction, the leaves that made it, and those that could not be reached."""

    leaves: tuple[int, ...] = field(default=(), repr=False)
    missing: tuple[int, ...] = ()

    @property
    def degraded(self) -> bool:
        """Whether a relevant leaf could not be reached, so that its examples had no influence."""
        return bool(self.missing)


def mixed(answers: Sequence[LeafAnswer], weights: Tensor) -> LeafAnswer:
    """Weighted mean of leaves' answers, by weights [image, leaf]; a single one is unchanged.

    A label is seen if it is in one of them; its record is that of the leaf with most examples.
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
    opinions = Opinions(
        tuned=mean([answer.opinions.tuned for answer in answers]),
        original=mean([answer.opinions.original for answer in answers]),
        other=mean([answer.opinions.other for answer in answers]),
        records=records,
    )
    values = mean([answer.values for answer in answers])
    # The minimum: other leaves may have no example of the image's label.
    none = torch.stack([answer.none for answer in answers]).amin(0)
    nearest = weights.argmax(1).tolist()
    spoke = [answers[leaf].spoke[image] for image, leaf in enumerate(nearest)]
    return LeafAnswer(opinions, values, none, spoke)


def original_only(backbone: Backbone, tokens: Tensor, vectors: Tensor) -> LeafAnswer:
    """The original model's answer, if no leaf can be reached."""
    logits = backbone.spec.logit_scale * image_vectors(backbone, tokens) @ vectors.T
    return LeafAnswer.of(unlearned(logits, backbone.spec.none_logit), POOL)


def gathered(waiting: Mapping[int, Future[T]], patience: float) -> dict[int, T]:
    """Answers that arrived in time, by leaf."""
    answers = {}
    for leaf, future in waiting.items():
        with suppress(ConnectionError, TimeoutError):
            answers[leaf] = future.result(timeout=patience)
    return answers


def pooled(stats: Sequence[Mapping[str, LabelStats]]) -> dict[str, LabelStats]:
    """Statistics by label over leaves: examples summed, the rest averaged by examples.

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
