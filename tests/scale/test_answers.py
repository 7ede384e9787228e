"""Answers of several leaves as one, beside a plain loop; and what is said without any leaf."""

from __future__ import annotations

from concurrent.futures import Future

import pytest
import torch
from tests import helpers

from anytimecl.blend import LabelRecord, Opinions
from anytimecl.scale.answers import gathered, mixed, original_only
from anytimecl.scale.leaf import LeafAnswer
from anytimecl.scale.leaves import Unreachable

IMAGES, LABELS, LEAVES = 3, 4, 3
MODEL = helpers.model()


def answer(leaf: int) -> LeafAnswer:
    """Made up; each leaf has seen another label most."""
    noise = torch.Generator().manual_seed(leaf)
    tuned, original = (torch.rand(IMAGES, LABELS, generator=noise).softmax(1) for _ in range(2))
    records = [LabelRecord() for _ in range(LABELS)]
    for label in range(LABELS - 1):  # nobody has seen the last one
        records[label].seen = 1 + 5 * (label == leaf)
        records[label].tuned = leaf / 10
    opinions = Opinions(tuned, original, torch.rand(IMAGES, generator=noise), records)
    none = torch.rand(IMAGES, generator=noise)
    spoke = [f"leaf {leaf}"] * IMAGES
    return LeafAnswer(opinions, torch.rand(IMAGES, LABELS, generator=noise), none, spoke)


def test_mixed_is_the_mean_by_weight() -> None:
    answers = [answer(leaf) for leaf in range(LEAVES)]
    weights = torch.rand(IMAGES, LEAVES).softmax(1)
    found = mixed(answers, weights)
    for image in range(IMAGES):
        for name in ("tuned", "original", "other"):
            said = [getattr(each.opinions, name)[image] for each in answers]
            slow = sum(weights[image, leaf] * said[leaf] for leaf in range(LEAVES))
            torch.testing.assert_close(getattr(found.opinions, name)[image], slow)
        for label in range(LABELS):
            slow = sum(weights[image, n] * answers[n].values[image, label] for n in range(LEAVES))
            torch.testing.assert_close(found.values[image, label], slow)
        assert found.none[image] == min(each.none[image] for each in answers)
        nearest = max(range(LEAVES), key=lambda leaf: weights[image, leaf].item())
        assert found.spoke[image] == f"leaf {nearest}"
    # The record of the leaf that saw it most: leaf 0 the first label, and so on.
    assert [record.tuned for record in found.opinions.records] == [0.0, 0.1, 0.2, 0.0]
    assert [record.seen for record in found.opinions.records] == [6, 6, 6, 0]


def test_one_answer_is_left_as_it_is() -> None:
    one = answer(0)
    assert mixed([one], torch.ones(IMAGES, 1)) is one


def test_without_leaves_the_original_model_answers() -> None:
    untaught = helpers.taught([])
    pictures = [helpers.picture(n) for n in range(IMAGES)]
    told = untaught.predict_proba(pictures, helpers.LABELS)
    tokens, vectors = MODEL.encode(pictures), MODEL.embed_labels(helpers.LABELS)
    found = original_only(MODEL, tokens, vectors)
    torch.testing.assert_close(found.values, torch.from_numpy(told))
    assert not found.none.any()
    assert found.spoke == ["original"] * IMAGES


def test_leaves_that_do_not_answer_are_left_out() -> None:
    there, lost, silent = Future[LeafAnswer](), Future[LeafAnswer](), Future[LeafAnswer]()
    there.set_result(answer(0))
    lost.set_exception(Unreachable("gone"))
    assert list(gathered({4: lost, 5: silent, 6: there}, patience=0.05)) == [6]
    broken = Future[LeafAnswer]()
    broken.set_exception(ValueError("a mistake, and no absence"))
    with pytest.raises(ValueError, match="a mistake"):
        gathered({4: broken}, patience=0.05)
