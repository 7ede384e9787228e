"""What a prediction says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from anytimecl.blend import Opinions

NONE_OF_THESE = "none of these"


@dataclass(frozen=True)
class Prediction:
    """One image's answer over the labels that were asked about.

    >>> p = Prediction("cat", 0.9, {"dog": 0.1, "cat": 0.9}, 0.0, {}, {"dog": 0.1, "cat": 0.9})
    >>> p.top(1)
    [('cat', 0.9)]
    """

    label: str  # the likeliest, or NONE_OF_THESE
    probability: float  # of `label`
    probabilities: dict[str, float]  # blended, in the order asked; they need not sum to one
    none_of_these: float  # the tuned model's mass on "other"; 0.0 where no label was ever learned
    tuned: dict[str, float] = field(repr=False)  # as it is; empty where no label was ever learned
    original: dict[str, float] = field(repr=False)
    spoke: Literal["tuned", "original"] = "original"  # whose word weighs more in the likeliest

    def top(self, count: int) -> list[tuple[str, float]]:
        """The likeliest labels, best first."""
        return sorted(self.probabilities.items(), key=lambda item: -item[1])[:count]


def predictions(
    asked: Sequence[str], opinions: Opinions, alpha: Tensor, values: Tensor, threshold: float
) -> list[Prediction]:
    """One for each image, from blended values [image, label] and the tuned model's weights."""
    learned = bool(opinions.seen.any())
    rows = zip(
        values.tolist(),
        alpha.expand_as(values).tolist(),
        opinions.tuned.tolist(),
        opinions.original.tolist(),
        opinions.other.tolist(),
        strict=True,
    )
    made = []
    for blended, weight, tuned, original, none in rows:
        best = max(range(len(asked)), key=blended.__getitem__)
        none_wins = none > threshold
        made.append(
            Prediction(
                label=NONE_OF_THESE if none_wins else asked[best],
                probability=none if none_wins else blended[best],
                probabilities=dict(zip(asked, blended, strict=True)),
                none_of_these=none,
                tuned=dict(zip(asked, tuned, strict=True)) if learned else {},
                original=dict(zip(asked, original, strict=True)),
                spoke="tuned" if weight[best] > 0.5 else "original",
            )
        )
    return made
