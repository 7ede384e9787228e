"""Folders in the cache: whole or absent, whatever happens while they are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from anytimecl import files
from anytimecl.backbone.making import made_once
from anytimecl.errors import ModelError


def weights(folder: Path) -> None:
    (folder / "weights").write_text("weights")


def test_it_is_made_once(tmp_path: Path) -> None:
    def never(folder: Path) -> None:
        raise AssertionError("it is there")

    made = tmp_path / "cache" / "made"
    for make in (weights, never):
        assert made_once(made, (made / "weights").is_file, make) == made
        assert (made / "weights").read_text() == "weights"


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        weights(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelError, match=r"made could not be written: .*No space left"):
        made_once(tmp_path / "made", lambda: False, full)
    assert [path.name for path in tmp_path.iterdir()] == ["made.lock"]


def test_what_has_the_name_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut leaves an empty file, which would count as made from then on."""
    made, synced = tmp_path / "made", []
    sync = files.sync

    def watched(path: Path) -> None:
        if not made.exists():
            synced.append(path.name)
        sync(path)

    monkeypatch.setattr(files, "sync", watched)
    made_once(made, made.exists, weights)
    assert "weights" in synced
