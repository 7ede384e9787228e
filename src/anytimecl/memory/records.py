"""The examples' rows and the records that they point to, checked whenever they are read."""

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
from anytimecl.memory.checks import SIGNED, UNSIGNED, as_bytes
from anytimecl.memory.database import is_damage
from anytimecl.memory.stream import EXTENT, LARGEST, Stream

_ENTRY = 220  # bytes of Python's own around each record: objects, dictionary entry, key
_TOGETHER = 64  # examples fetched by one statement

# The outer loop is over the examples, and extents come in order.
_JOINED = f"""
    SELECT e.id, e.label, e.candidates, e.start, e.size, e.crc, e.key, e.time, x.data
    FROM example e CROSS JOIN extent x
    ON x.id BETWEEN e.start / {EXTENT} AND (e.start + e.size - 1) / {EXTENT}
    WHERE e.size <= {LARGEST} AND e.id IN
"""


class Place(NamedTuple):
    """Where the record of an example lies, and what else is known of it."""

    label: int
    candidates: int | None
    start: int
    size: int
    crc: int
    key: str | None
    time: int | None  # in milliseconds since 1970; None: not known


class IndexEntry(NamedTuple):
    """A record, and the number of its set of candidates."""

    record: bytes
    candidates: int | None = None


class Cache:
    """The records read again and again; of more than fit, that unused for longest goes.

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
        """As it was put."""
        stored = self._records.get(example)
        if stored is not None:
            self._records.move_to_end(example)
        return stored

    def put(self, example: int, stored: IndexEntry) -> None:
        """From now on it is the one used last."""
        self.drop(example)
        self._records[example] = stored
        self._bytes += len(stored.record) + _ENTRY
        while self._bytes > self._limit:
            _, oldest = self._records.popitem(last=False)
            self._bytes -= len(oldest.record) + _ENTRY

    def drop(self, example: int) -> None:
        """It is gone."""
        stored = self._records.pop(example, None)
        if stored is not None:
            self._bytes -= len(stored.record) + _ENTRY

    def clear(self) -> None:
        """All are."""
        self._records.clear()
        self._bytes = 0


class Records:
    """Records by example, inside whatever transaction is open; the hot set is kept in RAM."""

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
        """Another label and key; the record stays where it is."""
        record, place = self.get(example).record, self.place(example)
        crc = checksum(example, label, place.candidates, key, record, place.time)
        change = "UPDATE example SET label = ?, key = ?, crc = ? WHERE id = ?"
        self._db.execute(change, (label, key, crc, example))

    def drop(self, example: int, place: Place) -> None:
        """Remove a record for good."""
        self.cache.drop(example)
        self.stream.free(place.start, place.size)
        self._db.execute("DELETE FROM example WHERE id = ?", (example,))

    def find(self, example: int) -> Place | None:
        """Where an example lies, or None if there is none."""
        if not 0 < example < 1 << 63:  # SQLite has no larger ones
            return None
        wanted = "SELECT label, candidates, start, size, crc, key, time FROM example WHERE id = ?"
        with blaming(example):
            row = self._db.execute(wanted, (example,)).fetchone()
        return row and Place(*row)

    def place(self, example: int) -> Place:
        """Where an example lies."""
        place = self.find(example)
        if place is None:
            told = f"The memory has no example {example}: it was forgotten, or never stored."
            raise StoreError(told)
        return place

    def fetch(self, example: int, place: Place) -> bytes:
        """A record from disk, checked."""
        with blaming(example):
            record = self.stream.get(place.start, place.size)
            if not _fits(example, place, record):
                raise damaged(example)
        return record

    def get(self, example: int) -> IndexEntry:
        """A record; StoreError says what is wrong with it."""
        stored = self.cache.get(example)
        if stored is None:
            place = self.place(example)
            stored = IndexEntry(self.fetch(example, place), place.candidates)
            self.cache.put(example, stored)
        return stored

    def get_many(self, ids: Iterable[int]) -> dict[int, IndexEntry]:
        """The records that can be had quickly. `get` knows why others are not among them."""
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
            return  # one by one it will show whose damage it is
        for example, group in groupby(rows, itemgetter(0)):
            parts = list(group)
            place = Place(*parts[0][1:-1])
            with suppress(TypeError, struct.error):
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
    """Covers the record, whose it is and what it is an example of.

    >>> checksum(1, 1, None, None, b"cat") == checksum(1, 2, None, None, b"cat")
    False
    """
    about = struct.pack("<qqq", example, label, candidates or 0) + (as_bytes(key) if key else b"")
    if time is not None:
        about += struct.pack("<q", time)
    crc = zlib.crc32(record, zlib.crc32(about))
    number: int = SIGNED.unpack(UNSIGNED.pack(crc))[0]
    return number


@contextmanager
def blaming(example: int) -> Iterator[None]:
    """Say which example a damaged page, or a row that makes no sense, belongs to."""
    try:
        yield
    except (TypeError, struct.error, OverflowError) as error:
        raise damaged(example) from error
    except sqlite3.Error as error:
        if is_damage(error):
            raise damaged(example) from error
        raise


def damaged(example: int) -> StoreError:
    """What to say of a damaged example."""
    return StoreError(
        f"Example {example} of the memory is damaged: its bytes are not those that were stored. "
        "Run `anytimecl memory verify` to see what else is, and restore a backup."
    )
