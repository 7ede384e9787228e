"""Files and folders that are replaced whole or stay as they were, and are on the disk itself."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DRAFT = ".part"  # how the name of what is being written ends


def shown(path: Path) -> str:
    """As a person would name it here: from the working folder, if it lies below that.

    >>> shown(Path.cwd() / "memory"), shown(Path("/memory"))
    ('memory', '/memory')
    """
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere; or the working folder is gone
        return str(path)


def identity(path: Path) -> tuple[int, int] | None:
    """Which file has the name now, whatever else it is called; None: there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def replacing(path: Path, *, alone: bool = True) -> Iterator[Path]:
    """A draft to write, a file or a folder, which becomes `path` when the block ends well.

    After an error or a crash `path` is as it was. One writer at a time: the draft always has the
    same name, so that what a crash left of it goes with the next one. Unless it is `alone`: then
    each writer has a draft of its own, `path` is that of the last one, and what a crash left stays.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with replacing(path) as draft:
    ...     _ = draft.write_text("all of it")
    >>> path.read_text()
    'all of it'
    """
    own = "" if alone else f".{uuid.uuid4().hex}"
    draft = path.with_name(f".{path.name}{own}{DRAFT}")
    _remove(draft)
    try:
        yield draft
        move_into_place(draft, path)
    finally:
        _remove(draft)


def move_into_place(draft: Path, path: Path) -> None:
    """Rename a finished draft to `path`, in place of an older file or an empty folder there.

    It is on the disk before it gets the name: a power cut leaves no good name on half a file.
    """
    if draft.is_dir():
        for inside in draft.rglob("*"):
            sync(inside)
        if path.is_dir():
            path.rmdir()  # Windows renames onto no folder, not even an empty one
    sync(draft)
    os.replace(draft, path)
    sync(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, unless they are there: their names are on the disk."""
    new = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in reversed(new):
        sync(each.parent)


def sync(path: Path) -> None:
    """Return when a file's bytes, or a folder's list of names, would survive a power cut."""
    folder = path.is_dir()
    if folder and os.name == "nt":
        return  # Windows syncs files alone
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_all(folder: Path) -> None:
    """`sync` for everything in a folder, for the folder, and for its own name."""
    for inside in folder.rglob("*"):
        sync(inside)
    sync(folder)
    sync(folder.parent)


def _remove(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)
