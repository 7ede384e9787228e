"""Keys that have taught, for ever: a request that comes again is known even if its example is gone.

Only digests are kept. Of a key, since it may be a file's name; of what came with it, under the key
as salt, so that two lessons cannot be compared.

A plain key lies with its example. Here are those that it had before its image was taught under
another one: a retry of an old lesson must not undo a newer one.
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


class FileKey(str):
    """A key that says which image it is, and which label: it speaks whenever it comes.

    An image that was moved from one label to another and back is meant as it is now.
    """


class Used(NamedTuple):
    """What a key taught."""

    example: int
    content: bytes  # digest; of a plain key it begins with `_PLAIN`


_PLAIN = b"plain"  # no digest of a request is as long as one with this before it


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

    def add_former(self, key: str, example: int, label: str) -> None:
        """A plain key that taught an example, which has another key now, or had one already."""
        if self._find(key) is None:
            self.copy(_digest(key), Used(example, _taught(key, label)))

    def find(self, key: str) -> Used | None:
        """What the key of a request taught, if it has."""
        used = self._find(key)
        return None if used is None or used.content.startswith(_PLAIN) else used

    def former(self, key: str) -> int | None:
        """The example that a plain key taught before this had another one."""
        used = self._find(key)
        return used.example if used is not None and used.content.startswith(_PLAIN) else None

    def came_with(self, key: str, label: str) -> bool:
        """Whether that was the label which a former key brought."""
        used = self._find(key)
        return used is not None and used.content == _taught(key, label)

    def _find(self, key: str) -> Used | None:
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


def _taught(key: str, label: str) -> bytes:
    return _PLAIN + RequestKey(key, label.encode()).content


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
