"""Optional attributes of examples: digest, source and thumbnail.

Each has a checksum, except in rows of old versions. A damaged value counts as missing.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Iterator
from typing import Any

from anytimecl.memory.checks import as_bytes, file_checksum, text_checksum
from anytimecl.memory.contract import Row, StoreWarning

_KNOWN = {"content": "digest", "source": "name", "thumbnail": "data"}  # table -> what it says
_WORDS = {"content": "digest of the image", "source": "source", "thumbnail": "thumbnail"}


class About:
    """Attributes by example, within the caller's transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add(self, example: int, row: Row) -> None:
        """Store the attributes of a new example."""
        if row.content is not None:
            self._set("content", example, row.content)
        if row.source is not None:
            self.set_source(example, row.source)
        if row.thumbnail is not None:
            self._set("thumbnail", example, row.thumbnail)

    def drop(self, example: int) -> None:
        """Delete an example's attributes."""
        for table in (*_KNOWN, "withdrawn"):
            self._db.execute(f"DELETE FROM {table} WHERE example = ?", (example,))

    def row(self, example: int, row: Row) -> Row:
        """The row with its attributes."""
        return row._replace(
            content=self.digest(example),
            source=self.source(example),
            thumbnail=self.thumbnail(example),
        )

    def digest(self, example: int) -> int | None:
        """Digest of the image's tokens."""
        found = self._get("content", example)
        return None if found is None else int(found)

    def source(self, example: int) -> str | None:
        """Name of the image where it comes from."""
        found = self._get("source", example)
        return None if found is None else str(found)

    def set_source(self, example: int, name: str) -> None:
        """Store a name; bytes that are not UTF-8 are replaced."""
        self._set("source", example, as_bytes(name).decode("utf-8", "replace"))

    def thumbnail(self, example: int) -> bytes | None:
        """Thumbnail, as a WebP file."""
        found = self._get("thumbnail", example)
        return None if found is None else bytes(found)

    def damaged(self) -> Iterator[str]:
        """Messages about damaged values."""
        for table, column in _KNOWN.items():
            for example, value, crc in self._db.execute(
                f"SELECT example, {column}, crc FROM {table}"
            ):
                if not sound(example, value, crc):
                    yield _told(table, example)

    def _set(self, table: str, example: int, value: Any) -> None:
        what = f"INSERT OR REPLACE INTO {table} (example, {_KNOWN[table]}, crc) VALUES (?, ?, ?)"
        self._db.execute(what, (example, value, _checksum(example, value)))

    def _get(self, table: str, example: int) -> Any:
        wanted = f"SELECT {_KNOWN[table]}, crc FROM {table} WHERE example = ?"
        found = self._db.execute(wanted, (example,)).fetchone()
        if found is None or sound(example, *found):
            return found and found[0]
        warnings.warn(f"Left out: {_told(table, example)}", StoreWarning, stacklevel=4)
        return None


def _checksum(example: int, value: Any) -> int:
    if isinstance(value, bytes):
        return file_checksum(example, value)
    return text_checksum(example, value)


def sound(example: int, value: Any, crc: int | None) -> bool:
    """Whether a value matches its checksum, if it has one."""
    return crc is None or crc == _checksum(example, value)


def _told(table: str, example: int) -> str:
    return f"The {_WORDS[table]} of example {example} is damaged."
