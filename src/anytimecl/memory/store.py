"""The memory in a SQLite database."""

from __future__ import annotations

import os
import sqlite3
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time_ns
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from anytimecl.closing import Closing
from anytimecl.errors import StoreError
from anytimecl.memory.about import About, sound
from anytimecl.memory.acts import LabelHistory, history, ids_at
from anytimecl.memory.censoring import censor
from anytimecl.memory.checks import check_number
from anytimecl.memory.contract import Event, Example, Row, Stored, StoreWarning
from anytimecl.memory.database import ERRORS, in_words, is_damage, telling
from anytimecl.memory.journal import Journal
from anytimecl.memory.keys import FileKey, Keys, RequestKey, Used
from anytimecl.memory.records import Cache, Place, Records
from anytimecl.memory.schema import read_meta
from anytimecl.memory.vocabulary import Vocabulary

if TYPE_CHECKING:
    from anytimecl.memory.contract import Memory

__all__ = ["CACHE_BYTES", "Store"]

CACHE_BYTES = 1 << 30
_AT_ONCE = 10_000  # rows that an iterator takes while others wait


class Store(Closing):
    """A `Memory` in SQLite, opened by `open_memory`.

    Thread-safe: calls are serialised. Other processes may read the same files meanwhile.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        path: Path | None,
        *,
        read_only: bool = False,
        cache_bytes: int = CACHE_BYTES,
        cap: int | None = None,
        thumbnails: bool = False,
        acknowledge: Callable[[int], None] = lambda number: None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        if cap is not None and (not isinstance(cap, int) or cap < 1):
            raise StoreError(f"The cap on stored examples is a whole number from 1, not {cap!r}.")
        self.path = path
        self.read_only = read_only
        self.thumbnails = thumbnails  # whether thumbnails are stored
        self.lock = threading.RLock()
        self.records = Records(db, Cache(cache_bytes))
        self.vocabulary = Vocabulary(db)
        self.journal = Journal(db)
        self.keys = Keys(db)
        self.about = About(db)
        self.lost: tuple[int, int] | None = None  # first and last number found missing on opening
        self.evicted: dict[int, bytes] = {}  # records evicted by the last addition
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

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, with the lock held and SQLite errors translated."""
        with self.lock:
            db = self.db
            # For a consistent view a read-only process needs a transaction; the owner has its lock.
            apart = self.read_only and not db.in_transaction
            try:
                if apart:
                    db.execute("BEGIN")
                yield db
            except ERRORS as error:
                raise in_words(error, self.path) from error
            finally:
                if apart and db.in_transaction:
                    db.execute("ROLLBACK")

    @property
    def closed(self) -> bool:
        """Whether the memory was closed."""
        return self._db is None

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

    def close(self) -> None:
        with self.lock:
            if self._db is None or self._process != os.getpid():
                return
            self._db.close()
            self._db = None
            self.records.cache.clear()
            self._release()

    def has_key(self, key: str) -> int | None:
        with self.reading() as db:
            row = db.execute("SELECT id FROM example WHERE key = ?", (key,)).fetchone()
            return row and int(row[0])

    def taught_by(self, key: str) -> int | None:
        """The id of the example learned with a plain key, even if it has another key now."""
        with self.reading():
            known = self.has_key(key)
            if known is not None or isinstance(key, RequestKey | FileKey):
                return known
            former = self.keys.former(key)
            place = None if former is None else self.records.find(former)
            return former if place is not None and place.label else None

    def came_with(self, key: str, label: str) -> bool:
        with self.reading():
            return self.keys.came_with(key, label)

    def find_content(self, digest: int) -> tuple[int, str] | None:
        """The newest example of an image with these tokens, and its label."""
        found = self.copies(digest)
        return found[-1] if found else None

    def copies(self, digest: int | None) -> list[tuple[int, str]]:
        """Every example of an image with these tokens, and its label; the newest comes last."""
        if digest is None:
            return []
        with self.reading():
            wanted = "SELECT e.id, e.label, c.crc FROM content c "
            wanted += "JOIN example e ON e.id = c.example "
            wanted += "WHERE c.digest = ? AND e.label > 0 ORDER BY e.id"
            found = self.db.execute(wanted, (digest,)).fetchall()
            good = [(i, label) for i, label, crc in found if sound(i, digest, crc)]
            return [(example, self.vocabulary.text(label)) for example, label in good]

    def used_key(self, key: str) -> Used | None:
        with self.reading():
            return self.keys.find(key)

    def read(self, ids: Sequence[int]) -> list[bytes]:
        with self.reading():
            found = self.records.get_many(ids)
            return [(found[e] if e in found else self.records.get(e)).record for e in ids]

    def stored(self, ids: Sequence[int]) -> list[Stored]:
        good = []
        with self.reading():
            found = self.records.get_many(ids)
            for example in ids:
                try:
                    entry = found[example] if example in found else self.records.get(example)
                    chosen = entry.candidates
                    given = None if chosen is None else self.vocabulary.candidates(chosen)
                    good.append(Stored(example, entry.record, given))
                except StoreError as error:
                    warnings.warn(f"Left out: {error}", StoreWarning, stacklevel=2)
        return good

    def example(self, example: int) -> Example:
        with self.reading():
            record = self.records.get(example).record
            place = self.labelled(example)
            label = self.vocabulary.text(place.label)
            candidates = self.vocabulary.candidates(place.candidates)
            return Example(example, label, record, candidates, example)

    def labelled(self, example: int) -> Place:
        """The place of an example; StoreError if it was undone."""
        place = self.records.place(example)
        if not place.label:
            raise StoreError(f"The memory has no example {example}: it was taken back.")
        return place

    def label(self, example: int) -> str | None:
        """The label of an example; None if it was undone."""
        with self.reading():
            place = self.records.place(example)
            return self.vocabulary.text(place.label) if place.label else None

    def digest(self, example: int) -> int | None:
        """The digest of an example's tokens, if known."""
        with self.reading():
            return self.about.digest(example)

    def told_of(self, example: int) -> tuple[str | None, str | None]:
        """The label of an example, and the name of its source."""
        with self.reading():
            return self.label(example), self.about.source(example)

    def history(self, after: int = 0) -> LabelHistory:
        return history(self, after)

    def ids_at(self, number: int) -> Iterator[tuple[int, str]]:
        return ids_at(self, number)

    def rows(self, ids: Sequence[int]) -> list[tuple[int, Row]]:
        """Examples as they would be stored again; the damaged are left out as `stored` does."""
        found = []
        with self.reading():
            for example, record, candidates in self.stored(ids):
                try:
                    place = self.labelled(example)
                    label = self.vocabulary.text(place.label)
                except StoreError as error:
                    told = f"Left out: example {example}. {error}"
                    warnings.warn(told, StoreWarning, stacklevel=2)
                else:
                    row = Row(label, record, candidates, place.key, place.time)
                    found.append((example, self.about.row(example, row)))
        return found

    def thumbnail(self, example: int) -> bytes | None:
        """The thumbnail of an example, if there is one."""
        with self.reading():
            return self.about.thumbnail(example)

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

    def events(self, after: int = 0) -> Iterator[Event]:
        page = [Event(after, "", {})]
        while page:
            with self.reading():
                page = self.journal.read(page[-1].number, _AT_ONCE)
            yield from page

    def __len__(self) -> int:
        with self.reading():
            return self.vocabulary.total()

    def page(
        self, after: int, label: str | None = None, *, withdrawn: bool = False
    ) -> list[tuple[int, int]]:
        """The next (example, number of its label) in order of arrival.

        The number is 0 for undone examples, which are included only if `withdrawn`.
        """
        only = "" if withdrawn else "AND +label != 0"
        if label is not None:
            only = "AND label = (SELECT id FROM label WHERE text = :label)"
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

    def check_writable(self) -> None:
        """Raise StoreError if the memory is read-only."""
        if self.read_only:
            raise StoreError("The memory was opened for reading only: open it without that.")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: acknowledged when the block ends, undone if it raises."""
        with self.lock:
            self.check_writable()
            db, stream = self.db, self.records.stream
            before = self.last, stream.end, stream.extents
            try:
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
            except BaseException as error:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                    self.last, stream.end, stream.extents = before
                else:  # SQLite rolled back, or an interrupt came after the commit
                    self._look_again(*before)
                self.vocabulary.reset()
                if isinstance(error, ERRORS):
                    raise in_words(error, self.path) from error
                raise
            if self.last != before[0]:
                self._acknowledge(self.last)

    def _look_again(self, last: int, end: int, extents: int) -> None:
        """Read the ends of the tables again; on failure, restore those before."""
        stream = self.records.stream
        try:
            stream.load()
            self.last = max(last, self.journal.last())
        except sqlite3.Error:
            self.last, stream.end, stream.extents = last, end, extents

    def append(
        self,
        label: str,
        record: bytes,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
        time: int | None = None,
        content: int | None = None,
    ) -> int:
        return self.append_row(Row(label, record, candidates, key, time, content))

    def append_row(self, row: Row) -> int:
        """`append` with all that may be known of an example."""
        return self.append_many([row])[0]

    def append_many(self, rows: Iterable[Row | tuple[str, bytes]]) -> list[int]:
        ready = [Row(*row) for row in rows]  # first of all, since making them may take long
        with self.writing():
            self.evicted = {}
            return [self.add(row) for row in ready]

    def record_event(self, kind: str, data: dict[str, Any]) -> int:
        with self.writing():
            return self.note(kind, data)

    def forget(self, ids: Sequence[int]) -> int:
        with self.lock:
            with self.writing():
                known = self.labels().keys()
                gone = [example for example in dict.fromkeys(ids) if self.remove(example)]
                if not gone:
                    return 0
                self.vocabulary.drop_unused_candidates()
                censor(self, gone, known - self.labels().keys())
                self.note("forget", {"examples": gone})
            self.truncate_log()
            return len(gone)

    def admit_loss(self, promised: int) -> None:
        """Event `promised` was acknowledged: if it is missing, record the loss and warn.

        Numbers up to it are not reused.
        """
        with self.reading():
            first = (self.journal.last() if self.read_only else self.last) + 1
        if promised < first:
            return
        check_number(promised, first, "The memory's mark or checkpoint")
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
        self.about.add(example, row)
        if isinstance(row.key, RequestKey):
            self.keys.add(row.key, example)
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
        """Evict the oldest example of the largest class."""
        label = self.vocabulary.largest()
        oldest = "SELECT min(id) FROM example WHERE label = ?"
        example = self.db.execute(oldest, (label,)).fetchone()[0]
        if example is None:
            raise StoreError(
                "The memory counts more examples than it has, and so does not know which to evict: "
                "`anytimecl.memory.rescue` writes one that counts right, or restore a backup."
            )
        text = self.vocabulary.text(label)
        with suppress(StoreError):  # damaged
            self.evicted[example] = self.records.get(example).record
        self.remove(example)
        self.note("evict", {"example": example, "label": text})

    def remove(self, example: int) -> bool:
        """Delete an example, inside a transaction; returns False if there is none."""
        place = self.records.find(example)
        if place is None:
            return False
        if not self.records.drop(example, place):
            told = f"Example {example} is deleted, but it was damaged, and where its bytes are is "
            told += "unknown: `anytimecl.memory.rescue` writes a memory without them."
            warnings.warn(told, StoreWarning, stacklevel=3)
        self.about.drop(example)
        self.vocabulary.drop_example(place.label)
        return True


if TYPE_CHECKING:
    _: type[Memory] = Store  # or the type checker says what is missing
