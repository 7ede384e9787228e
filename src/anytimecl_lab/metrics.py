"""Metrics from accuracies, in per cent.

A matrix has a row for every training stage and a column for every task, in the order of learning:
`matrix[i][j]` is the accuracy on task j after learning tasks 0 to i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Matrix = Sequence[Sequence[float]]


def transfer(matrix: Matrix) -> float:
    """Transfer: mean accuracy on tasks before they are learned.

    >>> transfer([[80, 40, 30], [79, 85, 50], [78, 84, 90]])
    40.0
    """
    values = _square(matrix)
    return float(np.mean([values[:task, task].mean() for task in range(1, len(values))]))


def average(matrix: Matrix) -> float:
    """Mean accuracy on all tasks at all stages."""
    return float(_square(matrix).mean())


def last(matrix: Matrix) -> float:
    """Mean accuracy on all tasks after the last stage."""
    return float(_square(matrix)[-1].mean())


def forgetting(matrix: Matrix) -> float:
    """Forgetting: mean over all tasks but the last of the best minus the final accuracy.

    >>> forgetting([[80, 0], [70, 90]])
    10.0
    """
    values = _square(matrix)
    tasks = range(len(values) - 1)
    return float(np.mean([values[task:, task].max() - values[-1, task] for task in tasks]))


def calibration_error(confidence: Sequence[float], right: Sequence[bool], bins: int = 15) -> float:
    """Expected calibration error, from 0 to 1, with bins of equal width.

    >>> calibration_error([0.9, 0.9, 0.6, 0.6], [True, True, True, False])
    0.1
    """
    sure, correct = np.asarray(confidence, float), np.asarray(right, float)
    at = np.clip(np.ceil(sure * bins).astype(int) - 1, 0, bins - 1)
    gap = np.bincount(at, sure - correct, bins)  # per bin: size times difference of means
    return float(round(np.abs(gap).sum() / len(sure), 12))


def auroc(own: Sequence[float], foreign: Sequence[float]) -> float:
    """Area under the ROC curve of foreign against own scores.

    >>> auroc([0.1, 0.4], [0.4, 0.8])
    0.875
    """
    low = np.sort(np.asarray(own, float))
    below = np.searchsorted(low, foreign, "left") + np.searchsorted(low, foreign, "right")
    return float(below.mean() / (2 * len(low)))


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds."""

    mean: float
    deviation: float  # 0 if there is only one seed (`count`)
    count: int

    def __str__(self) -> str:
        """The form used in tables."""
        return f"{self.mean:.1f}" if self.count < 2 else f"{self.mean:.1f} ± {self.deviation:.1f}"


def spread(values: Sequence[float]) -> Spread:
    """Mean and spread.

    >>> str(spread([79.0, 80.0, 81.0])), str(spread([79.04]))
    ('80.0 ± 1.0', '79.0')
    """
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Spread(float(np.mean(values)), deviation, len(values))


def _square(matrix: Matrix) -> np.ndarray:
    values = np.asarray(matrix, float)
    if values.ndim != 2 or values.shape[0] != values.shape[1] or len(values) < 2:
        raise ValueError(
            "A matrix of accuracies has a row for each stage and a column for each task, at least "
            f"two, and not the shape {values.shape}."
        )
    return values
