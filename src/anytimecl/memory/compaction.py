"""Compaction: free the space of deleted records.

Records are moved down over the holes before them, a batch in each transaction, so that others may
write in between, and an interruption leaves every record intact.
"""

from __future__ import annotations

from collections.abc import Iterable

from anytimecl.memory.records import blaming, damaged
from anytimecl.memory.store import Store
from anytimecl.memory.stream import EXTENT

_RECORDS = 256  # moved in one transaction
_PAGES = 4096  # freed in one transaction


def compact(store: Store) -> int:
    """Close every hole and shrink the files; returns the number of bytes freed.

    >>> from anytimecl.memory import RamMemory
    >>> with RamMemory() as memory:
    ...     ids = memory.append_many(("cat", bytes(10_000)) for _ in range(20))
    ...     _ = memory.forget(ids[:15])
    ...     compact(memory) > 100_000, len(memory.read(ids[15:]))
    (True, 5)
    """
    before = _size(store)
    with store.writing() as db:
        store.vocabulary.drop_unused_candidates()
        # Only needed here, so it is dropped afterwards.
        db.execute("CREATE INDEX IF NOT EXISTS example_start ON example (start)")
    checked: int | None = 0
    while checked is not None:
        checked = _slide(store, checked)
    with store.writing() as db:
        db.execute("DROP INDEX example_start")
        needed = -(-store.records.stream.end // EXTENT)
        db.execute("DELETE FROM extent WHERE id >= ?", (needed,))
        store.records.stream.extents = min(store.records.stream.extents, needed)
    left = _count(store, "freelist_count")
    while left:
        with store.reading() as db:
            db.execute(f"PRAGMA incremental_vacuum({_PAGES})").fetchall()
        left, previous = _count(store, "freelist_count"), left
        if left >= previous:
            break
    store.truncate_log()
    return before - _size(store)


def _slide(store: Store, checked: int) -> int | None:
    """Move records after the first hole down into it; returns None if there is no hole.

    Holes are blank up to `checked`, and then up to what is returned: a hole that grows on its way
    up is read once, not again for every batch.
    """
    with store.writing() as db:
        first = "SELECT start, CAST(size AS INTEGER) FROM hole ORDER BY start LIMIT 1"
        hole = db.execute(first).fetchone()
        if hole is None:
            return None
        start, end = max(checked, int(hole[0])), int(sum(hole))
        blank = hole[0] < end <= checked or store.records.stream.is_blank(start, end - start)
        if not blank:  # damaged: there are records
            db.execute("DELETE FROM hole WHERE start = ?", hole[:1])
            return checked
        after = "SELECT id FROM example WHERE start >= ? AND size > 0 "
        after += f"ORDER BY start LIMIT {_RECORDS}"
        examples = [row[0] for row in db.execute(after, hole[:1])]
        target, passed = _move(store, hole[0], examples)
        if len(examples) < _RECORDS:
            db.execute("DELETE FROM hole WHERE start >= ?", hole[:1])
            store.records.stream.end = target
        else:
            # The holes passed are now one, before the records still to be moved.
            db.execute("DELETE FROM hole WHERE start < ?", (passed,))
            store.records.stream.make_hole(target, passed - target)
        return max(checked, end)


def _move(store: Store, target: int, examples: Iterable[int]) -> tuple[int, int]:
    """Move records to consecutive places from `target` on; returns their end, now and before."""
    passed = target
    for example in examples:
        place = store.records.place(example)
        if not store.records.owns(example, place):
            raise damaged(example)
        with blaming(example):
            data = store.records.stream.get(place.start, place.size)
        if len(data) != place.size:
            raise damaged(example)
        passed = place.start + place.size
        store.records.stream.write(target, data)
        # Zero the old copy: it would survive when the record is forgotten.
        stale = max(place.start, target + place.size)
        store.records.stream.write(stale, bytes(passed - stale))
        store.db.execute("UPDATE example SET start = ? WHERE id = ?", (target, example))
        target += place.size
    return target, passed


def _count(store: Store, pragma: str) -> int:
    with store.reading() as db:
        return int(db.execute(f"PRAGMA {pragma}").fetchone()[0])


def _size(store: Store) -> int:
    return _count(store, "page_count") * _count(store, "page_size")
