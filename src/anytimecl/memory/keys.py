"""Keys that have taught, for ever: a request that comes again is known even if its example is gone.

Only digests are kept. Of a key, since it may be a file's name; of what came with it, under the key
as salt, so that two lessons cannot be compared.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from anytimecl.errors import StoreError
from anytimecl.memory.checks import text_checksum


class RequestKey(str):
    """A key that is remembered after its example is forgotten, and what it came with.

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
        """To be copied and pickled: what it came with is not kept, only its digest."""
        return str.__new__, (RequestKey, str(self)), {"content": self.content}


class Used(NamedTuple):
    """What a key taught."""

    example: int
    content: bytes  # digest


class Keys:
    """Used keys, inside whatever transaction is open."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add(self, key: RequestKey, example: int) -> None:
        """It has taught."""
        self.copy(_digest(key), Used(example, key.content))

    def copy(self, key: bytes, used: Used) -> None:
        """One as `rows` gives it."""
        row = (key, *used, _checksum(key, used))
        self._db.execute("INSERT OR REPLACE INTO used_key VALUES (?, ?, ?, ?)", row)

    def find(self, key: str) -> Used | None:
        """What the key taught, if it has."""
        wanted = "SELECT key, example, content, crc FROM used_key WHERE key = ?"
        row = self._db.execute(wanted, (_digest(key),)).fetchone()
        if row is None:
            return None
        if not _sound(row):
            raise StoreError("A key of the memory is damaged: restore a backup.")
        return Used(*row[1:3])

    def rows(self) -> Iterator[tuple[bytes, Used]]:
        """Every key that is not damaged."""
        for row in self._db.execute("SELECT key, example, content, crc FROM used_key"):
            if _sound(row):
                yield row[0], Used(*row[1:3])

    def damaged(self) -> int:
        """How many are not what was stored."""
        rows = self._db.execute("SELECT key, example, content, crc FROM used_key")
        return sum(not _sound(row) for row in rows)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()[:16]


def _sound(row: tuple[bytes, int, bytes, int]) -> bool:
    key, example, content, crc = row
    try:
        return crc == _checksum(key, Used(example, content))
    except AttributeError:  # a flipped bit has made text or a number of it
        return False


def _checksum(key: bytes, used: Used) -> int:
    return text_checksum(key.hex(), used.example, used.content.hex())
