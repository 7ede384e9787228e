"""The memory in a SQLite database."""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self

from anytimecl.errors import StoreError
from anytimecl.memory.cache import Cache
from anytimecl.memory.checks import checksum
from anytimecl.memory.contract import Event, Example, Row, StoreWarning
from anytimecl.memory.database import is_damage, telling
from anytimecl.memory.journal import Journal
from anytimecl.memory.schema import read_meta
from anytimecl.memory.stream import Stream
from anytimecl.memory.vocabulary import Vocabulary

CACHE_BYTES = 1 << 30
_AT_ONCE = 10_000  # rows that an iterator takes while others wait


class Place(NamedTuple):
    """Where the record of an example lies, and what else is known of it."""

    label: int
    candidates: int | None
    start: int
    size: int
    crc: int
    key: str | None


class Store:
    """A `Memory` over one connection, made by `open_memory`.

    Every method may be called from any thread of the process that opened it; calls take turns.
    Other processes may read the same files at the same time.
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
        self.stream = Stream(db)
        self.vocabulary = Vocabulary(db)
        self.journal = Journal(db)
        self.lost: tuple[int, int] | None = None  # first and last number found missing on opening
        self._db: sqlite3.Connection | None = db
        self._process = os.getpid()
        self._cap = cap
        self._cache = Cache(cache_bytes)
        self._acknowledge = acknowledge
        self._release = release
        with telling(path):
            self.meta: Mapping[str, str] = MappingProxyType(read_meta(db))
            self.last = self.journal.last()
            if not read_only:
                self.stream.load()

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
        ready = [Row(*row) for row in rows]  # first of all, since making them may take long
        with self.writing():
            return [self.add(row) for row in ready]

    def record_event(self, kind: str, data: dict[str, Any]) -> int:
        with self.writing():
            return self.note(kind, data)

    def forget(self, ids: Sequence[int]) -> int:
        with self.lock:
            with self.writing():
                places = {example: self.place(example) for example in ids}
                gone = [
                    example for example, place in places.items() if self._remove(example, place)
                ]
                if not gone:
                    return 0
                self.vocabulary.drop_unused_candidates()
                self._censor()
                self.note("forget", {"examples": gone})
            self.truncate_log()
            return len(gone)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: acknowledged when the block ends, undone if it raises."""
        with self.lock, telling(self.path):
            if self.read_only:
                raise StoreError("The memory was opened for reading only: open it without that.")
            db, stream = self.db, self.stream
            before = self.last, stream.end, stream.extents
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                self.last, stream.end, stream.extents = before
                self.vocabulary.reset()
                raise
            if self.last != before[0]:
                self._acknowledge(self.last)

    def add(self, row: Row) -> int:
        """Store one example, inside a transaction."""
        known = None if row.key is None else self.has_key(row.key)
        if known is not None:
            return known
        self.last = example = self.last + 1
        label = self.vocabulary.add_example(row.label)
        given = row.candidates
        candidates = None if given is None else self.vocabulary.add_candidates(tuple(given))
        record = bytes(row.record)
        crc = checksum(example, label, candidates, row.key, record)
        start = self.stream.put(record)
        stored = (example, label, candidates, start, len(record), crc, row.key)
        self.db.execute("INSERT INTO example VALUES (?, ?, ?, ?, ?, ?, ?)", stored)
        while self._cap is not None and self.vocabulary.total() > self._cap:
            self._evict()
        return example

    def note(self, kind: str, data: dict[str, Any]) -> int:
        """Add an entry to the journal, inside a transaction."""
        self.last += 1
        self.journal.write(self.last, kind, data)
        return self.last

    def truncate_log(self) -> None:
        """Move everything from the write-ahead log into the database and empty the log.

        What was written before is safe in either place, so a failure is a warning.
        """
        try:
            with self.reading() as db:
                busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            why = "a program is reading the memory" if busy else ""
        except StoreError as error:
            why = str(error)
        if why:
            told = "Old bytes, even of what was forgotten, stay in the write-ahead log until "
            told += f"compact() is called, since {why}."
            warnings.warn(told, StoreWarning, stacklevel=3)

    def _evict(self) -> None:
        """Make room: the oldest example of the largest class goes."""
        label = self.vocabulary.largest()
        oldest = "SELECT min(id) FROM example WHERE label = ?"
        example = self.db.execute(oldest, (label,)).fetchone()[0]
        text = self.vocabulary.text(label)
        self._remove(example, self.place(example))
        self.note("evict", {"example": example, "label": text})

    def _remove(self, example: int, place: Place | None) -> bool:
        if place is None:
            return False
        self._cache.drop(example)
        self.stream.free(place.start, place.size)
        self.db.execute("DELETE FROM example WHERE id = ?", (example,))
        self.vocabulary.drop_example(place.label)
        return True

    def _censor(self) -> None:
        """A label that is forgotten must not live on in the journal."""
        known = self.vocabulary.counts()
        for number, kind, data in self.journal.of_kind("evict"):
            if data.pop("label", None) not in {None, *known}:
                self.journal.write(number, kind, data)

    # Reading

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, with the lock held and errors told in words."""
        with self.lock, telling(self.path):
            yield self.db

    @property
    def db(self) -> sqlite3.Connection:
        """The connection; use it while holding `lock`."""
        if self._db is None:
            raise StoreError("The memory is closed: open it again.")
        if self._process != os.getpid():
            raise StoreError(
                "The memory was opened by the process that started this one: open it here with "
                "read_only=True."
            )
        return self._db

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
        with self.reading():
            record = self._record(example)
            place = self._known(example)
            label = self.vocabulary.text(place.label)
            candidates = self.vocabulary.candidates(place.candidates)
            return Example(example, label, record, candidates, example)

    def ids(self, label: str | None = None) -> Iterator[tuple[int, str]]:
        texts: dict[int, str] = {}
        for example, number in self.numbered(label):
            if number not in texts:
                with self.reading():
                    texts = self.vocabulary.texts()
            if number in texts:
                yield example, texts[number]
            else:
                told = f"Left out: example {example}, whose label {number} is damaged or gone."
                warnings.warn(told, StoreWarning, stacklevel=2)

    def labels(self) -> dict[str, int]:
        with self.reading():
            return self.vocabulary.counts()

    def candidates(self, ids: Sequence[int]) -> list[tuple[str, ...] | None]:
        with self.reading():
            return [self.vocabulary.candidates(self._known(e).candidates) for e in ids]

    def events(self, after: int = 0) -> Iterator[Event]:
        page = [Event(after, "", {})]
        while page:
            with self.reading():
                page = self.journal.read(page[-1].number, _AT_ONCE)
            yield from page

    def __len__(self) -> int:
        with self.reading():
            return self.vocabulary.total()

    def place(self, example: int) -> Place | None:
        """Where an example lies, or None if there is none."""
        wanted = "SELECT label, candidates, start, size, crc, key FROM example WHERE id = ?"
        with blaming(example):
            row = self.db.execute(wanted, (example,)).fetchone()
        return row and Place(*row)

    def fetch(self, example: int, place: Place) -> bytes:
        """The record from disk, checked."""
        with blaming(example):
            record = self.stream.get(place.start, place.size)
            crc = checksum(example, place.label, place.candidates, place.key, record)
        if crc != place.crc:
            raise damaged(example)
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
            told = f"The memory has no example {example}: it was forgotten, or never stored."
            raise StoreError(told)
        return place

    def numbered(
        self, label: str | None = None, *, quiet: bool = False
    ) -> Iterator[tuple[int, int]]:
        """(example, number of its label) in order of arrival."""
        only = "" if label is None else " AND label = (SELECT id FROM label WHERE text = :label)"
        page = f"SELECT id, label FROM example WHERE id > :after{only} ORDER BY id LIMIT {_AT_ONCE}"
        rows: list[tuple[int, int]] = [(0, 0)]
        while rows:
            after = rows[-1][0]
            try:
                with self.reading() as db:
                    rows = db.execute(page, {"after": after, "label": label}).fetchall()
            except StoreError as error:
                if not isinstance(error.__cause__, sqlite3.Error) or not is_damage(error.__cause__):
                    raise
                if not quiet:
                    warnings.warn(f"Some cannot be read: {error}", StoreWarning, stacklevel=3)
                yield from self._numbered_by_index(only, after, label)
                return
            yield from rows

    def _numbered_by_index(self, only: str, after: int, label: str | None) -> list[tuple[int, int]]:
        """The same from the index by label, when the table is damaged."""
        whole = "SELECT id, label FROM example INDEXED BY example_label "
        whole += f"WHERE label > 0 AND id > :after{only}"
        with self.reading() as db:
            return sorted(db.execute(whole, {"after": after, "label": label}).fetchall())

    # Closing

    def close(self) -> None:
        with self.lock:
            if self._db is None or self._process != os.getpid():
                return
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
    return StoreError(
        f"Example {example} of the memory is damaged: its bytes are not those that were stored. "
        "Run `anytimecl memory verify` to see what else is, and restore a backup."
    )
