"""`anytimecl memory`."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from tests.backbone import tiny
from tests.commands.conftest import Run, zipped

from anytimecl import AnytimeClassifier, checkpoint
from anytimecl.codec import ImageBytes
from anytimecl.errors import ImageError, StoreError
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


def damaged(folder: Path) -> int:
    """Flip a bit of the first example's record; returns its id."""
    with open_memory(folder) as store:
        example = next(iter(store.ids()))[0]
        record = store.example(example).record
    with closing(sqlite3.connect(folder / "memory.sqlite3")) as db, db:
        [(extent, data)] = [row for row in db.execute("SELECT * FROM extent") if record in row[1]]
        flipped = data.replace(record, bytes([record[0] ^ 1]) + record[1:])
        db.execute("UPDATE extent SET data = ? WHERE id = ?", (flipped, extent))
    return example


def test_verify_names_what_is_damaged(run: Run, learned: Path) -> None:
    example = damaged(learned)
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
    monkeypatch.setattr("anytimecl.trainer.Trainer.teach", lambda *given: pytest.fail("repeated"))
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


# Out and in


def test_what_is_exported_is_imported(run: Run, learned: Path, model: Path, photos: Path) -> None:
    file = str(photos / "test/cat/4.png")
    result = run("memory", "export", learned, "--to", "out")
    assert (result.exit_code, result.stdout) == (0, f"Exported 12 examples of {learned} to out.\n")
    [features] = Path("out/features").iterdir()
    assert load_file(features)["embedding"].shape[0] == 12
    result = run("memory", "import", "out", "--to", "again")
    assert (result.exit_code, result.stdout) == (0, "Imported 12 examples into again.\n")
    with (
        AnytimeClassifier.open(learned, model=model) as first,
        AnytimeClassifier.open("again", model=model) as second,
    ):
        np.testing.assert_array_equal(second.predict_proba(file), first.predict_proba(file))
    result = run("memory", "import", "out", "--to", "again")
    assert result.stdout == "Imported 0 examples into again, passed over 12 that were there.\n"


def test_what_is_imported_into_a_memory_is_learned(
    run: Run, learned: Path, model: Path, photos: Path
) -> None:
    assert run("memory", "export", learned, "--to", "out", "--features", "none").exit_code == 0
    assert not Path("out/features").exists()
    with AnytimeClassifier.open("other", model=model) as classifier:
        classifier.learn_one(str(photos / "test/cat/4.png"), "cat")
    assert run("memory", "import", "out", "--to", "other").exit_code == 0
    saved = checkpoint.load(Path("other/checkpoint"))
    assert saved is not None
    assert saved.event == 13
    assert run("memory", "verify", "other").exit_code == 0


def test_an_import_without_its_model_is_learned_later(
    run: Run, learned: Path, model: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "moved")
    run("memory", "export", learned, "--to", "out", "--features", "none")
    with open_memory(learned, read_only=True) as store:
        meta = dict(store.meta)
    about = Path("out/memory.json")
    about.write_text(about.read_text().replace(str(model), "/nowhere/at all"))
    result = run("memory", "import", "out", "--to", "again")
    assert result.exit_code == 0, result.output
    assert "learned when the memory is opened" in result.stderr
    assert meta["fingerprint"] in about.read_text()
    result = run("memory", "import", "out", "--to", "third", "--model", tmp_path / "moved")
    assert result.exit_code == 0, result.output


def test_an_import_for_another_model_is_refused_with_the_way_out(
    run: Run, learned: Path, tmp_path: Path
) -> None:
    other = tiny.clip(tmp_path / "another", seed=1)
    run("memory", "export", learned, "--to", "out", "--features", "none")
    result = run("memory", "import", "out", "--to", "again", "--model", other)
    assert result.exit_code == 2
    assert "Import it without --model" in result.stderr
    assert not Path("again").exists()


def test_export_refuses_what_it_cannot_do(run: Run, learned: Path) -> None:
    for words, told in [
        (("--to", "out", "--features", "smells"), "embeddings, tokens, none"),
        (("--to", "out", "--features", "tokens"), "export embeddings"),
        (("--to", learned, "--features", "none"), "choose a new folder"),
    ]:
        result = run("memory", "export", learned, *words)
        assert result.exit_code == 2, words
        assert told in result.stderr
    result = run("memory", "import", learned, "--to", "again")
    assert result.exit_code == 2
    assert "no export of a memory" in result.stderr


def test_images_are_turned_over_to_another_model(
    run: Run, photos: Path, model: Path, tmp_path: Path
) -> None:
    other = tiny.clip(tmp_path / "another", seed=1)
    zipped_photos = zipped(photos)
    for source, memory in ((photos, "m"), (zipped_photos, "z")):
        result = run("learn", source, "--memory", memory, "--model", model, "--codec", "image")
        assert result.exit_code == 0, result.output
        with open_memory(Path(memory), read_only=True) as store:
            stored = {ImageBytes().images([store.example(i).record])[0] for i, _ in store.ids()}
        assert stored == {path.read_bytes() for path in (photos / "train").rglob("*.png")}
    result = run("stats", "--memory", "m", "--model", other)
    assert result.exit_code == 2
    assert "memory reencode m --to NEW" in result.stderr.replace("\n", "")
    result = run(
        "memory", "reencode", "m", "--to", "new", "--model", other, "--codec", "tokens-fp16"
    )
    assert (result.exit_code, result.stdout) == (0, "Learned 12 examples of m again in new.\n")
    assert run("stats", "--memory", "new").exit_code == 0
    result = run("memory", "reencode", "m", "--to", "third", "--codec", "smells")
    assert result.exit_code == 2
    assert "tokens-fp16" in result.stderr


