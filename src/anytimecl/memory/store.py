"""The memory in a SQLite database."""

from __future__ import annotations

import os
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from anytimecl.errors import StoreError
from anytimecl.memory.cache import Cache
from anytimecl.memory.contract import Event, Example, Row, StoreWarning
from anytimecl.memory.database import is_damage, telling
from anytimecl.memory.journal import Journal
from anytimecl.memory.records import Records
from anytimecl.memory.schema import read_meta
from anytimecl.memory.vocabulary import Vocabulary

CACHE_BYTES = 1 << 30
_AT_ONCE = 10_000  # rows that an iterator takes while others wait


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
        self.records = Records(db, Cache(cache_bytes))
        self.vocabulary = Vocabulary(db)
        self.journal = Journal(db)
        self.lost: tuple[int, int] | None = None  # first and last number found missing on opening
        self._db: sqlite3.Connection | None = db
        self._process = os.getpid()
        self._cap = cap
        self._acknowledge = acknowledge
        self._release = release
        with telling(path):
            self.meta: Mapping[str, str] = MappingProxyType(read_meta(db))
            self.last = self.journal.last()
            if not read_only:
                self.records.stream.load()

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
                gone = [example for example in dict.fromkeys(ids) if self._remove(example)]
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
            db, stream = self.db, self.records.stream
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
        self.records.add(example, label, candidates, row.key, bytes(row.record))
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
        self._remove(example)
        self.note("evict", {"example": example, "label": text})

    def _remove(self, example: int) -> bool:
        place = self.records.find(example)
        if place is None:
            return False
        self.records.drop(example, place)
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
            found = self.records.get_many(ids)
            return [found[e] if e in found else self.records.get(e) for e in ids]

    def read_ok(self, ids: Sequence[int]) -> list[tuple[int, bytes]]:
        good = []
        with self.reading():
            found = self.records.get_many(ids)
            for example in ids:
                try:
                    record = found[example] if example in found else self.records.get(example)
                    good.append((example, record))
                except StoreError as error:
                    warnings.warn(f"Left out: {error}", StoreWarning, stacklevel=2)
        return good

    def example(self, example: int) -> Example:
        with self.reading():
            record = self.records.get(example)
            place = self.records.place(example)
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
            return [self.vocabulary.candidates(self.records.place(e).candidates) for e in ids]

    def events(self, after: int = 0) -> Iterator[Event]:
        page = [Event(after, "", {})]
        while page:
            with self.reading():
                page = self.journal.read(page[-1].number, _AT_ONCE)
            yield from page

    def __len__(self) -> int:
        with self.reading():
            return self.vocabulary.total()

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
            self.records.cache.clear()
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
