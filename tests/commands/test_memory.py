"""`anytimecl memory`."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.commands.conftest import Run

from anytimecl import AnytimeClassifier, checkpoint
from anytimecl.memory import open_memory


def facts(text: str) -> dict[str, str]:
    return {line.split()[0]: " ".join(line.split()[1:]) for line in text.splitlines()}


def test_info(run: Run, learned: Path, model: Path) -> None:
    result = run("memory", "info", learned)
    assert result.exit_code == 0
    told = facts(result.stdout.replace("\n" + " " * 10, ""))  # a long path is folded
    assert told["examples"] == "12 of 3 labels"
    assert told["events"] == "12"
    assert told["sampler"] == "class_balanced"
    assert model.name in result.stdout.replace("\n", "").replace(" ", "")


def test_info_of_a_memory_with_no_classifier(run: Run) -> None:
    with open_memory(Path("plain"), create={}) as store:
        store.append("cat", b"a cat")
    assert facts(run("memory", "info", "plain").stdout)["records"] == "5 bytes, 5 bytes each"
    result = run("stats", "--memory", "plain")
    assert result.exit_code == 2
    assert "was not made by a classifier" in result.stderr


def test_verify(run: Run, learned: Path) -> None:
    result = run("memory", "verify", learned)
    assert (result.exit_code, result.stdout) == (0, "12 examples checked, 0 damaged\n")


def test_verify_names_what_is_damaged(run: Run, learned: Path) -> None:
    with open_memory(learned) as store:
        example = next(iter(store.ids()))[0]
        record = store.example(example).record
    with closing(sqlite3.connect(learned / "memory.sqlite3")) as db, db:
        [(extent, data)] = [row for row in db.execute("SELECT * FROM extent") if record in row[1]]
        flipped = data.replace(record, bytes([record[0] ^ 1]) + record[1:])
        db.execute("UPDATE extent SET data = ? WHERE id = ?", (flipped, extent))
    result = run("memory", "verify", learned)
    assert result.exit_code == 1
    assert f"1 damaged: {example}" in result.stdout


def test_a_backup_is_the_same_classifier_at_once(
    run: Run, learned: Path, model: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_memory(learned):  # while it is in use
        result = run("memory", "backup", learned, "copy")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"Copied {learned} to copy (")
    monkeypatch.setattr("anytimecl.student.Student.teach", lambda *given: pytest.fail("repeated"))
    file = str(photos / "test/cat/4.png")
    with (
        AnytimeClassifier.open(learned, model=model) as first,
        AnytimeClassifier.open("copy", model=model) as second,
    ):
        assert second.labels == first.labels
        np.testing.assert_array_equal(second.predict_proba(file), first.predict_proba(file))


def test_a_backup_repeats_what_came_after_the_checkpoint(
    run: Run, learned: Path, model: Path, photos: Path
) -> None:
    with AnytimeClassifier.open(learned, model=model) as classifier:
        classifier.learn_one(str(photos / "test/cat/4.png"), "cat")  # in no checkpoint yet
        assert run("memory", "backup", learned, "copy").exit_code == 0
        with AnytimeClassifier.open("copy", model=model) as copy:
            assert copy.stats() == classifier.stats()


def test_a_backup_leaves_out_a_checkpoint_that_knows_what_was_forgotten(
    run: Run, learned: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = checkpoint.load(learned / "checkpoint")
    with AnytimeClassifier.open(learned, model=model) as classifier:
        classifier.forget(label="dog")
    monkeypatch.setattr(
        checkpoint, "load_beside_owner", lambda folder: old
    )  # read just before that
    assert run("memory", "backup", learned, "copy").exit_code == 0
    assert not Path("copy/checkpoint").exists()
    with AnytimeClassifier.open("copy", model=model) as copy:
        assert "dog" not in copy.stats()


def test_a_backup_takes_no_place_that_is_taken(run: Run, learned: Path) -> None:
    shutil.copytree(learned, "copy")
    result = run("memory", "backup", learned, "copy")
    assert result.exit_code == 2
    assert "choose another folder" in result.stderr


def test_compact_gives_room_back(run: Run, learned: Path) -> None:
    with open_memory(learned) as store:
        store.append_many(("cat", bytes(50_000)) for _ in range(10))
        store.forget([example for example, _ in store.ids()][12:])
    result = run("memory", "compact", learned)
    assert result.exit_code == 0
    assert "Gave back 5" in result.stdout
    assert "kB" in result.stdout
    assert run("memory", "verify", learned).exit_code == 0


@pytest.mark.parametrize("command", ["info", "verify", "compact"])
def test_no_memory(run: Run, command: str) -> None:
    result = run("memory", command, "nowhere")
    assert (result.exit_code, result.stderr) == (2, "There is no memory in nowhere.\n")
    assert not Path("nowhere").exists()
