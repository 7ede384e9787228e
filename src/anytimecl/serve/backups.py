"""A memory as a tar archive, made while it is served."""

from __future__ import annotations

import tarfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from anytimecl.serve.leaving import OpenFile, scratch
from anytimecl.serve.problems import Busy, Problem
from anytimecl.transfer import copy_memory

BLOCK = 512  # bytes, of a tar archive


class Archive:
    """A tar archive of a folder's files. The folder may be removed once this is made.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as made:
    ...     _ = (Path(made) / "a").write_bytes(b"12345")
    ...     archive = Archive(Path(made))
    >>> archive.size, len(b"".join(archive.parts()))
    (2048, 2048)
    """

    def __init__(self, folder: Path) -> None:
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        self._files = [OpenFile(path) for path in paths]
        self._heads = [
            _head(path.relative_to(folder).as_posix(), file.size)
            for path, file in zip(paths, self._files, strict=True)
        ]
        sizes = (file.size + _fill(file) for file in self._files)
        self.size = sum(map(len, self._heads)) + sum(sizes) + 2 * BLOCK

    def parts(self) -> Iterator[bytes]:
        """The archive in chunks."""
        for head, file in zip(self._heads, self._files, strict=True):
            yield head
            yield from file.parts()
            yield bytes(_fill(file))
        yield bytes(2 * BLOCK)


class Backups:
    """Backups of one memory, one at a time: each needs as much disk as the memory until sent."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._under_way: weakref.WeakSet[Archive] = weakref.WeakSet()
        self._copying = threading.Lock()

    def make(self) -> Archive:
        """A snapshot of the memory; learning continues meanwhile."""
        if self._folder is None:
            raise Problem(409, "This memory is in RAM alone: there is nothing to copy.")
        busy = Busy("A backup of this memory is under way; ask again later.", 10)
        if not self._copying.acquire(blocking=False):
            raise busy
        try:
            if len(self._under_way):
                raise busy
            with scratch() as made:
                copy_memory(self._folder, made / "copy")
                archive = Archive(made / "copy")
            self._under_way.add(archive)
            return archive
        finally:
            self._copying.release()


def _head(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = size, int(time.time()), 0o600
    return info.tobuf()


def _fill(file: OpenFile) -> int:
    return -file.size % BLOCK
