"""What is learned again from the start counts whole or not at all."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import differing, knowledge, lessons, measured, settings

from anytimecl import checkpoint as checkpoints
from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import CheckpointError
from anytimecl.memory import RequestKey
from anytimecl.recovery import Forgotten


def opened(folder: Path) -> AnytimeClassifier:
    return AnytimeClassifier.open(folder, model=measured(), settings=settings())


def test_a_rebuild_that_cannot_be_saved_never_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal does not know of it, so a model that only RAM had would be lost in silence."""
    with opened(tmp_path) as classifier:
        classifier.learn_many(lessons(12))
        classifier.relabel(5, "zebra")
        before = knowledge(classifier)
        with monkeypatch.context() as patch:

            def full(*_: Any) -> None:
                raise CheckpointError("The disk is full.")

            patch.setattr(checkpoints, "save", full)
            with pytest.raises(CheckpointError, match="full"):
                classifier.rebuild()
        assert differing(before, knowledge(classifier)) == []
    with opened(tmp_path) as classifier:
        assert differing(before, knowledge(classifier)) == []
        classifier.rebuild()
        after = knowledge(classifier)
        assert differing(before, after) != []
    with opened(tmp_path) as classifier:
        assert differing(after, knowledge(classifier)) == []


def test_names_that_come_again_do_not_bar_a_forgetting(tmp_path: Path) -> None:
    """What the journal forgets of labels, the checkpoint that is gone back to must not need."""
    with opened(tmp_path) as classifier:
        classifier.learn_many(lessons(12))
        classifier.rename_label("dog", "hound")
        classifier._save()
        classifier.rename_label("cat", "dog")
        classifier.merge_labels("dog", "tabby cat")
        classifier.forget(label="hound")
        before = knowledge(classifier)
        classifier._checkpointer.close()
        classifier.memory.close()
    with opened(tmp_path) as classifier:
        assert differing(before, knowledge(classifier)) == []
        assert "hound" not in classifier.labels


@pytest.mark.parametrize(
    "change",
    [{"sampler": 7}, {"labels": None}, {"estimates": {}}, {"evidence": [[1, "cat"]]}],
)
def test_a_checkpoint_whose_parts_do_not_fit_is_refused(
    change: dict[str, Any], tmp_path: Path
) -> None:
    with opened(tmp_path) as classifier:
        classifier.learn_many(lessons(6))
        before = knowledge(classifier)
    place = tmp_path / "checkpoint"
    saved = checkpoints.load(place)
    assert saved is not None
    checkpoints.save(dataclasses.replace(saved, state=saved.state | change), place)
    with pytest.raises(CheckpointError, match=r"do not fit together.*Delete it"):
        opened(tmp_path)
    shutil.rmtree(place)
    with opened(tmp_path) as classifier:
        assert differing(before, knowledge(classifier)) == []


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_what_was_forgotten_and_keys_can_be_copied_and_sent(again: Callable[[Any], Any]) -> None:
    gone = again(Forgotten(2, clean=True))
    assert (gone, gone.clean, type(gone)) == (2, True, Forgotten)
    key = RequestKey("upload-17", b"a cat")
    assert (again(key), again(key).content, type(again(key))) == (key, key.content, RequestKey)