def test_reencode_names_what_it_left_out(run: Run, photos: Path, model: Path) -> None:
    run("learn", photos, "--memory", "m", "--model", model, "--codec", "image")
    with open_memory(Path("m")) as store:
        store.append("cat", ImageBytes().encode_image(b"no image"))
    with pytest.raises(ImageError):  # not even a checkpoint helps there
        AnytimeClassifier.open("m", model=model)
    result = run("memory", "reencode", "m", "--to", "new")
    assert result.exit_code == 1
    assert "Left out (1):\n  example 13\n" in result.stderr


def test_cap_and_durability(run: Run, photos: Path, model: Path) -> None:
    words = ("learn", photos, "--memory", "m", "--model", model, "--cap", 6)
    assert run(*words, "--durability", "full").exit_code == 0
    with open_memory(Path("m"), read_only=True) as store:
        assert store.labels() == {"cat": 2, "dog": 2, "great white shark": 2}
    result = run(*words, "--durability", "eternal")
    assert result.exit_code == 2
    assert "process or full" in result.stderr


def test_a_file_where_a_folder_goes_is_told(
    run: Run, learned: Path, photos: Path, model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("of mine")
    assert run("memory", "export", learned, "--to", tmp_path / "out").exit_code == 0
    for words in (
        ("learn", photos, "--memory", file, "--model", model),
        ("label", photos, "--memory", file, "--model", model),
        ("memory", "backup", learned, file),
        ("memory", "import", tmp_path / "out", "--to", file),
        ("memory", "reencode", learned, "--to", file, "--codec", "image"),
        ("encode", photos, "--to", file, "--model", model),
        ("learn", photos, "--memory", file / "below", "--model", model),
    ):
        result = run(*words)
        assert result.exit_code == 2, words
        assert isinstance(result.exception, SystemExit), words
        assert file.name in result.stderr, words
    assert file.read_text() == "of mine"


def test_an_error_of_the_disk_is_a_line_and_no_traceback(
    run: Run, learned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "/disk/out")

    monkeypatch.setattr("anytimecl.transfer.copy_memory", refuse)
    result = run("memory", "backup", learned, "copy")
    assert result.exit_code == 2
    assert result.stderr == "/disk/out: Read-only file system.\n"
    with pytest.raises(OSError, match="Read-only"):
        raise run("--debug", "memory", "backup", learned, "copy").exception or AssertionError


def test_rescue_saves_what_can_be_read(run: Run, learned: Path) -> None:
    result = run("memory", "rescue", learned, "whole")
    assert (result.exit_code, result.stderr) == (0, "")
    example = damaged(learned)
    result = run("memory", "rescue", learned, "new")
    assert result.exit_code == 1
    assert result.stdout.split() == f"Rescued 11 examples of {learned} into new.".split()
    assert f"Lost (1):\n  example {example}\n" in result.stderr
    with AnytimeClassifier.open(Path("new")) as classifier:
        assert len(classifier) == 11
    assert run("memory", "rescue", learned, "new").exit_code == 2


def test_a_memory_that_has_lost_its_database_is_not_begun_anew(
    run: Run, learned: Path, photos: Path, model: Path
) -> None:
    (learned / "memory.sqlite3").unlink()
    for words in (
        ("learn", photos, "--memory", learned, "--model", model),
        ("serve", "--memory", learned, "--model", model),
        ("predict", photos, "--memory", learned),
        ("memory", "info", learned),
    ):
        result = run(*words)
        assert result.exit_code == 2, words
        told = result.stderr.splitlines()[-1]
        assert "memory has lost its memory.sqlite3, which held" in told, words
        assert told.endswith("delete what is still there to start anew."), words
    assert not (learned / "memory.sqlite3").exists()


def test_the_store_in_ram_takes_no_folder(run: Run, photos: Path, model: Path) -> None:
    result = run("learn", photos, "--memory", "m", "--model", model, "--store", "ram")
    assert result.exit_code == 2
    assert "keeps nothing on the disk" in result.stderr
    assert not Path("m").exists()
    with pytest.raises(StoreError, match="nothing to read without a folder"):
        AnytimeClassifier.open(model=model, read_only=True)


def test_a_codec_with_options_is_shown_as_it_was_given(run: Run, photos: Path, model: Path) -> None:
    codec = '{"name": "attention-pca", "options": {"components": 2}}'
    result = run("learn", photos, "--memory", "m", "--model", model, "--codec", codec)
    assert result.exit_code == 0, result.output
    assert codec in " ".join(run("memory", "info", "m").stdout.split())


def test_a_store_that_is_named_has_its_own_options(run: Run, photos: Path, model: Path) -> None:
    words = ("learn", photos, "--memory", "m", "--model", model, "--store", "sqlite")
    for option in (("--cap", 6), ("--durability", "full"), ("--thumbnails",)):
        result = run(*words, *option)
        assert result.exit_code == 2
        assert "are options of the store" in " ".join(result.stderr.split())
        assert not Path("m").exists()


def test_verify_does_not_advise_itself(run: Run, learned: Path) -> None:
    file = learned / "memory.sqlite3"
    file.write_bytes(file.read_bytes()[:60_000])  # half-copied
    result = run("memory", "verify", learned)
    assert result.exit_code == 2
    assert "restore a backup" in result.stderr
    assert "memory verify" not in result.stderr


def test_reencode_takes_an_empty_folder_without_a_name(
    run: Run, photos: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("learn", photos, "--memory", "m", "--model", model, "--codec", "tokens-fp16")
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    result = run("memory", "reencode", tmp_path / "m", "--to", ".", "--codec", "tokens-fp32")
    assert result.exit_code == 0, result.output
    assert run("memory", "verify", tmp_path / "new").exit_code == 0
