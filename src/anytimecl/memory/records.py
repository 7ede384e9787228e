"""Rows of examples and their records, with a checksum that is verified on every read."""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from anytimecl.errors import StoreError
from anytimecl.memory.checks import as_bytes
from anytimecl.memory.database import is_damage
from anytimecl.memory.stream import EXTENT, LARGEST, Stream

_ENTRY = 220  # bytes of Python overhead for a cached record
_TOGETHER = 64  # examples fetched by one statement

# CROSS JOIN: the outer loop is over examples, so that extents come in order.
_JOINED = f"""
    SELECT e.id, e.label, e.candidates, e.start, e.size, e.crc, e.key, e.time, x.data
    FROM example e CROSS JOIN extent x
    ON x.id BETWEEN e.start / {EXTENT} AND (e.start + e.size - 1) / {EXTENT}
    WHERE e.size <= {LARGEST} AND e.id IN
"""


class Place(NamedTuple):
    """Location of an example's record, and the other columns."""

    label: int
    candidates: int | None
    start: int
    size: int
    crc: int
    key: str | None
    time: int | None  # in milliseconds since 1970; None: unknown


class IndexEntry(NamedTuple):
    """A record, and the id of its candidate set."""

    record: bytes
    candidates: int | None = None


class Cache:
    """LRU cache of records, bounded in bytes.

    >>> cache = Cache(1000)
    >>> for example in range(4):
    ...     cache.put(example, IndexEntry(bytes(200)))
    >>> cache.get(0) is None, len(cache.get(3).record)
    (True, 200)
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._records: OrderedDict[int, IndexEntry] = OrderedDict()

    def get(self, example: int) -> IndexEntry | None:
        """The entry of an example, if cached."""
        stored = self._records.get(example)
        if stored is not None:
            self._records.move_to_end(example)
        return stored

    def put(self, example: int, stored: IndexEntry) -> None:
        """Add or replace an entry, as the most recently used."""
        self.drop(example)
        self._records[example] = stored
        self._bytes += len(stored.record) + _ENTRY
        while self._bytes > self._limit:
            _, oldest = self._records.popitem(last=False)
            self._bytes -= len(oldest.record) + _ENTRY

    def drop(self, example: int) -> None:
        """Remove an entry."""
        stored = self._records.pop(example, None)
        if stored is not None:
            self._bytes -= len(stored.record) + _ENTRY

    def clear(self) -> None:
        """Remove all entries."""
        self._records.clear()
        self._bytes = 0


class Records:
    """Records by example, within the caller's transaction; cached in RAM."""

    def __init__(self, db: sqlite3.Connection, cache: Cache) -> None:
        self._db = db
        self.stream = Stream(db)
        self.cache = cache

    def add(
        self,
        example: int,
        label: int,
        candidates: int | None,
        key: str | None,
        record: bytes,
        time: int | None,
    ) -> None:
        """Store a record under a new number."""
        crc = checksum(example, label, candidates, key, record, time)
        start = self.stream.put(record)
        row = (example, label, candidates, start, len(record), crc, key, time)
        self._db.execute("INSERT INTO example VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def rewrite(self, example: int, label: int, key: str | None) -> None:
        """Change label and key; the record is not moved."""
        record, place = self.get(example).record, self.place(example)
        crc = checksum(example, label, place.candidates, key, record, place.time)
        change = "UPDATE example SET label = ?, key = ?, crc = ? WHERE id = ?"
        self._db.execute(change, (label, key, crc, example))

    def drop(self, example: int, place: Place) -> bool:
        """Delete a record; returns whether its bytes were found and overwritten."""
        found = self.owns(example, place)
        self.cache.drop(example)
        if found:
            self.stream.free(place.start, place.size)
        self._db.execute("DELETE FROM example WHERE id = ?", (example,))
        return found

    def owns(self, example: int, place: Place) -> bool:
        """Whether the bytes in a place are the example's: damage may have put it over others."""
        with suppress(StoreError):
            self.fetch(example, place)
            return True
        start, size = place.start, place.size
        if not (isinstance(start, int) and isinstance(size, int)):
            return False
        if not 0 <= start <= start + size <= self.stream.extents * EXTENT:
            return False
        others = "SELECT id, start, size FROM example UNION ALL SELECT 0, start, size FROM hole"
        shared = f"SELECT 1 FROM ({others}) "
        shared += "WHERE id != ? AND size > 0 AND start < ? AND start + size > ?"
        return self._db.execute(shared, (example, start + size, start)).fetchone() is None

    def find(self, example: int) -> Place | None:
        """Where an example lies, or None if there is none."""
        if not 0 < example < 1 << 63:  # SQLite has no larger ones
            return None
        wanted = "SELECT label, candidates, start, size, crc, key, time FROM example WHERE id = ?"
        with blaming(example):
            row = self._db.execute(wanted, (example,)).fetchone()
        return row and Place(*row)

    def place(self, example: int) -> Place:
        """The place of an example; StoreError if there is none."""
        place = self.find(example)
        if place is None:
            told = f"The memory has no example {example}: it was forgotten, or never stored."
            raise StoreError(told)
        return place

    def fetch(self, example: int, place: Place) -> bytes:
        """Read a record from disk and verify it."""
        with blaming(example):
            record = self.stream.get(place.start, place.size)
            if not _fits(example, place, record):
                raise damaged(example)
        return record

    def get(self, example: int) -> IndexEntry:
        """A record; StoreError if it is missing or damaged."""
        stored = self.cache.get(example)
        if stored is None:
            place = self.place(example)
            stored = IndexEntry(self.fetch(example, place), place.candidates)
            self.cache.put(example, stored)
        return stored

    def get_many(self, ids: Iterable[int]) -> dict[int, IndexEntry]:
        """The records that are undamaged; for the others, `get` raises the reason."""
        found: dict[int, IndexEntry] = {}
        missing = []
        for example in dict.fromkeys(ids):
            stored = self.cache.get(example)
            if stored is None:
                missing.append(example)
            else:
                found[example] = stored
        for at in range(0, len(missing), _TOGETHER):
            for example, stored in self._fetch_together(missing[at : at + _TOGETHER]):
                found[example] = stored
                self.cache.put(example, stored)
        return found

    def _fetch_together(self, ids: Sequence[int]) -> Iterator[tuple[int, IndexEntry]]:
        try:
            rows = self._db.execute(f"{_JOINED} ({', '.join('?' * len(ids))})", ids).fetchall()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            return  # reading one by one finds the damaged one
        for example, group in groupby(rows, itemgetter(0)):
            parts = list(group)
            place = Place(*parts[0][1:-1])
            with suppress(TypeError, AttributeError, struct.error):
                offset = place.start % EXTENT
                record = b"".join([part[-1] for part in parts])[offset : offset + place.size]
                if _fits(example, place, record):
                    yield example, IndexEntry(record, place.candidates)


def _fits(example: int, place: Place, record: bytes) -> bool:
    known = place.label, place.candidates, place.key, record, place.time
    return place.crc == checksum(example, *known)


def checksum(
    example: int,
    label: int,
    candidates: int | None,
    key: str | None,
    record: bytes,
    time: int | None = None,
) -> int:
    """Checksum of a record and its columns.

    >>> checksum(1, 1, None, None, b"cat") == checksum(1, 2, None, None, b"cat")
    False
    """
    about = struct.pack("<qqq", example, label, candidates or 0) + (as_bytes(key) if key else b"")
    if time is not None:
        about += struct.pack("<q", time)
    crc = zlib.crc32(record, zlib.crc32(about))
    return crc - (crc >> 31 << 32)  # signed, as SQLite stores it in four bytes


@contextmanager
def blaming(example: int) -> Iterator[None]:
    """Name the example in errors about a damaged page or an invalid row."""
    try:
        yield
    except (TypeError, AttributeError, struct.error, OverflowError) as error:
        raise damaged(example) from error  # a flipped bit changed a value's type
    except sqlite3.Error as error:
        if is_damage(error):
            raise damaged(example) from error
        raise


def damaged(example: int) -> StoreError:
    """The error for a damaged example."""
    return StoreError(
        f"Example {example} of the memory is damaged: its bytes are not those that were stored. "
        "Run `anytimecl memory verify` to see what else is, and restore a backup."
    )
