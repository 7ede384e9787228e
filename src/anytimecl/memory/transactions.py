"""The tables of a memory, and transactions on them."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from anytimecl.closing import Closing
from anytimecl.errors import StoreError
from anytimecl.memory.about import About
from anytimecl.memory.database import ERRORS, in_words, telling
from anytimecl.memory.journal import Journal
from anytimecl.memory.keys import Keys
from anytimecl.memory.records import Cache, Records
from anytimecl.memory.schema import read_meta
from anytimecl.memory.vocabulary import Vocabulary

CACHE_BYTES = 1 << 30


class Transactions(Closing):
    """An open database: serialises its threads, and acknowledges what is written."""

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

    def check_writable(self) -> None:
        """Raise StoreError if the memory is read-only."""
        if self.read_only:
            raise StoreError("The memory was opened for reading only: open it without that.")

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
