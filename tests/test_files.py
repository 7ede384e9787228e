"""Replacing files and folders: all of the new one or all of the old, whatever happens between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from anytimecl import files
from anytimecl.files import move_into_place, replacing


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file that is there already, alone in its folder."""
    path = tmp_path / "file"
    path.write_text("old")
    return path


def test_text_bytes_and_tensors(old: Path) -> None:
    with replacing(old) as draft:
        draft.write_text("new")
        assert old.read_text() == "old"
    assert old.read_text() == "new"
    with replacing(old) as draft:
        draft.write_bytes(b"\0")
    assert old.read_bytes() == b"\0"
    with replacing(old) as draft:
        save_file({"one": torch.ones(3)}, draft)
    assert torch.equal(load_file(old)["one"], torch.ones(3))
    assert names(old.parent) == ["file"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_old_one_and_nothing_else(
    old: Path, error: type[BaseException]
) -> None:
    def write_half() -> None:
        with replacing(old) as draft:
            draft.write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert old.read_text() == "old"
    assert names(old.parent) == ["file"]


def test_a_rename_that_fails_leaves_the_old_one(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="no"), replacing(old) as draft:
        draft.write_text("new")
    assert old.read_text() == "old"
    assert names(old.parent) == ["file"]


def test_a_block_that_writes_nothing_is_an_error(old: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(old):
        pass
    assert old.read_text() == "old"


KILLED = """
import os, pathlib, signal, sys
from anytimecl.files import replacing
with replacing(pathlib.Path(sys.argv[1])) as draft:
    if sys.argv[2] == "folder":
        draft.mkdir()
        draft = draft / "inside"
    draft.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_writer_left_goes_with_the_next(old: Path, kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(old), kind])
    assert done.returncode == -signal.SIGKILL
    assert old.read_text() == "old"
    assert len(names(old.parent)) == 2
    with replacing(old) as draft:
        assert not draft.exists()
        draft.write_text("new")
    assert old.read_text() == "new"
    assert names(old.parent) == ["file"]


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()  # empty: it may be replaced
    with replacing(target) as draft:
        (draft / "deep").mkdir(parents=True)
        (draft / "deep" / "file").write_text("inside")
        assert names(target) == []
    assert (target / "deep" / "file").read_text() == "inside"
    assert names(tmp_path) == ["folder"]


def test_a_folder_with_something_in_it_is_never_replaced(tmp_path: Path) -> None:
    target, draft = tmp_path / "folder", tmp_path / "draft"
    for folder in (target, draft):
        folder.mkdir()
        (folder / folder.name).touch()
    with pytest.raises(OSError, match="not empty"):
        move_into_place(draft, target)
    assert names(target) == ["folder"]
    assert names(draft) == ["draft"]


def test_all_of_it_is_on_the_disk_before_it_gets_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are told apart by their number on the disk, which a rename does not change."""
    happened: list[int | str] = []
    real_sync, real_replace = os.fsync, os.replace

    def sync(handle: int) -> None:
        happened.append(os.fstat(handle).st_ino)
        real_sync(handle)

    def replace(source: Path, target: Path) -> None:
        happened.append("renamed")
        real_replace(source, target)

    monkeypatch.setattr(files.os, "fsync", sync)
    monkeypatch.setattr(files.os, "replace", replace)
    target = tmp_path / "folder"
    with replacing(target) as draft:
        (draft / "deep").mkdir(parents=True)
        (draft / "deep" / "file").write_text("inside")
    at = happened.index("renamed")
    within = {target, target / "deep", target / "deep" / "file"}
    assert set(happened[:at]) == {path.stat().st_ino for path in within}
    assert happened[at + 1 :] == [tmp_path.stat().st_ino]
