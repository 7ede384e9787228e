"""What answers, without the examples, says what the classifier itself says."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from tests import helpers
from tests.serve.conftest import text
from torch import Tensor

from anytimecl.classifier import AnytimeClassifier
from anytimecl.scale.serving.state import SnapshotClassifier, state_of
from anytimecl.serve.problems import Problem
from anytimecl.settings import Settings

ASKED = [helpers.picture(number) for number in (*range(4), *range(100, 108))]
UNSEEN = [*helpers.LABELS, "never seen", "nor this"]


def opened(folder: Path, settings: Settings | None = None) -> AnytimeClassifier:
    settings = settings or helpers.settings()
    return AnytimeClassifier.open(folder, model=helpers.measured(), settings=settings)


def travelled(folder: Path) -> SnapshotClassifier:
    """As it is after it went through Ray's object store, which hands out what nobody may change."""
    state = pickle.loads(pickle.dumps(state_of(folder, helpers.measured())))
    for array in (*state.arrays.values(), *state.tail.values(), state.vectors):
        array.flags.writeable = False
    return SnapshotClassifier(state, helpers.measured().embed_labels)


def tokens() -> Tensor:
    return helpers.measured().encode(ASKED)


@pytest.mark.parametrize("tune", ["block", "classifier"])
def test_it_says_what_the_classifier_says_bit_for_bit(tmp_path: Path, tune: str) -> None:
    learner = helpers.FAST.__class__(**{**vars(helpers.FAST), "tune": tune})
    with opened(tmp_path, helpers.settings(learner=learner)) as classifier:
        for number in range(40):
            classifier.learn_one(*helpers.lesson(number))
        classifier.learn_one(helpers.picture(2), "great white shark")  # corrected
        classifier.forget(label="dog")
        copy = travelled(tmp_path)
        for labels in (None, UNSEEN, ["nor this", "never seen"], helpers.LABELS[:1]):
            said, expected = (each.predict_tokens(tokens(), labels) for each in (copy, classifier))
            assert said == expected
        assert any(one.spoke == "instance" for one in expected)
        assert copy.stats() == classifier.stats()
        assert (copy.labels, len(copy)) == (classifier.labels, len(classifier))


def test_a_memory_that_has_learned_nothing_answers(tmp_path: Path) -> None:
    with opened(tmp_path) as classifier:
        expected = classifier.predict_tokens(tokens(), UNSEEN)
    copy = travelled(tmp_path)
    assert copy.predict_tokens(tokens(), UNSEEN) == expected
    assert copy.stats() == {}


def test_what_needs_the_examples_says_where_they_are(tmp_path: Path) -> None:
    opened(tmp_path).close()
    copy = travelled(tmp_path)
    for ask in (lambda: copy.memory.read([1]), lambda: copy.learn_one(text(0), "cat")):
        with pytest.raises(Problem, match="ask the service that owns the memory"):
            ask()
