"""Metrics against the paper's own tables, and against small matrices by hand."""

from __future__ import annotations

import numpy as np
import pytest

from anytimecl_lab import metrics

# The supplement's table of AnytimeCL online on MTIL, order I; rows are stages, columns tasks.
ZERO_SHOT = [0, 87.90, 68.22, 45.32, 54.61, 71.43, 88.86, 59.45, 89.07, 64.61, 64.05]
LEARNED = [
    [44.85],
    [50.50, 96.60],
    [52.45, 96.89, 82.23],
    [52.42, 96.66, 83.03, 69.63],
    [52.78, 96.77, 83.57, 75.64, 94.46],
    [53.59, 96.83, 83.52, 74.95, 95.59, 87.84],
    [54.04, 96.77, 83.6, 75.11, 96.63, 92.83, 91.36],
    [54.40, 96.49, 83.77, 75.32, 96.19, 93.23, 91.60, 98.51],
    [55.12, 96.43, 83.54, 75.37, 96.83, 92.97, 92.22, 98.76, 91.63],
    [53.44, 96.60, 83.68, 74.73, 96.63, 92.94, 92.10, 98.58, 92.75, 83.48],
    [53.11, 96.37, 83.27, 73.51, 95.93, 92.88, 92.04, 98.36, 93.16, 85.77, 79.67],
]
PAPER = [row + ZERO_SHOT[len(row) :] for row in LEARNED]


def test_the_papers_table_gives_the_papers_numbers() -> None:
    assert round(metrics.transfer(PAPER), 1) == 69.4
    assert round(metrics.average(PAPER), 1) == 77.0
    assert round(metrics.last(PAPER), 1) == 85.8


def test_by_hand() -> None:
    matrix = [[80, 40, 30], [79, 85, 50], [78, 84, 90]]
    assert metrics.transfer(matrix) == pytest.approx((40 + (30 + 50) / 2) / 2)
    assert metrics.average(matrix) == pytest.approx(sum(sum(row) for row in matrix) / 9)
    assert metrics.last(matrix) == pytest.approx(84)
    assert metrics.forgetting(matrix) == pytest.approx((2 + 1) / 2)


def test_what_improves_later_is_not_forgotten() -> None:
    assert metrics.forgetting([[50, 10], [60, 70]]) == 0


@pytest.mark.parametrize("matrix", [[[1.0]], [[1.0, 2.0]], [1.0, 2.0], []])
def test_a_matrix_is_square(matrix: metrics.Matrix) -> None:
    with pytest.raises(ValueError, match="a row for each stage"):
        metrics.transfer(matrix)


def test_spread_is_the_sample_deviation() -> None:
    spread = metrics.spread([1.0, 2.0, 4.0])
    assert spread.mean == pytest.approx(7 / 3)
    assert spread.deviation == pytest.approx(
        (((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2) ** 0.5
    )
    assert spread.count == 3
    assert metrics.spread([5.0]) == metrics.Spread(5.0, 0.0, 1)


@pytest.mark.parametrize("seed", [0, 1])
def test_calibration_error_bin_by_bin(seed: int) -> None:
    random = np.random.default_rng(seed)
    sure = [*random.random(200), 0.0, 1.0, 1.0, 0.2]
    right = [*(random.random(200) < 0.7), True, True, False, True]
    expected = 0.0
    for low in range(15):
        inside = [
            i for i, p in enumerate(sure) if low / 15 < p <= (low + 1) / 15 or (low == 0 and p == 0)
        ]
        if inside:
            gap = np.mean([sure[i] for i in inside]) - np.mean([right[i] for i in inside])
            expected += len(inside) / len(sure) * abs(gap)
    assert metrics.calibration_error(sure, right) == pytest.approx(expected)


def test_the_area_under_the_roc_is_scikit_learns() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(0)
    own, foreign = random.integers(0, 9, 40) / 9, random.integers(3, 12, 60) / 9  # with ties
    expected = sklearn.roc_auc_score([0] * 40 + [1] * 60, [*own, *foreign])
    assert metrics.auroc(own, foreign) == pytest.approx(expected)
    assert metrics.auroc([0.0], [1.0]) == 1
    assert metrics.auroc([1.0], [0.0]) == 0
