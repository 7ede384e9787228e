"""Checkpoints: whole or not there, killed or full or damaged, and never a pickle."""

from __future__ import annotations

import dataclasses
import errno
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tests.helpers import changed

from anytimecl import checkpoint as checkpoints
from anytimecl.checkpoint import MANIFEST, VERSION, WEIGHTS, Checkpoint, load, save
from anytimecl.errors import CheckpointError


def checkpoint(event: int) -> Checkpoint:
    """One that says by its content which it is."""
    return Checkpoint(
        event=event,
        fingerprint="0123456789abcdef",
        config={"seed": 3, "learner": {"lr": 9.375e-6}},
        tensors={
            "weights.a": torch.full((3, 5), 0.1 * event),
            "weights.other": torch.tensor(1 / 3 + event),
            "first.classifier": torch.zeros(0, 4),
            "steps": torch.tensor(event),
        },
        state={
            "estimates": {"eta": 0.99, "labels": {"naïve café": {"tuned": 1 / 7 + event}}},
            "sampler": {"buckets": [[1, 2], []]},
            "labels": ["naïve café", "猫"],
        },
    )


def assert_is(found: Checkpoint | None, event: int) -> None:
    """The whole of it, bit for bit."""
    expected = checkpoint(event)
    assert found is not None
    assert changed(dict(found.tensors), dict(expected.tensors)) == []
    assert dataclasses.replace(found, tensors={}) == dataclasses.replace(expected, tensors={})


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "checkpoint"
    assert load(folder) is None
    save(checkpoint(1), folder)
    assert_is(load(folder), 1)
    save(checkpoint(2), folder)
    assert_is(load(folder), 2)
    assert names(folder.parent) == {"checkpoint"}


def test_a_link_to_a_folder_elsewhere_is_followed(tmp_path: Path) -> None:
    """Else the second one could not be saved, and the first would outlive what is forgotten."""
    there, link = tmp_path / "disk" / "there", tmp_path / "checkpoint"
    there.parent.mkdir()
    link.symlink_to(there, target_is_directory=True)
    for event in (1, 2, 3):
        save(checkpoint(event), link)
        assert_is(load(link), event)
        assert_is(checkpoints.load_beside_owner(link), event)
    assert link.is_symlink()
    assert names(there.parent) == {"there"}


def test_weights_that_diverged_are_loaded_as_they_were_saved(tmp_path: Path) -> None:
    """Else a memory could not be opened any more: its replay leads to the same weights."""
    diverged = {"weights.a": torch.tensor([1.0, torch.nan])}
    save(dataclasses.replace(checkpoint(1), tensors=diverged), tmp_path / "c")
    found = load(tmp_path / "c")
    assert found is not None
    assert found.tensors["weights.a"].isnan().tolist() == [False, True]


