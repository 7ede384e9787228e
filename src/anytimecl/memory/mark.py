"""The number of the last acknowledged event, kept outside the database.

SQLite silently drops the end of a damaged write-ahead log. The mark shows that events are missing,
and which.
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

_FORM = struct.Struct("<QI")


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
        """Store a number. Failures are ignored: the event itself is stored already."""
        with suppress(OSError):
            self._file.seek(0)
            self._file.write(_encode(number))

    @property
    def removed(self) -> bool:
        """Whether the file was deleted."""
        return os.fstat(self._file.fileno()).st_nlink == 0

    def close(self) -> None:
        self._file.close()


def read_mark(path: Path) -> int:
    """The number, or 0 if there is no valid one."""
    try:
        stored = path.read_bytes()
        number, _ = _FORM.unpack(stored)
    except (OSError, struct.error):
        return 0
    assert isinstance(number, int)
    return number if stored == _encode(number) else 0


def _encode(number: int) -> bytes:
    return _FORM.pack(number, zlib.crc32(number.to_bytes(8, "little")))
