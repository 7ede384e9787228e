"""The loss by hand: sums of exponentials in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from anytimecl.loss import anytime_loss

INF = math.inf


def by_hand(
    logits: Sequence[Sequence[float]], other: float, target: Sequence[int], beta: float
) -> float:
    """`CE(x, y, Y u other) + beta * CE(x, other, (Y u other) - y)`, mean over the examples."""
    total = 0.0
    for row, y in zip(logits, target, strict=True):
        candidates = {label: logit for label, logit in enumerate(row) if logit != -INF}
        everything = [*candidates.values(), other]
        right = -math.log(math.exp(row[y]) / sum(map(math.exp, everything)))
        without_y = [logit for label, logit in candidates.items() if label != y]
        absent = -math.log(math.exp(other) / sum(map(math.exp, [*without_y, other])))
        total += right + beta * absent
    return total / len(target)


CASES = {
    "one example": ([[2.0, 1.0, -0.5]], 0.3, [0]),
    "several": ([[2.0, 1.0, -0.5], [0.1, 0.2, 0.3], [-3.0, 4.0, 1.0]], -0.7, [1, 2, 0]),
    "masked": ([[2.0, -INF, -0.5], [-INF, 0.2, 0.3], [-3.0, 4.0, 1.0]], 1.5, [0, 2, 1]),
    "one candidate each": ([[2.0, -INF], [-INF, -1.0]], 0.5, [0, 1]),
    "one label in all": ([[1.5], [-0.5]], 0.25, [0, 0]),
}


def tensors(
    logits: Sequence[Sequence[float]], other: float, target: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.tensor(logits, dtype=torch.float64, requires_grad=True),
        torch.tensor(other, dtype=torch.float64, requires_grad=True),
        torch.tensor(target),
    )


@pytest.mark.parametrize("beta", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("case", CASES)
def test_both_terms_by_hand(case: str, beta: float) -> None:
    logits, other, target = CASES[case]
    loss = anytime_loss(*tensors(logits, other, target), beta)
    assert loss.item() == pytest.approx(by_hand(logits, other, target, beta), abs=1e-12)


def test_beta_is_a_tenth_unless_told() -> None:
    logits, other, target = CASES["several"]
    loss = anytime_loss(*tensors(logits, other, target))
    assert loss.item() == pytest.approx(by_hand(logits, other, target, 0.1), abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_differences_and_masked_labels_have_none(case: str) -> None:
    rows, other, target = CASES[case]
    logits, bias, targets = tensors(rows, other, target)
    anytime_loss(logits, bias, targets, 0.7).backward()
    assert logits.grad is not None
    assert bias.grad is not None
    step = 1e-6

    def slope(at: tuple[int, int] | None) -> float:
        ends = []
        for sign in (1, -1):
            moved = [list(row) for row in rows]
            if at is not None:
                moved[at[0]][at[1]] += sign * step
            shifted = other if at is not None else other + sign * step
            ends.append(by_hand(moved, shifted, target, 0.7))
        return (ends[0] - ends[1]) / (2 * step)

    assert bias.grad.item() == pytest.approx(slope(None), abs=1e-8)
    for i, row in enumerate(rows):
        for y, logit in enumerate(row):
            expected = 0.0 if logit == -INF else slope((i, y))
            assert logits.grad[i, y].item() == pytest.approx(expected, abs=1e-8)


def test_alone_among_its_candidates_a_label_competes_with_other_only() -> None:
    logits, other, target = tensors([[3.0, -INF]], 1.0, [0])
    expected = math.log(1 + math.exp(1.0 - 3.0))  # and nothing to be absent from
    assert anytime_loss(logits, other, target, 5.0).item() == pytest.approx(expected, abs=1e-12)


def test_large_logits_do_not_overflow() -> None:
    logits = torch.tensor([[100.0, -100.0], [-100.0, 100.0]], requires_grad=True)
    loss = anytime_loss(logits, torch.tensor(-100.0), torch.tensor([0, 0]))
    loss.backward()
    assert loss.item() == pytest.approx((0 + 0.1 * math.log(2) + 200 + 0.1 * 200) / 2, rel=1e-6)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