def test_tensors_that_are_views_are_saved(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(3, 4)
    save(dataclasses.replace(checkpoint(1), tensors={"a": whole.T}), tmp_path / "c")
    found = load(tmp_path / "c")
    assert found is not None
    assert torch.equal(found.tensors["a"], whole.T)


def test_there_is_no_pickle_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    save(checkpoint(1), folder)
    assert names(folder) == {MANIFEST, WEIGHTS}
    assert load_file(folder / WEIGHTS).keys() == checkpoint(1).tensors.keys()
    assert json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["version"] == VERSION

    class Bomb:
        def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
            return pytest.fail, ("a pickle was opened",)

    for name in (MANIFEST, WEIGHTS):
        save(checkpoint(1), folder)
        (folder / name).write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(CheckpointError):
            load(folder)
    torch.save({"a": torch.zeros(2)}, folder / WEIGHTS)
    with pytest.raises(CheckpointError):
        load(folder)


# Killed


class KilledError(BaseException):
    """The process is gone: nothing after it happens, no clean-up either."""


def die_at(step: int, patch: pytest.MonkeyPatch) -> list[str]:
    """Let the process die at one of the steps in which saving touches the disk.

    Odd steps die before the deed and even ones halfway through it, where there is a halfway.
    """
    steps: list[str] = []

    def deadly(name: str, deed: Callable[..., Any], half: Callable[..., Any] | None) -> Any:
        def instead(*args: Any, **options: Any) -> Any:
            for part in (None, half):
                steps.append(name)
                if len(steps) >= step:
                    if part is not None and len(steps) == step:
                        part(*args)
                    raise KilledError
            return deed(*args, **options)

        return instead

    def half_saved(tensors: Any, path: Path) -> None:
        save_file(tensors, path)
        path.write_bytes(path.read_bytes()[:100])

    def half_removed(path: Path, **_: Any) -> None:
        if path.exists():
            next(path.iterdir()).unlink()

    write = Path.write_bytes
    for target, name, half in (
        (checkpoints, "save_file", half_saved),
        (Path, "write_text", lambda path, text, **_: write(path, text[: len(text) // 2].encode())),
        (checkpoints, "sync", None),
        (Path, "rename", None),
        (shutil, "rmtree", half_removed),
        (Path, "mkdir", None),
    ):
        patch.setattr(target, name, deadly(name, getattr(target, name), half))
    return steps


@pytest.mark.parametrize("older", [True, False])
def test_killed_at_any_step_it_is_the_old_one_or_the_new_one(older: bool, tmp_path: Path) -> None:
    found: list[int] = []
    finished, step = False, 0
    while not finished:
        step += 1
        folder = tmp_path / str(step) / "checkpoint"
        if older:
            save(checkpoint(1), folder)
        else:
            folder.parent.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            steps = die_at(step, patch)
            try:
                save(checkpoint(2), folder)
                finished = True
            except KilledError:
                pass
        for read in (checkpoints.load_beside_owner, load, load):
            after = read(folder)
            if after is not None:
                assert_is(after, after.event)
            assert (after.event if after else 0) in ({1, 2} if older else {0, 2})
        found.append(after.event if after else 0)
        save(checkpoint(3), folder)  # and life goes on, without what death left behind
        assert_is(load(folder), 3)
        assert names(folder.parent) == {"checkpoint"}
    assert {"save_file", "write_text", "rename", "sync", "rmtree"} <= set(steps)
    assert found == sorted(found)  # from some step on it is the new one
    assert found[0] == (1 if older else 0)
    assert found[-1] == 2


def test_between_the_two_renames_the_old_one_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    save(checkpoint(1), folder)
    folder.rename(checkpoints._old(folder))
    assert_is(checkpoints.load_beside_owner(folder), 1)
    assert not folder.exists()  # a reader changes nothing
    assert_is(load(folder), 1)
    assert folder.exists()


# Full


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        SafetensorError("Error while serializing: I/O error: No space left on device"),
    ],
)
@pytest.mark.parametrize("where", ["save_file", "sync", "write_text", "rename"])
def test_a_full_disk_leaves_the_old_one(
    where: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoint"
    save(checkpoint(1), folder)

    def full(*args: Any, **options: Any) -> None:
        if where == "rename" and args[0] == folder:
            shutil.move(*args)  # the first of the two succeeds
        else:
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path if where in ("write_text", "rename") else checkpoints, where, full)
        with pytest.raises(CheckpointError, match="No space left") as raised:
            save(checkpoint(2), folder)
    assert str(folder) in str(raised.value)
    assert "make room" in str(raised.value)
    assert not (tmp_path / ".checkpoint-new").exists()
    assert_is(load(folder), 1)
    save(checkpoint(2), folder)
    assert_is(load(folder), 2)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="could not be written"):
        save(checkpoint(1), tmp_path / "file" / "checkpoint")


# Damaged


@pytest.mark.parametrize("name", [MANIFEST, WEIGHTS])
def test_a_changed_bit_anywhere_is_noticed(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    save(checkpoint(1), folder)
    whole = (folder / name).read_bytes()
    accepted = []
    for at in range(len(whole)):
        bit = 1 << (at * 5 % 8)
        (folder / name).write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        try:
            assert_is(load(folder), 1)  # as with 9.375e-06 and 9.375E-06
            accepted.append(at)
        except CheckpointError:
            pass
    assert len(accepted) <= 2
    (folder / name).write_bytes(whole)
    assert_is(load(folder), 1)


@pytest.mark.parametrize("name", [MANIFEST, WEIGHTS])
def test_one_cut_short_is_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    save(checkpoint(1), folder)
    whole = (folder / name).read_bytes()
    for size in (0, 1, 7, 8, 9, len(whole) // 2, len(whole) - 1):
        (folder / name).write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="Delete it: learning is repeated"):
            load(folder)
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match="Delete it: learning is repeated"):
        load(folder)


def test_weights_of_another_checkpoint_are_refused(tmp_path: Path) -> None:
    for event in (1, 2):
        save(checkpoint(event), tmp_path / str(event))
    shutil.copy(tmp_path / "2" / WEIGHTS, tmp_path / "1" / WEIGHTS)
    with pytest.raises(CheckpointError, match="damaged"):
        load(tmp_path / "1")


@pytest.mark.parametrize("version", [0, VERSION - 1, VERSION + 1, None, "2.0"])
def test_another_version_is_refused_with_what_to_do(version: Any, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    save(checkpoint(1), folder)
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    (folder / MANIFEST).write_text(json.dumps(manifest | {"version": version}))
    with pytest.raises(CheckpointError, match=f"version {version} .* reads {VERSION}") as raised:
        load(folder)
    assert "delete it" in str(raised.value)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "null", "7", '{"format": "somebody else\'s"}', '"anytimecl checkpoint"']
)
def test_somebody_elses_folder_is_refused(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    save(checkpoint(1), folder)
    (folder / MANIFEST).write_text(text)
    with pytest.raises(CheckpointError, match=r"not a (whole )?checkpoint"):
        load(folder)


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("something else")
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        load(tmp_path / "checkpoint")


# Beside an owner who saves


def test_a_reader_tries_again_when_it_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoint"
    save(checkpoint(1), folder)
    keep, owner_saves = checkpoints._checksum, True

    def checksum(path: Path, manifest: Any) -> int:
        nonlocal owner_saves
        if owner_saves and path.parent == folder:  # the manifest is read, the weights are not
            owner_saves = False
            save(checkpoint(2), folder)
        return keep(path, manifest)

    monkeypatch.setattr(checkpoints, "_checksum", checksum)
    assert_is(checkpoints.load_beside_owner(folder), 2)


def test_a_file_that_vanishes_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What safetensors raises then is of no kind of its own."""
    folder = tmp_path / "checkpoint"
    save(checkpoint(1), folder)
    keep, calls = checkpoints.load_file, []

    def load_file(path: Path) -> Any:
        calls.append(path)
        if len(calls) == 1:
            raise RuntimeError("unable to open file <learner.safetensors> in read-only mode")
        return keep(path)

    monkeypatch.setattr(checkpoints, "load_file", load_file)
    assert_is(checkpoints.load_beside_owner(folder), 1)
    calls.clear()
    with pytest.raises(CheckpointError, match="unable to open"):
        checkpoints.load(folder)


def test_a_reader_gives_up_on_one_that_stays_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    assert checkpoints.load_beside_owner(folder) is None
    save(checkpoint(1), folder)
    (folder / WEIGHTS).write_bytes(b"")
    with pytest.raises(CheckpointError):
        checkpoints.load_beside_owner(folder)
