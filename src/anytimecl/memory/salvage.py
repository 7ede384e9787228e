"""Rescue of the readable part of a damaged memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from anytimecl.errors import StoreError
from anytimecl.memory.contract import Progress, Row
from anytimecl.memory.exporting import all_at_once
from anytimecl.memory.opening import open_memory, refuse_to_replace
from anytimecl.memory.store import Store

_AT_ONCE = 1000  # examples in one transaction


class Rescued(NamedTuple):
    """Number of rescued examples, and ids of the others."""

    examples: int
    left_out: tuple[int, ...]


def rescue(
    store: Store,
    to: Path,
    *,
    beside: Callable[[Path], None] = lambda folder: None,
    progress: Progress | None = None,
) -> Rescued:
    """Write everything that can be read, with the same ids, as a new memory in the folder `to`.

    The folder appears atomically, since half of it would look like a memory, too; `beside` may add
    files to it before.

    >>> import tempfile
    >>> from anytimecl.memory import RamMemory
    >>> with RamMemory() as memory:
    ...     _ = memory.append("cat", b"a cat")
    ...     rescue(memory, Path(tempfile.mkdtemp()) / "new")
    Rescued(examples=1, left_out=())
    """
    refuse_to_replace(to)
    with all_at_once(Path(to)) as part, open_memory(part, create=store.meta) as new:
        beside(part)
        ids = store.all_ids()
        left_out = []
        with store.reading():
            texts = store.vocabulary.texts()
        for at in range(0, len(ids), _AT_ONCE):
            with store.reading(), new.writing():
                left_out += [e for e in ids[at : at + _AT_ONCE] if not _copy(store, new, e, texts)]
            if progress is not None:
                progress(min(at + _AT_ONCE, len(ids)), len(ids))
        with store.reading(), new.writing():
            for number, kind, data in store.journal.sound():
                new.journal.write(number, kind, data)
            for key, used in store.keys.rows():
                new.keys.copy(key, used)
            new.last = store.last  # ids of lost examples are not reused
            new.note("rescue", {"left_out": left_out})
    return Rescued(len(ids) - len(left_out), tuple(left_out))


def _copy(store: Store, new: Store, example: int, texts: Mapping[int, str]) -> bool:
    """Copy an example; returns False if it is damaged."""
    try:
        place = store.records.find(example)
        if place is None or place.label not in texts:
            return False
        record = store.records.fetch(example, place)
        candidates = store.vocabulary.candidates(place.candidates)
    except (StoreError, sqlite3.Error):
        return False
    row = Row(texts[place.label], record, candidates, place.key, place.time)
    with suppress(StoreError, sqlite3.Error):  # the record is worth keeping without the rest
        row = store.about.row(example, row)
    new.last = example - 1  # so that the next number is the same
    new.add(row)
    return True
