"""Answers of several leaves as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.blend import Opinions, Record
from anytimecl.scale.leaf import Answer, image_vectors


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
