"""Files that are sent once: nothing stays on disk, even if the client disconnects."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anytimecl.serve.problems import Problem

CHUNK = 1 << 20  # bytes


class OpenFile:
    """An open file, which may be unlinked at once; its space is freed with this object.

    >>> with tempfile.TemporaryDirectory() as made:
    ...     path = Path(made) / "a"
    ...     _ = path.write_bytes(b"12345")
    ...     file = OpenFile(path)
    >>> file.size, list(file.parts())
    (5, [b'12345'])
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.size = os.fstat(self._file.fileno()).st_size
        weakref.finalize(self, self._file.close)

    def parts(self) -> Iterator[bytes]:
        """The content in chunks; once."""
        while part := self._file.read(CHUNK):
            yield part


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, removed at the end of the block."""
    try:
        with tempfile.TemporaryDirectory(prefix="anytimecl-") as made:
            yield Path(made)
    except OSError as error:
        told = "There is no room for a copy, which is made under TMPDIR before it is sent"
        raise Problem(503, f"{told}: {error.strerror}.", retry_after=30) from error
