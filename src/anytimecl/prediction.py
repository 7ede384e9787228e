"""What a prediction says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from anytimecl.blend import Blend, Opinions, blend, none_of_these, speakers
from anytimecl.labels import NONE_OF_THESE
from anytimecl.registry import Choice

THRESHOLD = 0.5  # probability of "none of these" from which it is the answer


@dataclass(frozen=True)
class Prediction:
    """One image's answer over the labels that were asked about.

    Attributes
    ----------
    label
        The likeliest, or `NONE_OF_THESE`.
    probability
        Of `label`.
    probabilities
        By label, in the order asked. They sum to one if every label was taught, or none. Otherwise
        a label never taught has the original model's probability, and the taught ones what they
        earn.
    none_of_these
        Probability that no label fits; 0.0 where none was ever learned.
    tuned
        The tuned model's probabilities; empty where no label was ever learned.
    original
        The original model's.
    spoke
        The expert whose word weighs most in the likeliest label.

    Examples
    --------
    >>> p = Prediction("cat", 0.9, {"dog": 0.1, "cat": 0.9}, 0.0, {}, {"dog": 0.1, "cat": 0.9})
    >>> p.top(1)
    [('cat', 0.9)]
    """

    label: str
    probability: float
    probabilities: dict[str, float]
    none_of_these: float
    tuned: dict[str, float] = field(repr=False)
    original: dict[str, float] = field(repr=False)
    spoke: str = "original"

    def top(self, count: int) -> list[tuple[str, float]]:
        """The likeliest labels, best first.

        Parameters
        ----------
        count
            How many at most.

        Returns
        -------
        list of tuple
            (label, probability) each.
        """
        return sorted(self.probabilities.items(), key=lambda item: -item[1])[:count]


def predictions(
    asked: Sequence[str],
    opinions: Opinions,
    choice: Choice[Blend],
    threshold: float,
) -> list[Prediction]:
    """One for each image."""
    values = blend(choice, opinions)
    spoke = speakers(choice, opinions, values.argmax(1))
    return told(asked, opinions, values, none_of_these(opinions), spoke, opinions.seen, threshold)


def told(
    asked: Sequence[str],
    opinions: Opinions,
    values: Tensor,  # [image, label], blended
    none_of_them: Tensor,  # [image]
    spoke: Sequence[str],  # [image]
    seen: Tensor,  # [label], whether it was taught
    threshold: float,
) -> list[Prediction]:
    """The same, from what is known already."""
    best = values.argmax(1)
    learned = bool(seen.any())
    rows = zip(
        values.tolist(),
        best.tolist(),
        spoke,
        opinions.tuned.tolist(),
        opinions.original.tolist(),
        none_of_them.tolist(),
        seen[best].tolist(),
        strict=True,
    )
    made = []
    for blended, at, who, tuned, original, none, taught in rows:
        # A label never taught is not refused because the image is unlike those that were.
        none_wins = none > threshold and (taught or not learned)
        made.append(
            Prediction(
                label=NONE_OF_THESE if none_wins else asked[at],
                probability=none if none_wins else blended[at],
                probabilities=dict(zip(asked, blended, strict=True)),
                none_of_these=none,
                tuned=dict(zip(asked, tuned, strict=True)) if learned else {},
                original=dict(zip(asked, original, strict=True)),
                spoke=who,
            )
        )
    return made
