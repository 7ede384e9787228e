"""Idempotency keys that outlive their examples, so that retries are recognised after forgetting.

Only digests are stored: of the key, which may be a file name, and of the request's content, salted
with the key so that contents cannot be compared.

A plain key is stored with its example. This table has the former plain keys of examples whose image
was learned again with another key: a retry of the old request must not undo the newer one.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from anytimecl.errors import StoreError
from anytimecl.memory.checks import text_checksum


class RequestKey(str):
    """A key that is kept after its example is forgotten, with a digest of its content.

    >>> key = RequestKey("upload-17", b"an image")
    >>> key == "upload-17", key.content == RequestKey("upload-17", b"another image").content
    (True, False)
    """

    content: bytes  # digest

    def __new__(cls, key: str, content: bytes) -> RequestKey:
        made = super().__new__(cls, key)
        made.content = hashlib.sha256(_digest(key) + hashlib.sha256(content).digest()).digest()[:16]
        return made

    def __reduce__(self) -> tuple[object, ...]:
        """For copying and pickling, since only the digest of the content is kept."""
        return str.__new__, (RequestKey, str(self)), {"content": self.content}


class FileKey(str):
    """A key derived from image and label: counts as used only while its example has it.

    So an image that was moved to another label can be moved back.
    """


class Used(NamedTuple):
    """What a key was used for."""

    example: int
    content: bytes  # digest; for a plain key it begins with `_PLAIN`


_ROWS = "SELECT key, example, content, crc FROM used_key"
_PLAIN = b"plain"  # a prefix, which makes it longer than the digest of a request


class Keys:
    """Used keys, within the caller's transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add(self, key: RequestKey, example: int) -> None:
        """Store a key and its example."""
        self.copy(_digest(key), Used(example, key.content))

    def copy(self, key: bytes, used: Used) -> None:
        """Store an entry of `rows`."""
        row = (key, *used, _checksum(key, used))
        self._db.execute("INSERT OR REPLACE INTO used_key VALUES (?, ?, ?, ?)", row)

    def add_former(self, key: str, example: int, label: str) -> None:
        """Store a former plain key of an example, unless it is there."""
        if self._find(key) is None:
            self.copy(_digest(key), Used(example, _taught(key, label)))

    def find(self, key: str) -> Used | None:
        """What a `RequestKey` was used for, if it was."""
        used = self._find(key)
        return None if used is None or used.content.startswith(_PLAIN) else used

    def former(self, key: str) -> int | None:
        """The example of a former plain key."""
        used = self._find(key)
        return used.example if used is not None and used.content.startswith(_PLAIN) else None

    def came_with(self, key: str, label: str) -> bool:
        """Whether a former key was used with this label."""
        used = self._find(key)
        return used is not None and used.content == _taught(key, label)

    def _find(self, key: str) -> Used | None:
        row = self._db.execute(f"{_ROWS} WHERE key = ?", (_digest(key),)).fetchone()
        if row is None:
            return None
        if not _sound(row):
            raise StoreError("A key of the memory is damaged: restore a backup.")
        return Used(*row[1:3])

    def rows(self) -> Iterator[tuple[bytes, Used]]:
        """Every key that is not damaged."""
        for row in self._db.execute(_ROWS):
            if _sound(row):
                yield row[0], Used(*row[1:3])

    def damaged(self) -> int:
        """Number of damaged keys."""
        return sum(not _sound(row) for row in self._db.execute(_ROWS))


def _taught(key: str, label: str) -> bytes:
    return _PLAIN + RequestKey(key, label.encode()).content


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()[:16]


def _sound(row: tuple[bytes, int, bytes, int]) -> bool:
    key, example, content, crc = row
    try:
        return crc == _checksum(key, Used(example, content))
    except AttributeError:  # a flipped bit changed its type
        return False


def _checksum(key: bytes, used: Used) -> int:
    return text_checksum(key.hex(), used.example, used.content.hex())
