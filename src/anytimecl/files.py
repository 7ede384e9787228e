"""Atomic replacement and syncing of files and folders."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DRAFT = ".part"  # suffix of unfinished files


def shown(path: Path) -> str:
    """A path for messages: relative to the working directory, if below it.

    >>> shown(Path.cwd() / "memory"), shown(Path("/memory"))
    ('memory', '/memory')
    """
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere; or the working directory is gone
        return str(path)


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def replacing(path: Path, *, alone: bool = True) -> Iterator[Path]:
    """Yields a draft, a file or folder, which replaces `path` unless the block raises.

    After an error or a crash `path` is unchanged. With `alone`, there may be one writer at a time:
    the draft has a fixed name, so that the next one removes what a crash left. Otherwise each
    writer has its own draft, the last one to finish wins, and drafts left by a crash stay.

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
    """Rename a finished draft to `path`, replacing an older file or an empty folder.

    The draft is synced first, so that a power cut leaves no partial file under the name.
    """
    if draft.is_dir():
        for inside in draft.rglob("*"):
            sync(inside)
        if path.is_dir():
            path.rmdir()  # Windows cannot rename onto a folder, even an empty one
    sync(draft)
    os.replace(draft, path)
    sync(path.parent)


def make_folder(path: Path) -> None:
    """Create a folder and its parents if missing, and sync their names."""
    new = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in reversed(new):
        sync(each.parent)


def sync(path: Path) -> None:
    """fsync a file, or a folder's entries."""
    folder = path.is_dir()
    if folder and os.name == "nt":
        return  # Windows syncs files only
    handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_all(folder: Path) -> None:
    """`sync` everything in a folder, the folder, and its parent."""
    for inside in folder.rglob("*"):
        sync(inside)
    sync(folder)
    sync(folder.parent)


def _remove(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)
