"""The examples' rows and the records that they point to, checked whenever they are read."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from anytimecl.errors import StoreError
from anytimecl.memory.cache import Cache
from anytimecl.memory.checks import checksum
from anytimecl.memory.database import is_damage
from anytimecl.memory.stream import EXTENT, LARGEST, Stream

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

    def drop(self, example: int, place: Place) -> None:
        """Remove a record for good."""
        self.cache.drop(example)
        self.stream.free(place.start, place.size)
        self._db.execute("DELETE FROM example WHERE id = ?", (example,))

    def find(self, example: int) -> Place | None:
        """Where an example lies, or None if there is none."""
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

    def get(self, example: int) -> bytes:
        """A record; StoreError says what is wrong with it."""
        record = self.cache.get(example)
        if record is None:
            record = self.fetch(example, self.place(example))
            self.cache.put(example, record)
        return record

    def get_many(self, ids: Iterable[int]) -> dict[int, bytes]:
        """The records that can be had quickly. `get` knows why others are not among them."""
        found: dict[int, bytes] = {}
        missing = []
        for example in dict.fromkeys(ids):
            record = self.cache.get(example)
            if record is None:
                missing.append(example)
            else:
                found[example] = record
        for at in range(0, len(missing), _TOGETHER):
            for example, record in self._fetch_together(missing[at : at + _TOGETHER]):
                found[example] = record
                self.cache.put(example, record)
        return found

    def _fetch_together(self, ids: Sequence[int]) -> Iterator[tuple[int, bytes]]:
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
                    yield example, record


def _fits(example: int, place: Place, record: bytes) -> bool:
    known = place.label, place.candidates, place.key, record, place.time
    return place.crc == checksum(example, *known)


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
