"""The memory in a SQLite database, and the same one in RAM."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self

from anytimecl.errors import StoreError
from anytimecl.memory.cache import Cache
from anytimecl.memory.contract import Event, Example, Row, StoreWarning
from anytimecl.memory.database import connect, is_damage, telling
from anytimecl.memory.schema import migrate
from anytimecl.memory.stream import Stream

CACHE_BYTES = 1 << 30
_AT_ONCE = 10_000  # rows that an iterator takes while others wait


class Place(NamedTuple):
    """Where an example's record lies, and what its checksum covers beside it."""

    label: int
    candidates: int | None
    start: int
    size: int
    crc: int


class Store:
    """A `Memory` over one connection.

    Every method may be called from any thread; calls take turns. Other processes may read the same
    files at the same time. Made by `open_memory`.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path | None,
        *,
        read_only: bool = False,
        cache_bytes: int = CACHE_BYTES,
        cap: int | None = None,
        acknowledge: Callable[[int], None] = lambda number: None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        if cap is not None and cap < 1:
            raise StoreError(f"The cap on stored examples is at least 1, not {cap}.")
        self.path = path
        self.read_only = read_only
        self.lock = threading.RLock()
        self._db: sqlite3.Connection | None = db
        self._cap = cap
        self._cache = Cache(cache_bytes)
        self._acknowledge = acknowledge
        self._release = release
        self._sets: dict[int, tuple[str, ...]] = {}  # candidates as read, so that equal ones share
        self._last_set: tuple[tuple[str, ...], int] | None = None  # as written, with its id
        with telling(path):
            self.stream = Stream(db)
            if not read_only:
                self.stream.load()
            self.meta: Mapping[str, str] = MappingProxyType(
                dict(db.execute("SELECT key, value FROM meta").fetchall())
            )
            newest = "SELECT max(coalesce((SELECT max(id) FROM example), 0), "
            newest += "coalesce((SELECT max(number) FROM event), 0))"
            self.last: int = db.execute(newest).fetchone()[0]

    @property
    def db(self) -> sqlite3.Connection:
        """The connection; use it while holding `lock`."""
        if self._db is None:
            raise StoreError("The memory is closed: open it again.")
        return self._db

    # Writing

    def append(
        self,
        label: str,
        record: bytes,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> int:
        return self.append_many([Row(label, record, candidates, key)])[0]

    def append_many(self, rows: Iterable[Row | tuple[str, bytes]]) -> list[int]:
        with self.writing():
            return [self._append(Row(*row)) for row in rows]

    def record_event(self, kind: str, data: dict[str, Any]) -> int:
        with self.writing():
            return self._journal(kind, data)

    def forget(self, ids: Sequence[int]) -> int:
        with self.lock:
            with self.writing():
                places = [
                    (example, place)
                    for example in dict.fromkeys(ids)
                    if (place := self.place(example))
                ]
                for example, place in places:
                    self._remove(example, place)
                if not places:
                    return 0
                self._scrub({place.label for _, place in places})
                self._journal("forget", {"examples": [example for example, _ in places]})
            self.truncate_log()
            return len(places)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: acknowledged when the block ends, undone if it raises."""
        with self.lock, telling(self.path):
            if self.read_only:
                raise StoreError("The memory was opened for reading only: open it without that.")
            db, stream = self.db, self.stream
            before = self.last, stream.end, stream.extents
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                self.last, stream.end, stream.extents = before
                self._last_set = None
                raise
            if self.last != before[0]:
                self._acknowledge(self.last)

    def truncate_log(self) -> None:
        """Move everything from the write-ahead log into the database and empty the log."""
        with self.lock, telling(self.path):
            busy = self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:
            warnings.warn(
                "A program that reads the memory keeps old bytes alive in the write-ahead log: "
                "close it, then call compact().",
                StoreWarning,
                stacklevel=3,
            )

    def _append(self, row: Row) -> int:
        if row.key is not None:
            known = self.has_key(row.key)
            if known is not None:
                return known
        self.last = example = self.last + 1
        label = self._count(row.label, 1)
        candidates = None if row.candidates is None else self._candidates(tuple(row.candidates))
        record = bytes(row.record)
        place = Place(label, candidates, self.stream.put(record), len(record), 0)
        stored = (example, *place[:4], checksum(example, place, record), row.key)
        self.db.execute("INSERT INTO example VALUES (?, ?, ?, ?, ?, ?, ?)", stored)
        if self._cap is not None:
            self._evict()
        return example

    def _evict(self) -> None:
        """Make room: the oldest example of the largest class goes."""
        assert self._cap is not None
        largest = "SELECT id, text FROM label ORDER BY examples DESC, id LIMIT 1"
        oldest = "SELECT min(id) FROM example WHERE label = ?"
        for _ in range(len(self) - self._cap):
            label, text = self.db.execute(largest).fetchone()
            example = self.db.execute(oldest, (label,)).fetchone()[0]
            place = self.place(example)
            assert place is not None
            self._remove(example, place)
            self._journal("evict", {"example": example, "label": text})

    def _remove(self, example: int, place: Place) -> None:
        self._cache.drop(example)
        self.stream.free(place.start, place.size)
        self.db.execute("DELETE FROM example WHERE id = ?", (example,))
        text = self.db.execute("SELECT text FROM label WHERE id = ?", (place.label,)).fetchone()[0]
        self._count(text, -1)

    def _scrub(self, labels: set[int]) -> None:
        """Remove what examples leave behind: sets of candidates that no other one has."""
        orphans = "DELETE FROM candidates WHERE id NOT IN "
        orphans += "(SELECT candidates FROM example WHERE candidates IS NOT NULL)"
        self.db.execute(orphans)
        self._sets.clear()
        self._last_set = None

    def _count(self, text: str, change: int) -> int:
        """Change how many examples a label has; a label comes and goes with its examples."""
        known = "SELECT id, examples FROM label WHERE text = ?"
        row = self.db.execute(known, (text,)).fetchone()
        if row is None:
            new = "INSERT INTO label (text, examples, crc) VALUES (?, ?, ?)"
            done = self.db.execute(new, (text, change, text_checksum(text)))
            assert done.lastrowid is not None
            return done.lastrowid
        if row[1] + change == 0:
            self.db.execute("DELETE FROM label WHERE id = ?", (row[0],))
        else:
            counted = "UPDATE label SET examples = examples + ? WHERE id = ?"
            self.db.execute(counted, (change, row[0]))
        return int(row[0])

    def _candidates(self, labels: tuple[str, ...]) -> int:
        if self._last_set is not None and self._last_set[0] == labels:
            return self._last_set[1]
        text = json.dumps(labels, ensure_ascii=False)
        digest = hashlib.sha256(text.encode()).digest()
        known = self.db.execute("SELECT id FROM candidates WHERE digest = ?", (digest,)).fetchone()
        if known is None:
            new = "INSERT INTO candidates (digest, labels) VALUES (?, ?)"
            example = self.db.execute(new, (digest, text)).lastrowid
            assert example is not None
        else:
            example = int(known[0])
        self._last_set = labels, example
        return example

    def _journal(self, kind: str, data: dict[str, Any]) -> int:
        self.last = number = self.last + 1
        text = json.dumps(data, ensure_ascii=False)
        entry = (number, kind, text, text_checksum(f"{number} {kind} {text}"))
        self.db.execute("INSERT INTO event VALUES (?, ?, ?, ?)", entry)
        return number

    # Reading

    def has_key(self, key: str) -> int | None:
        with self.reading() as db:
            row = db.execute("SELECT id FROM example WHERE key = ?", (key,)).fetchone()
            return row and int(row[0])

    def read(self, ids: Sequence[int]) -> list[bytes]:
        with self.reading():
            return [self._record(example) for example in ids]

    def read_ok(self, ids: Sequence[int]) -> list[tuple[int, bytes]]:
        good = []
        with self.reading():
            for example in ids:
                try:
                    good.append((example, self._record(example)))
                except StoreError as error:
                    warnings.warn(f"Left out: {error}", StoreWarning, stacklevel=2)
        return good

    def example(self, example: int) -> Example:
        with self.reading() as db:
            record = self._record(example)
            place = self.place(example)
            assert place is not None
            text = db.execute("SELECT text FROM label WHERE id = ?", (place.label,)).fetchone()[0]
            return Example(example, text, record, self._set(place.candidates), example)

    def ids(self, label: str | None = None) -> Iterator[tuple[int, str]]:
        only = "" if label is None else " AND label = (SELECT id FROM label WHERE text = :label)"
        page = f"SELECT id, label FROM example WHERE id > :after{only} ORDER BY id LIMIT {_AT_ONCE}"
        after: int | None = 0
        while after is not None:
            with self.reading() as db:
                texts = dict(db.execute("SELECT id, text FROM label").fetchall())
                rows = db.execute(page, {"after": after, "label": label}).fetchall()
            yield from [(example, texts[number]) for example, number in rows]
            after = rows[-1][0] if rows else None

    def labels(self) -> dict[str, int]:
        with self.reading() as db:
            return dict(db.execute("SELECT text, examples FROM label ORDER BY id").fetchall())

    def candidates(self, ids: Sequence[int]) -> list[tuple[str, ...] | None]:
        with self.reading():
            return [self._set(self._known(example).candidates) for example in ids]

    def events(self, after: int = 0) -> Iterator[Event]:
        page = "SELECT id, 'learn', NULL, 0 FROM example WHERE id > :after UNION ALL "
        page += "SELECT number, kind, data, crc FROM event WHERE number > :after "
        page += f"ORDER BY 1 LIMIT {_AT_ONCE}"
        while True:
            with self.reading() as db:
                rows = db.execute(page, {"after": after}).fetchall()
            if not rows:
                return
            for number, kind, text, crc in rows:
                if text is None:
                    yield Event(number, kind, {"example": number})
                    continue
                if crc != text_checksum(f"{number} {kind} {text}"):
                    raise StoreError(f"Event {number} of the memory is damaged: restore a backup.")
                yield Event(number, kind, json.loads(text))
            after = rows[-1][0]

    def __len__(self) -> int:
        with self.reading() as db:
            count = db.execute("SELECT coalesce(sum(examples), 0) FROM label").fetchone()[0]
            return int(count)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, with the lock held and errors told in words."""
        with self.lock, telling(self.path):
            yield self.db

    def place(self, example: int) -> Place | None:
        """Where an example lies, or None if there is none."""
        wanted = "SELECT label, candidates, start, size, crc FROM example WHERE id = ?"
        row = self.db.execute(wanted, (example,)).fetchone()
        return row and Place(*row)

    def fetch(self, example: int, place: Place) -> bytes:
        """The record from disk, checked."""
        try:
            record = self.stream.get(place.start, place.size)
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            record = None
        if record is None or place.crc != checksum(example, place, record):
            raise StoreError(
                f"Example {example} of the memory is damaged: its checksum does not fit. Restore a "
                "backup, or forget the example."
            )
        return record

    def _record(self, example: int) -> bytes:
        record = self._cache.get(example)
        if record is None:
            record = self.fetch(example, self._known(example))
            self._cache.put(example, record)
        return record

    def _known(self, example: int) -> Place:
        place = self.place(example)
        if place is None:
            raise StoreError(
                f"The memory has no example {example}: it was forgotten, or never stored."
            )
        return place

    def _set(self, example: int | None) -> tuple[str, ...] | None:
        if example is None:
            return None
        if example not in self._sets:
            wanted = "SELECT labels FROM candidates WHERE id = ?"
            self._sets[example] = tuple(
                json.loads(self.db.execute(wanted, (example,)).fetchone()[0])
            )
        return self._sets[example]

    # Closing

    def close(self) -> None:
        with self.lock:
            if self._db is not None:
                self._db.close()
                self._db = None
                self._cache.clear()
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class RamMemory(Store):
    """A memory that is gone when it is closed: for tests, trials and throw-away use.

    >>> with RamMemory({"codec": "none"}) as memory:
    ...     first = memory.append("cat", b"a cat")
    ...     second = memory.append("dog", b"a dog", candidates=["cat", "dog"])
    ...     memory.read([second, first]), memory.labels(), len(memory)
    ([b'a dog', b'a cat'], {'cat': 1, 'dog': 1}, 2)
    """

    def __init__(
        self,
        meta: Mapping[str, str] | None = None,
        *,
        cache_bytes: int = CACHE_BYTES,
        cap: int | None = None,
    ) -> None:
        super().__init__(created(None, meta or {}), None, cache_bytes=cache_bytes, cap=cap)


def created(db: sqlite3.Connection | None, meta: Mapping[str, str]) -> sqlite3.Connection:
    """A database with empty tables and `meta`; a new one in RAM if none is given."""
    db = db or connect(None)
    migrate(db)
    db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    return db


def checksum(example: int, place: Place, record: bytes) -> int:
    """Covers the record and what it means. Signed, which SQLite stores in four bytes."""
    about = struct.pack("<qqq", example, place.label, place.candidates or 0)
    return _signed(zlib.crc32(record, zlib.crc32(about)))


def text_checksum(text: str) -> int:
    return _signed(zlib.crc32(text.encode()))


def _signed(crc: int) -> int:
    return crc - (1 << 32) if crc >> 31 else crc
