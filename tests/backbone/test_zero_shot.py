"""An honest "none of these" before anything is taught."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from tests.backbone import tiny

from anytimecl.backbone import load
from anytimecl.backbone.zero_shot import with_none


def test_shares_are_those_of_independent_labels_of_which_at_most_one_is_right() -> None:
    logits, bias = torch.tensor([[3, -1, 12], [0.5, 0, -4]], dtype=torch.float64), -2.5
    labels, none = with_none(logits, -bias)
    for row, found, left in zip(logits, labels, none, strict=True):
        chances = torch.sigmoid(row + bias).tolist()
        weights = {}  # of every combination of right and wrong labels with at most one right
        for right in itertools.product([False, True], repeat=3):
            if sum(right) <= 1:
                parts = [p if yes else 1 - p for p, yes in zip(chances, right, strict=True)]
                weights[right] = parts[0] * parts[1] * parts[2]
        total = sum(weights.values())
        assert float(left) == pytest.approx(weights[False, False, False] / total, rel=1e-5)
        for place in range(3):
            alone = tuple(index == place for index in range(3))
            assert float(found[place]) == pytest.approx(weights[alone] / total, rel=1e-5)


def test_a_model_that_only_chooses_gives_all_to_its_labels() -> None:
    logits = torch.tensor([[3.0, -1.0]])
    labels, none = with_none(logits, None)
    assert torch.equal(labels, logits.softmax(1))
    assert none.tolist() == [0.0]


def test_the_logit_is_the_models_own_bias(tmp_path: Path) -> None:
    siglip = load(tiny.siglip(tmp_path / "siglip")).spec
    assert siglip.none_logit == -siglip.logit_bias != 0
    assert load(tiny.clip(tmp_path / "clip")).spec.none_logit is None
    assert load(tiny.dinov2(tmp_path / "dinov2")).spec.none_logit is None
