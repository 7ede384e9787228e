"""Folders in the cache that are made once, by one process at a time, and are whole or absent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError

from anytimecl.errors import ModelError
from anytimecl.files import move_into_place


def made_once(folder: Path, is_made: Callable[[], bool], make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills if necessary; after an error or a power cut it is as before."""
    if is_made():  # first, since the cache may be read-only
        return folder
    with locked(folder.parent / f"{folder.name}.lock"):
        if is_made():  # another process was faster
            return folder
        try:
            with fresh_folder(folder.parent / f"{folder.name}.partial") as partial:
                make(partial)
                share(partial)
                shutil.rmtree(folder, ignore_errors=True)
                move_into_place(partial, folder)
        except (OSError, SafetensorError) as error:  # SafetensorError: a full disk
            raise ModelError(f"{folder} could not be written: {error}.") from error
    return folder


def share(folder: Path) -> None:
    """Make files that libraries wrote user-only readable for others, subject to the umask."""
    umask = os.umask(0)
    os.umask(umask)
    for file in folder.rglob("*"):
        file.chmod((0o777 if file.is_dir() else 0o666) & ~umask)


@contextmanager
def fresh_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder, emptied before and deleted afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """An inter-process lock, released by the system if the process dies."""
    # No soft lock: a process that dies would leave it behind.
    lock = FileLock(file, fallback_to_soft=False)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise ModelError(
            f"{file.parent} cannot be written to ({error}). Set ANYTIMECL_CACHE to a folder that "
            "can be."
        ) from error
    try:
        yield
    finally:
        lock.release()
