"""Statistics of each label: how many examples, how accurate both models are, and who counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from anytimecl.blend import Blend, Opinions, weights
from anytimecl.model import Model
from anytimecl.registry import Choice


class LabelStats(NamedTuple):
    """Statistics of one label.

    Attributes
    ----------
    examples
        Number of stored examples.
    tuned
        Running accuracy of the tuned model, on examples scored before they were learned.
    original
        Running accuracy of the original model.
    weight
        Weight of the tuned model in the blend.

    Examples
    --------
    >>> LabelStats(examples=3, tuned=1.0, original=0.5, weight=0.4).examples
    3
    """

    examples: int
    tuned: float
    original: float
    weight: float


def label_stats(
    counts: Mapping[str, int], model: Model, blend: Choice[Blend]
) -> dict[str, LabelStats]:
    """Statistics of these labels, from their numbers of examples."""
    if not counts:
        return {}
    even = torch.full((1, len(counts)), 1 / len(counts))
    records = model.estimates.of_each(list(counts))
    opinions = Opinions(even, even, torch.zeros(1), records, weights=model.weights)
    alpha = weights(blend, opinions).expand(1, -1)[0].tolist()
    return {
        label: LabelStats(count, record.tuned, record.original, weight)
        for (label, count), record, weight in zip(counts.items(), records, alpha, strict=True)
    }
