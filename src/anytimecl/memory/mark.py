"""The number of the last acknowledged event, kept outside the database.

SQLite recovers from a damaged write-ahead log by leaving out its end, and says nothing. This mark
tells that something is missing, and which numbers.
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

_FORM = struct.Struct("<qI")


class Mark:
    """A number in a small file, replaced in place.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "mark"
    >>> mark = Mark(path)
    >>> mark.put(7)
    >>> mark.close()
    >>> read_mark(path)
    7
    """

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("r+b", buffering=0)

    def put(self, number: int) -> None:
        """Remember `number`. A failure is no error: what it would guard is stored already."""
        with suppress(OSError):
            self._file.seek(0)
            self._file.write(_encode(number))

    @property
    def removed(self) -> bool:
        """Whether the file has no name any more."""
        return os.fstat(self._file.fileno()).st_nlink == 0

    def close(self) -> None:
        self._file.close()


def read_mark(path: Path) -> int:
    """The number, or 0 if there is none that can be trusted."""
    try:
        stored = path.read_bytes()
        number, _ = _FORM.unpack(stored)
    except (OSError, struct.error):
        return 0
    assert isinstance(number, int)
    return number if stored == _encode(number) else 0


def _encode(number: int) -> bytes:
    return _FORM.pack(number, zlib.crc32(number.to_bytes(8, "little")))
