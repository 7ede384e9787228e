"""The memory in a SQLite database."""

from __future__ import annotations

import os
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import time_ns
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from anytimecl.closing import Closing
from anytimecl.errors import StoreError
from anytimecl.memory.cache import Cache
from anytimecl.memory.contract import Event, Example, Row, StoreWarning
from anytimecl.memory.database import is_damage, telling
from anytimecl.memory.journal import Journal
from anytimecl.memory.records import Records
from anytimecl.memory.schema import read_meta
from anytimecl.memory.vocabulary import Vocabulary

if TYPE_CHECKING:
    from anytimecl.memory.contract import Memory

CACHE_BYTES = 1 << 30
_AT_ONCE = 10_000  # rows that an iterator takes while others wait


class Store(Closing):
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
        time: int | None = None,
    ) -> int:
        return self.append_many([Row(label, record, candidates, key, time)])[0]

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
                self.journal.censor_labels()
                self.note("forget", {"examples": gone})
            self.truncate_log()
            return len(gone)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: acknowledged when the block ends, undone if it raises."""
        with self.lock, telling(self.path):
            self.check_writable()
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

    def check_writable(self) -> None:
        """StoreError if nothing may be written; before work whose result could not be kept."""
        if self.read_only:
            raise StoreError("The memory was opened for reading only: open it without that.")

    def admit_loss(self, promised: int) -> None:
        """Something outside knows of an event `promised`: if there is none, say what is gone.

        Its number, and those before it, are never given out again.
        """
        with self.reading():
            first = (self.journal.last() if self.read_only else self.last) + 1
        if promised < first:
            return
        self.lost = first, promised
        warnings.warn(
            f"The memory in {self.path and self.path.parent} has lost its events {first} to "
            f"{promised}, and the examples with these numbers: its write-ahead log was cut short. "
            "Everything before them is intact.",
            StoreWarning,
            stacklevel=5,
        )
        if not self.read_only:
            self.last = promised
            self.record_event("lost", {"first": first, "last": promised})

    def add(self, row: Row) -> int:
        """Store one example, inside a transaction."""
        known = None if row.key is None else self.has_key(row.key)
        if known is not None:
            return known
        self.last = example = self.last + 1
        label = self.vocabulary.add_example(row.label)
        given = row.candidates
        candidates = None if given is None else self.vocabulary.add_candidates(tuple(given))
        when = time_ns() // 1_000_000 if row.time is None else row.time
        self.records.add(example, label, candidates, row.key, bytes(row.record), when)
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

    # Reading

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, with the lock held and errors told in words."""
        with self.lock, telling(self.path):
            db = self.db
            # The owner's lock keeps its data still; a reader needs a transaction for that.
            apart = self.read_only and not db.in_transaction
            if apart:
                db.execute("BEGIN")
            try:
                yield db
            finally:
                if apart:
                    db.execute("ROLLBACK")

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

    def rows(self, ids: Sequence[int]) -> list[tuple[int, Row]]:
        """Examples as they would be stored again; the damaged are left out as `read_ok` does."""
        found = []
        with self.reading():
            for example, record in self.read_ok(ids):
                try:
                    place = self.records.place(example)
                    label = self.vocabulary.text(place.label)
                    candidates = self.vocabulary.candidates(place.candidates)
                except StoreError as error:
                    told = f"Left out: example {example}. {error}"
                    warnings.warn(told, StoreWarning, stacklevel=2)
                else:
                    row = Row(label, record, candidates, place.key, place.time)
                    found.append((example, row))
        return found

    def ids(self, label: str | None = None) -> Iterator[tuple[int, str]]:
        texts: dict[int, str] = {}
        page = [(0, 0)]
        while page:
            with self.reading():
                page = self.page(page[-1][0], label)
                numbers = {number for _, number in page}
                if not numbers <= texts.keys():
                    texts = self.vocabulary.texts()
            for number in numbers - texts.keys():
                told = f"Left out: examples of label {number}, whose text is damaged."
                warnings.warn(told, StoreWarning, stacklevel=2)
            yield from [(example, texts[number]) for example, number in page if number in texts]

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

    def page(self, after: int, label: str | None = None) -> list[tuple[int, int]]:
        """The next (example, number of its label) in order of arrival."""
        only = "" if label is None else "AND label = (SELECT id FROM label WHERE text = :label)"
        chosen = {"after": after, "label": label}
        with self.reading() as db:
            try:
                page = f"SELECT id, label FROM example WHERE id > :after {only} ORDER BY id LIMIT "
                return db.execute(page + str(_AT_ONCE), chosen).fetchall()
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
            # The table is damaged, so take all from the index by label, which has the same.
            whole = "SELECT id, label FROM example INDEXED BY example_label "
            whole += f"WHERE label > 0 AND id > :after {only}"
            return sorted(db.execute(whole, chosen).fetchall())

    def all_ids(self) -> list[int]:
        """Every example, even those that are damaged."""
        found: list[int] = []
        while page := self.page(found[-1] if found else 0):
            found += [example for example, _ in page]
        return found

    # Closing

    def close(self) -> None:
        with self.lock:
            if self._db is None or self._process != os.getpid():
                return
            self._db.close()
            self._db = None
            self.records.cache.clear()
            self._release()


if TYPE_CHECKING:
    _: type[Memory] = Store  # or the type checker says what is missing
