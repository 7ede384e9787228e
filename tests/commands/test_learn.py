"""`anytimecl learn`, `consolidate`, `forget` and `rebuild`."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.commands.conftest import COLOURS, Run, zipped

from anytimecl import AnytimeClassifier
from anytimecl.commands import _screen
from anytimecl.images import iter_images
from anytimecl.memory import open_memory


def opinion(memory: Path, model: Path, photos: Path) -> NDArray[np.float32]:
    """What a memory makes of the test pictures: its answers, and the tuned model's.

    Colours are so easy that the answers are 0 and 1, and would hide how the weights differ.
    """
    files = [str(file) for file in sorted((photos / "test").rglob("*.png"))]
    labels = sorted(COLOURS)
    with AnytimeClassifier.open(memory, model=model, read_only=True) as classifier:
        tuned = classifier.opinions(classifier.encode(files), labels).tuned.numpy()
        return np.stack([classifier.predict_proba(files, labels), tuned])


def labels_in(memory: Path | str) -> dict[str, int]:
    with open_memory(Path(memory), read_only=True) as store:
        return store.labels()


def kinds_in(memory: Path | str) -> list[str]:
    with open_memory(Path(memory), read_only=True) as store:
        return [event.kind for event in store.events()]


def interrupt_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C while that image is being learned."""
    learn, count = AnytimeClassifier.learn_tokens, 0

    def interrupted(self: AnytimeClassifier, *given: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == number:
            signal.raise_signal(signal.SIGINT)
        return learn(self, *given, **options)

    monkeypatch.setattr(AnytimeClassifier, "learn_tokens", interrupted)


# Learning


def test_learns_what_the_classifier_would(
    run: Run, learned: Path, photos: Path, model: Path, tmp_path: Path
) -> None:
    right = 0
    with AnytimeClassifier.open(tmp_path / "by hand", model=model) as classifier:
        for ref in iter_images(photos):
            if ref.split == "train":
                assert ref.label is not None
                right += classifier.learn_one(ref.load(), ref.label).right
    mine, theirs = (opinion(m, model, photos) for m in (learned, tmp_path / "by hand"))
    np.testing.assert_array_equal(mine, theirs)
    result = run("learn", photos, "--memory", "again", "--model", model, "--no-shuffle")
    assert f"{100 * right / 12:.1f} %" in result.stdout
    assert "12 examples of 3 labels" in result.stdout
    assert "left alone: test" in result.stderr


def test_the_same_command_passes_over_what_is_known(run: Run, learned: Path, photos: Path) -> None:
    result = run("learn", photos, "--memory", learned)
    assert result.exit_code == 0
    assert "12 that were learned before" in result.stdout
    assert sum(labels_in(learned).values()) == 12


def test_a_file_is_known_by_content_and_label(run: Run, learned: Path, photos: Path) -> None:
    shutil.copy(photos / "train/cat/0.png", photos / "train/cat/copy.png")
    shutil.copy(photos / "train/cat/0.png", photos / "train/dog/cat.png")
    result = run("learn", photos, "--memory", learned)
    assert result.exit_code == 1
    assert "an image has one label" in result.stderr
    assert sum(labels_in(learned).values()) == 12


def test_a_zip_teaches_what_its_folder_teaches(
    run: Run, learned: Path, photos: Path, model: Path
) -> None:
    assert (
        run("learn", zipped(photos), "--memory", "zip", "--model", model, "--no-shuffle").exit_code
        == 0
    )
    np.testing.assert_array_equal(
        opinion(learned, model, photos), opinion(Path("zip"), model, photos)
    )
    result = run("learn", zipped(photos), "--memory", learned)
    assert "12 that were learned before" in result.stdout


def test_split(run: Run, photos: Path, model: Path) -> None:
    assert run("learn", photos, "--memory", "m", "--model", model, "--split", "test").exit_code == 0
    assert set(labels_in("m").values()) == {1}
    result = run("learn", photos, "--memory", "n", "--model", model, "--split", "validation")
    assert result.exit_code == 2
    assert "test, train" in result.stderr
    result = run("learn", photos / "test", "--memory", "n", "--model", model)  # no split at all
    assert result.exit_code == 0
    assert set(labels_in("n").values()) == {1}


def test_what_cannot_be_used_is_reported(run: Run, photos: Path, model: Path) -> None:
    train = photos / "train"
    (train / "cat/broken.png").write_bytes(b"no image")
    (train / "loose.png").write_bytes((train / "cat/0.png").read_bytes())
    (train / ("x" * 201)).mkdir()
    (train / ("x" * 201) / "0.png").write_bytes(b"")
    result = run("learn", train, "--memory", "m", "--model", model)
    assert result.exit_code == 1
    report = result.stderr.partition("Not learned (3):")[2]
    assert all(told in report for told in ("broken.png", "in no class folder", "201 characters"))
    assert sum(labels_in("m").values()) == 12


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_does_not_block(run: Run, photos: Path, model: Path) -> None:
    os.mkfifo(photos / "train/cat/pipe.png")
    result = run("learn", photos, "--memory", "m", "--model", model)
    assert result.exit_code == 1
    assert "not a regular file" in result.stderr


def test_shuffle_follows_the_seed_and_limit_takes_the_first(
    run: Run, photos: Path, model: Path
) -> None:
    words = ("learn", photos, "--model", model, "--limit", 7, "--seed", 5)
    assert run(*words, "--memory", "m").exit_code == 0
    refs = [ref for ref in iter_images(photos) if ref.split == "train"]
    random.Random(5).shuffle(refs)
    with open_memory(Path("m"), read_only=True) as store:
        assert [label for _, label in store.ids()] == [ref.label for ref in refs[:7]]
        assert json.loads(store.meta["settings"])["seed"] == 5
    assert "7 that were learned before" in run(*words, "--memory", "m").stdout


def test_ctrl_c_keeps_all_and_the_same_command_goes_on(
    run: Run, learned: Path, photos: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupt_at(5, patch)
        result = run("learn", photos, "--memory", "m", "--model", model, "--no-shuffle")
    assert result.exit_code == 130
    assert "Stopped after 5 of 12 images" in result.stderr
    assert sum(labels_in("m").values()) == 5
    assert run("learn", photos, "--memory", "m", "--no-shuffle").exit_code == 0
    np.testing.assert_array_equal(
        opinion(Path("m"), model, photos), opinion(learned, model, photos)
    )


def test_an_existing_memory_keeps_its_settings(run: Run, learned: Path, photos: Path) -> None:
    for option, value in (("seed", 3), ("codec", "tokens-fp32"), ("sampler", "fifo")):
        result = run("learn", photos, "--memory", learned, f"--{option}", value)
        assert result.exit_code == 2
        assert f"made with --{option} " in result.stderr


def test_a_bad_choice_makes_no_memory(run: Run, photos: Path, model: Path) -> None:
    for words in (("--codec", "no"), ("--sampler", "no")):
        result = run("learn", photos, "--memory", "m", "--model", model, *words)
        assert result.exit_code == 2, words
        assert result.stdout == ""
        assert not Path("m").exists()


def test_no_images(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = run("learn", "empty", "--memory", "m")
    assert result.exit_code == 2
    assert result.stderr == "There are no images in empty.\n"


def test_a_memory_in_use_is_told_before_the_model_is_loaded(
    run: Run, learned: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anytimecl.backbone.load", lambda *given: pytest.fail("loaded"))
    with open_memory(learned):
        result = run("learn", photos, "--memory", learned)
    assert result.exit_code == 2
    assert f"in use by process {os.getpid()}" in result.stderr


def test_progress_tells_speed_and_accuracy(
    run: Run, photos: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_screen, "_EVERY", 0.0)
    result = run("learn", photos, "--memory", "m", "--model", model)
    last = [line for line in result.stderr.splitlines() if line.startswith("learn: ")][-1]
    assert last.startswith("learn: 12 of 12, ")
    assert "/s, right " in last


# Idle moments


def test_consolidate_goes_through_the_memory(
    run: Run, learned: Path, photos: Path, model: Path
) -> None:
    before = opinion(learned, model, photos)
    result = run("consolidate", "--memory", learned, "--epochs", 2)
    assert (result.exit_code, result.stdout) == (0, "Went 2 times through 12 examples.\n")
    assert kinds_in(learned)[-1] == "consolidate"
    after = opinion(learned, model, photos)
    assert not np.array_equal(before, after)
    run("learn", photos, "--memory", "m", "--model", model, "--consolidate", 2, "--no-shuffle")
    np.testing.assert_array_equal(opinion(Path("m"), model, photos), after)


def test_a_consolidation_that_is_stopped_changes_nothing(
    run: Run, learned: Path, photos: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = opinion(learned, model, photos)

    def press(done: int, total: int, note: str = "") -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_screen, "progress", lambda what: _Given(press))
        result = run("consolidate", "--memory", learned, "--epochs", 3)
    assert result.exit_code == 130
    assert "as it was before" in result.stderr
    assert set(kinds_in(learned)) == {"learn"}
    np.testing.assert_array_equal(opinion(learned, model, photos), before)


class _Given:
    def __init__(self, advance: Any) -> None:
        self.advance = advance

    def __enter__(self) -> Any:
        return self.advance

    def __exit__(self, *error: object) -> None:
        pass


def test_there_must_be_something_to_practise(run: Run, model: Path) -> None:
    AnytimeClassifier.open("memory", model=model).close()
    assert "nothing to practise" in run("consolidate", "--memory", "memory").stderr
    assert "There is no memory" in run("consolidate", "--memory", "nowhere").stderr
    assert not Path("nowhere").exists()


# Forgetting


def test_forget_a_label_and_rebuild(run: Run, learned: Path, photos: Path, model: Path) -> None:
    result = run("forget", "--memory", learned, "--label", " dog ", "--yes", "--rebuild")
    assert result.exit_code == 0, result.output
    assert result.stdout == (
        "Forgot 4 examples of 'dog'.\nLearned 8 examples again from the start.\n"
    )
    assert labels_in(learned) == {"cat": 4, "great white shark": 4}


def test_forget_one_example_then_rebuild(run: Run, learned: Path, photos: Path) -> None:
    with open_memory(learned, read_only=True) as store:
        first = next(iter(store.ids()))[0]
    result = run("forget", "--memory", learned, "--example", first, "-y")
    assert result.exit_code == 0
    assert "stays until `anytimecl rebuild`" in result.stdout
    assert sum(labels_in(learned).values()) == 11
    result = run("rebuild", "--memory", learned)
    assert (result.exit_code, result.stdout) == (0, "Learned 11 examples again from the start.\n")


def test_what_no_checkpoint_knows_is_forgotten_without_a_trace(
    run: Run, learned: Path, photos: Path, model: Path
) -> None:
    shutil.rmtree(learned / "checkpoint")  # as after a crash in the first minutes
    result = run("forget", "--memory", learned, "--label", "dog", "-y")
    assert result.exit_code == 0, result.output
    assert "the model kept nothing" in result.stdout
    after = opinion(learned, model, photos)
    assert run("rebuild", "--memory", learned).exit_code == 0
    np.testing.assert_array_equal(opinion(learned, model, photos), after)


def test_forget_asks_first(run: Run, learned: Path) -> None:
    result = run("forget", "--memory", learned, "--label", "dog")
    assert result.exit_code != 0
    assert "Forget 4 examples of 'dog' for good?" in result.output
    assert sum(labels_in(learned).values()) == 12


def test_forget_refuses_what_is_not_there(run: Run, learned: Path) -> None:
    for words, told in [
        (("--label", "dogs"), "Did you mean 'dog'?"),
        (("--example", 999), "no example 999"),
        ((), "--example or --label"),
        (("--label", "dog", "--example", 1), "--example or --label"),
    ]:
        result = run("forget", "--memory", learned, "--yes", *words)
        assert result.exit_code == 2, words
        assert told in result.stderr
    assert sum(labels_in(learned).values()) == 12


def test_a_rebuild_that_is_stopped_changes_nothing(
    run: Run, learned: Path, photos: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = opinion(learned, model, photos)

    def press(done: int, total: int, note: str = "") -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_screen, "progress", lambda what: _Given(press))
        result = run("rebuild", "--memory", learned)
    assert result.exit_code == 130
    assert "as it was" in result.stderr
    np.testing.assert_array_equal(opinion(learned, model, photos), before)
