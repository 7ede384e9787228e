"""What images of a label add to its text, beside the sums written out."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import FAST, TEXTS, measured, model, picture, settings, taught
from torch import Tensor

from anytimecl import AnytimeClassifier
from anytimecl.experts.statistics import Statistics
from anytimecl.imprint import TEXT, Imprint

PRIOR = measured().prior
assert PRIOR is not None
MEAN, DIM = PRIOR.mean, len(PRIOR.mean)
ROWS = [0, 1, 0, 2, 0, 1, 0]


def images() -> Tensor:
    noise = torch.Generator().manual_seed(3)
    return F.normalize(torch.randn(len(ROWS), DIM, generator=noise), dim=1)


def known(rows: list[int] = ROWS) -> Statistics:
    found = Statistics(DIM)
    for _ in range(3):
        found.enter()
    found.add(rows, images()[: len(rows)])
    return found


def by_hand(some: Tensor, count: int, strength: float = 1.0) -> Tensor:
    return strength * (some.double() - MEAN).sum(0) / (count + TEXT)


@pytest.mark.parametrize("strength", [1.0, 2.5])
def test_a_label_goes_where_its_images_lie(strength: float) -> None:
    imprint = Imprint(strength, MEAN)
    for row, found in zip([2, 0], imprint.of(known(), [2, 0]), strict=True):
        own = images()[[i for i, each in enumerate(ROWS) if each == row]]
        expected = by_hand(own, len(own), strength).float()
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_a_label_without_images_is_its_text() -> None:
    assert not Imprint(1.0, MEAN).of(known([0, 0]), [1]).any()


def test_ahead_is_what_it_will_be_after_each() -> None:
    imprint, start = Imprint(1.0, MEAN), 2
    coming = imprint.ahead(known(ROWS[:start]), ROWS[start:], images()[start:])
    for step, (row, found) in enumerate(zip(ROWS[start:], coming, strict=True), start=start + 1):
        assert torch.equal(found, imprint.of(known(ROWS[:step]), [row])[0])


def test_left_out_it_is_the_mean_of_the_others_with_the_same_count() -> None:
    found = Imprint(1.0, MEAN).left_out(known(), ROWS, images())
    for at, row in enumerate(ROWS):
        own = [i for i, each in enumerate(ROWS) if each == row]
        rest = [i for i in own if i != at]
        if not rest:
            assert not found[at].any()
            continue
        expected = (images()[rest].double().mean(0) - MEAN) * len(own) / (len(own) + TEXT)
        torch.testing.assert_close(found[at], expected.float(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "prior"),
    [
        ({"imprint": 0.0}, PRIOR),
        ({"tune": "both"}, PRIOR),
        ({"tune": "classifier"}, PRIOR),
        ({}, None),
    ],
)
def test_texts_alone(changes: dict[str, Any], prior: Any) -> None:
    assert Imprint.of_settings(dataclasses.replace(FAST, **changes), prior) is None


def test_without_it_a_memory_learns_as_before() -> None:
    """Whether the model has a prior then makes no difference to the tuned weights."""
    chosen = settings(learner=TEXTS)
    one, other = (taught(range(12), settings=chosen, model=m) for m in (model(), measured()))
    mine, theirs = (each._trainer.learner.state() for each in (one, other))
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name


def test_an_example_that_goes_takes_its_share_with_it() -> None:
    classifier = AnytimeClassifier.open(model=measured(), settings=settings(learner=FAST))
    ids = [classifier.learn_one(picture(n), ["cat", "dog"][n % 2]).id for n in range(6)]
    before = classifier._trainer.learner.shifts.clone()
    extra = classifier.learn_one(picture(9), "cat").id
    assert not torch.equal(before, classifier._trainer.learner.shifts)
    classifier.forget(example_id=extra)
    assert torch.equal(before, classifier._trainer.learner.shifts)
    classifier.relabel(ids[0], "dog")
    imprint, now = classifier._trainer.model.imprint, classifier._trainer.model.gaussian.now
    assert imprint is not None
    assert now.counts.tolist() == [2, 4]
    assert torch.equal(classifier._trainer.learner.shifts[:2], imprint.of(now, [0, 1]))
