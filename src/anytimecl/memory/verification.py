"""Verification of a memory: checksums, counts and structure."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from anytimecl.errors import StoreError
from anytimecl.memory.contract import Progress
from anytimecl.memory.database import ERRORS, connect_read_only, telling
from anytimecl.memory.store import Store
from anytimecl.memory.stream import EXTENT

_SHOWN = 20  # ids or problems listed in a message


@dataclass(frozen=True)
class Report:
    """Result of `verify`.

    >>> print(Report(examples=3, damaged=(2,)))
    3 examples checked, 1 damaged: 2
    """

    examples: int
    damaged: tuple[int, ...] = ()  # ids of damaged examples
    problems: tuple[str, ...] = ()  # other problems
    lost: tuple[int, int] | None = None  # first and last acknowledged event that is missing

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not self.damaged and not self.problems and self.lost is None

    def __str__(self) -> str:
        lines = [f"{self.examples} examples checked, {len(self.damaged)} damaged"]
        if self.damaged:
            lines[0] += ": " + ", ".join(map(str, self.damaged[:_SHOWN]))
        if self.lost:
            lines.append("events {} to {} were stored, and are lost".format(*self.lost))
        return "\n".join([*lines, *self.problems[:_SHOWN]])


def verify(store: Store, progress: Progress | None = None) -> Report:
    """Read and check everything, on a snapshot, while others may write.

    `progress` is called for every record.

    >>> from anytimecl.memory import RamMemory
    >>> with RamMemory() as memory:
    ...     _ = memory.append("cat", b"a cat")
    ...     verify(memory).ok
    True
    """
    with snapshot(store) as view:
        examples: list[int] = []
        damaged: set[int] = set()
        checks = (
            _records(view, examples, damaged, progress),
            _structure(view),
            _texts(view, damaged),
            _counts(view),
            _journal(view),
            _keys(view),
            view.about.damaged(),
            _space(view),
        )
        problems = tuple(problem for check in checks for problem in _all_told(check))
        return Report(len(examples), tuple(sorted(damaged)), problems, store.lost)


def _all_told(check: Iterator[str]) -> Iterator[str]:
    """Problems found by a check; an error that ends it is one, too."""
    try:
        yield from check
    except (StoreError, *ERRORS) as error:
        yield str(error)
    except (TypeError, AttributeError) as error:  # a flipped bit changed a value's type
        yield f"A value is damaged: {error}."


def _records(
    view: Store, examples: list[int], damaged: set[int], progress: Progress | None
) -> Iterator[str]:
    """Check every record's checksum."""
    examples += view.all_ids()
    for done, example in enumerate(examples, 1):
        if not _readable(view, example):
            damaged.add(example)
        if progress is not None:
            progress(done, len(examples))
    yield from ()


def _readable(view: Store, example: int) -> bool:
    try:
        place = view.records.find(example)
        if place is None:
            return False
        view.records.fetch(example, place)
    except (StoreError, sqlite3.Error):
        return False
    return True


def _structure(view: Store) -> Iterator[str]:
    """SQLite's integrity check."""
    for (message,) in view.db.execute("PRAGMA integrity_check(100)"):
        if message != "ok":
            yield str(message)


def _texts(view: Store, damaged: set[int]) -> Iterator[str]:
    """Check labels and candidate sets; examples of damaged ones are damaged, too."""
    known = ", ".join(map(str, view.vocabulary.texts())) or "NULL"
    broken = f"SELECT id FROM example WHERE label != 0 AND (label NOT IN ({known})"
    sets = ", ".join(map(str, view.vocabulary.damaged_candidates())) or "NULL"
    broken += f" OR candidates IN ({sets}) OR (candidates IS NOT NULL AND candidates NOT IN "
    broken += "(SELECT id FROM candidates)))"
    before = len(damaged)
    damaged.update(row[0] for row in view.db.execute(broken))
    if len(damaged) > before:
        yield f"{len(damaged) - before} examples have a damaged label or set of candidates."


def _counts(view: Store) -> Iterator[str]:
    """Compare each label's stored count with the number of its examples."""
    told = dict(view.db.execute("SELECT id, examples FROM label").fetchall())
    counting = "SELECT label, count(*) FROM example INDEXED BY example_label "
    counting += "WHERE label != 0 GROUP BY label"
    counted = dict(view.db.execute(counting).fetchall())
    for label in sorted(told.keys() | counted.keys()):
        if told.get(label, 0) != counted.get(label, 0):
            yield f"Label {label} has {counted.get(label, 0)} examples, not {told.get(label, 0)}."


def _journal(view: Store) -> Iterator[str]:
    for number in view.journal.damaged():
        yield f"Event {number} is damaged."


def _keys(view: Store) -> Iterator[str]:
    if damaged := view.keys.damaged():
        yield f"{damaged} used keys are damaged."


def _space(view: Store) -> Iterator[str]:
    """Check that records and holes are contiguous, and free space is zeroed."""
    ranges = "SELECT start, size, 0 FROM example WHERE size > 0 UNION ALL "
    ranges += "SELECT start, size, 1 FROM hole ORDER BY 1"
    end, blank = 0, True
    for start, size, free in view.db.execute(ranges).fetchall():
        if start != end:
            yield f"The records {'overlap' if start < end else 'leave a gap'} at byte {start}."
        end = max(end, start + size)
        blank = blank and (not free or view.records.stream.is_blank(start, size))
    if not blank or not _blank_after(view, end):
        yield "Free space is not blank: damage may have kept something that was forgotten."


def _blank_after(view: Store, end: int) -> bool:
    rest = "SELECT id, data FROM extent WHERE id >= ?"
    rows = view.db.execute(rest, (end // EXTENT,))
    return not any(data[max(0, end - at * EXTENT) :].strip(b"\0") for at, data in rows)


@contextmanager
def snapshot(store: Store) -> Iterator[Store]:
    """A consistent view; on disk, without blocking writers."""
    if store.path is None:
        with store.reading():
            yield store
        return
    with telling(store.path):
        db = connect_read_only(store.path)
    with Store(db, store.path, read_only=True, cache_bytes=0) as view, view.reading():
        yield view
