"""Predictions, from scores of the experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from anytimecl.blend import Blend, Opinions, blend, none_of_these, speakers
from anytimecl.labels import NONE_OF_THESE
from anytimecl.registry import Choice

THRESHOLD = 0.5  # probability of "none of these" above which it is predicted


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image over the candidate labels.

    Attributes
    ----------
    label
        The most probable label, or `NONE_OF_THESE`.
    probability
        Of `label`.
    probabilities
        By label, in the order given. They sum to one if every label is seen, or none is. Otherwise
        an unseen label has the original model's probability, and the seen ones share the mass that
        the pool's gate gives them.
    none_of_these
        Probability that no label fits. If no label is seen: the original model's own, else 0.0.
    tuned
        The tuned model's probabilities; empty if no label is seen.
    original
        The original model's.
    spoke
        The expert that contributed most to the predicted label.

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
        """The most probable labels, best first.

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
    if isinstance(threshold, str | None) or not 0 <= threshold <= 1:
        raise ValueError(f"The threshold lies between 0 and 1, and is not {threshold!r}.")
    values = blend(choice, opinions)
    spoke = speakers(choice, opinions, values.argmax(1))
    return told(asked, opinions, values, none_of_these(opinions), spoke, opinions.seen, threshold)


def told(
    asked: Sequence[str],
    opinions: Opinions,
    values: Tensor,  # [image, label], blended
    none_of_them: Tensor,  # [image]
    spoke: Sequence[str],  # [image]
    seen: Tensor,  # [label]
    threshold: float,
) -> list[Prediction]:
    """The same from a blend that was computed already."""
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
        # "None of these" tests against the images of seen labels: an unseen label may still win.
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
