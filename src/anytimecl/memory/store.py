"""The memory in a SQLite database."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import time_ns
from typing import TYPE_CHECKING, Any

from anytimecl.errors import StoreError
from anytimecl.memory.censoring import censor
from anytimecl.memory.checks import check_number
from anytimecl.memory.contract import Row, StoreWarning
from anytimecl.memory.keys import RequestKey
from anytimecl.memory.queries import Queries
from anytimecl.memory.transactions import CACHE_BYTES

if TYPE_CHECKING:
    from anytimecl.memory.contract import Memory

__all__ = ["CACHE_BYTES", "Store"]


class Store(Queries):
    """A `Memory` in SQLite, opened by `open_memory`.

    Thread-safe: calls are serialised. Other processes may read the same files meanwhile.
    """

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
