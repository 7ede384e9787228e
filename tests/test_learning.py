"""One image has one label, and one key is one lesson, whatever comes between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.helpers import differing, knowledge, lesson, lessons, model, picture, settings, taught

from anytimecl.acceleration import OnlineLearner
from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import KeyUsedError, StoreError
from anytimecl.memory import FileKey, RequestKey
from anytimecl.memory.records import Records


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_correction_that_fails_leaves_its_key_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the retry would be told that all was done."""
    key = RequestKey("upload-17", b"a dog")
    with taught(range(4)) as classifier:
        with monkeypatch.context() as patch:

            def full(*_: Any) -> None:
                raise StoreError("The disk is full.")

            patch.setattr(Records, "rewrite", full)
            with pytest.raises(StoreError, match="full"):
                classifier.learn_one(picture(1), "okapi", key=key)
        assert classifier.memory.used_key(key) is None
        learned = classifier.learn_one(picture(1), "okapi", key=key)
        used = classifier.memory.used_key(key)
        assert used is not None
        assert used.example == learned.id == 2


def test_a_retry_knows_the_label_that_was_renamed_since() -> None:
    with taught(range(4)) as classifier:
        learned = classifier.learn_one(picture(9), "wombat", key="upload 1")
        classifier.rename_label("wombat", "quokka")
        classifier.rename_label("quokka", "numbat")
        assert classifier.learn_one(picture(9), "wombat", key="upload 1").id == learned.id
        assert classifier.memory.label(learned.id) == "numbat"
        with pytest.raises(KeyUsedError, match="numbat"):
            classifier.learn_one(picture(9), "cat", key="upload 1")


@pytest.mark.parametrize("newer", ["upload 2", None])
def test_a_late_retry_does_not_undo_a_newer_label(tmp_path: Path, newer: str | None) -> None:
    options: dict[str, Any] = {"model": model(), "settings": settings()}
    with AnytimeClassifier.open(tmp_path, **options) as classifier:
        first = classifier.learn_one(picture(9), "wombat", key="upload 1")
        classifier.learn_one(picture(9), "quokka", key=newer)
    with AnytimeClassifier.open(tmp_path, **options) as classifier:
        before = knowledge(classifier)
        assert classifier.learn_one(picture(9), "wombat", key="upload 1").id == first.id
        assert classifier.memory.label(first.id) == "quokka"
        assert not differing(before, knowledge(classifier))
        with pytest.raises(KeyUsedError, match="quokka"):
            classifier.learn_one(picture(9), "cat", key="upload 1")
        with pytest.raises(KeyUsedError, match="another image"):
            classifier.learn_one(picture(8), "wombat", key="upload 1")
        classifier.forget(example_id=first.id)  # and its keys with it
        assert classifier.learn_one(picture(9), "wombat", key="upload 1").id > first.id


def test_a_key_that_taught_nothing_new_stays_harmless() -> None:
    with taught(range(4)) as classifier:
        example = classifier.learn_one(picture(9), "wombat", key="upload 1").id
        assert classifier.learn_one(picture(9), "wombat", key="upload 2").id == example
        classifier.learn_one(picture(9), "quokka", key="upload 3")
        classifier.learn_one(picture(9), "wombat", key="upload 2")
        assert classifier.memory.label(example) == "quokka"


def test_a_key_that_names_a_file_and_its_label_speaks_again() -> None:
    """A file may be moved to another folder, and back."""
    with taught(range(4)) as classifier:
        for label in ("wombat", "quokka", "wombat"):
            example = classifier.learn_one(picture(9), label, key=FileKey(f"{label}/9.jpg")).id
            assert classifier.memory.label(example) == label


def test_copies_whose_correction_is_interrupted_are_made_up_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with taught(range(4)) as classifier, taught(range(4)) as straight:
        for each in (classifier, straight):
            each.memory.append_row(each.memory.rows([2])[0][1]._replace(label="cat"))
        taken = OnlineLearner.look_ahead
        count = []

        def second(*given: Any) -> Any:
            count.append(1)
            return interrupt() if len(count) == 3 else taken(*given)  # the copy is learned first

        with monkeypatch.context() as patch:
            patch.setattr(OnlineLearner, "look_ahead", second)
            with pytest.raises(KeyboardInterrupt):
                classifier.relabel(2, "okapi")
        straight.relabel(2, "okapi")
        classifier.learn_one(*lesson(7))
        straight.learn_one(*lesson(7))
        assert differing(knowledge(straight), knowledge(classifier)) == []


@pytest.mark.parametrize("sampler", ["class_balanced", "fifo", "frequency_weighted"])
def test_an_interrupted_lesson_has_drawn_nothing(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(sampler=sampler)
    with (
        AnytimeClassifier.open(tmp_path, model=model(), settings=chosen) as classifier,
        taught(range(13), settings=chosen) as straight,
    ):
        classifier.learn_many(lessons(12))
        with monkeypatch.context() as patch:
            patch.setattr(OnlineLearner, "look_ahead", interrupt)
            with pytest.raises(KeyboardInterrupt):
                classifier.learn_one(*lesson(12))
        classifier.learn_one(*lesson(13))
        straight.learn_one(*lesson(13))
        assert differing(knowledge(straight), knowledge(classifier)) == []
