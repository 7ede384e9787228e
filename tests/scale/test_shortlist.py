"""Very many labels: the few that are weighed are those that weighing all would choose from."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import helpers
from tests.scale.test_tree import opened

from anytimecl.scale import shortlist
from anytimecl.scale.leaf import Leaf
from anytimecl.scale.leaves import Here, Unreachable
from anytimecl.scale.shortlist import ManyLabels, SentLabels

MANY = [*(f"thing {number}" for number in range(60)), *helpers.LABELS]
ASKED = [helpers.picture(number) for number in (*range(6), *range(100, 112))]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if fifty labels were very many."""
    monkeypatch.setattr(shortlist, "ABOVE", 50)
    monkeypatch.setattr(shortlist, "BEST", 8)


@pytest.mark.parametrize("near", [1, 2])
@pytest.mark.parametrize("tune", ["block", "classifier"])
def test_the_best_of_all_is_among_the_few(
    tmp_path: Path, short: None, monkeypatch: pytest.MonkeyPatch, tune: str, near: int
) -> None:
    learner = helpers.FAST.__class__(**{**vars(helpers.FAST), "tune": tune})
    options = {"settings": helpers.settings(learner=learner), "model": helpers.measured()}
    with opened(tmp_path, capacity=14, near=near, **options) as tree:
        for number in range(20):
            tree.learn_one(*helpers.lesson(number))
        tree.settle()
        assert len(tree.routes.leaves()) > 1
        few = tree.predict(ASKED, MANY)
        monkeypatch.setattr(shortlist, "ABOVE", 1000)
        for one, whole in zip(few, tree.predict(ASKED, MANY), strict=True):
            assert len(one.probabilities) < len(MANY) == len(whole.probabilities)
            assert one.label == whole.label
            assert one.leaves == whole.leaves
            # What is weighed is weighed as if it alone had been asked about.
            again = tree.predict(ASKED[few.index(one)], list(one.probabilities))
            assert again.probabilities == pytest.approx(one.probabilities, abs=1e-5)
        assert few[0].label == helpers.lesson(0)[1]  # an image that was taught is known again


class Lost(Here):
    """A leaf that is never there."""

    def ask(self, *_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(Unreachable("It is lost."))
        return future

    shortlist = ask


def test_an_unreachable_leaf_leaves_the_original_model(tmp_path: Path, short: None) -> None:
    with opened(tmp_path, leaves=Lost) as tree:
        tree.learn_one(*helpers.lesson(0))
        [told] = tree.predict([helpers.picture(100)], MANY)
        assert (told.missing, len(told.probabilities)) == ((0,), 8)


def test_a_leaf_that_is_being_closed_still_chooses(tmp_path: Path) -> None:
    with opened(tmp_path) as tree:
        tree.learn_one(*helpers.lesson(0))
        tokens = tree.encode([helpers.picture(100)])
        many = ManyLabels.of(MANY, tree.backbone.embed_labels(MANY))
        leaf = Leaf.open(model=tree.backbone, settings=tree.settings)
        before = leaf.shortlist(tokens, many)
        leaf.close()
        assert leaf.shortlist(tokens, many) == before


def test_labels_are_fetched_once() -> None:
    kept, fetched = SentLabels(2), []

    def get(number: str) -> ManyLabels:
        def fetch() -> tuple[list[str], torch.Tensor]:
            fetched.append(number)
            return [number], torch.zeros(1, 2)

        return kept.get(number, fetch)

    for number in ("a", "b", "a", "c", "a", "c"):
        assert get(number).labels == (number,)
    assert fetched == ["a", "b", "c"]
    get("b")  # the one used longest ago gave way
    assert fetched == ["a", "b", "c", "b"]
