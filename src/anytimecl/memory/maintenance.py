"""Maintenance of a memory: statistics, backup; with compaction, rescue and verification."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from anytimecl.errors import StoreError
from anytimecl.files import replacing
from anytimecl.memory.compaction import compact
from anytimecl.memory.database import FILE, connect_read_only, telling
from anytimecl.memory.opening import refuse_to_replace
from anytimecl.memory.salvage import Rescued, rescue
from anytimecl.memory.schema import version_of
from anytimecl.memory.store import Store
from anytimecl.memory.verification import Report, verify

__all__ = ["Info", "Report", "Rescued", "backup", "compact", "info", "rescue", "verify"]


@dataclass(frozen=True)
class Info:
    """Statistics of a memory."""

    folder: str | None  # None: in RAM
    version: int
    examples: int
    labels: int
    events: int  # number of the last one
    payload_bytes: int  # records only
    disk_bytes: int  # database and write-ahead log
    free_bytes: int  # holes that new records will fill
    lost_events: int  # acknowledged, but missing after damage
    meta: Mapping[str, str]


def info(store: Store) -> Info:
    """Collect the statistics.

    >>> from anytimecl.memory import RamMemory
    >>> with RamMemory() as memory:
    ...     _ = memory.append("cat", b"a cat")
    ...     info(memory).payload_bytes
    5
    """
    with store.reading() as db:
        lost = [event.data for event in store.journal.of_kinds(["lost"])]
        return Info(
            folder=str(store.path.parent) if store.path else None,
            version=version_of(db),
            examples=store.vocabulary.total(),
            labels=len(store.vocabulary.counts()),
            events=store.journal.last(),
            payload_bytes=_sum(db, "example"),
            disk_bytes=_on_disk(store.path, db),
            free_bytes=_sum(db, "hole"),
            lost_events=sum(data["last"] - data["first"] + 1 for data in lost),
            meta=dict(store.meta),
        )


def backup(store: Store, to: Path) -> Path:
    """Copy the memory into the folder `to`, even while it is being written; returns the file.

    The copy is a consistent snapshot, and appears atomically.

    >>> import tempfile
    >>> from anytimecl.memory import RamMemory, open_memory
    >>> folder = Path(tempfile.mkdtemp())
    >>> with RamMemory() as memory:
    ...     _ = memory.append("cat", b"a cat")
    ...     _ = backup(memory, folder)
    >>> with open_memory(folder) as copy:
    ...     copy.labels()
    {'cat': 1}
    """
    target = Path(to) / FILE
    refuse_to_replace(to)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as draft:
            _copy(store, draft)
    except OSError as error:
        raise StoreError(f"{to} cannot be written: {error}.") from error
    return target


def _copy(store: Store, to: Path) -> None:
    with telling(to):
        copy = sqlite3.connect(to)
        try:
            if store.path is None:
                with store.reading() as db:
                    db.backup(copy)
            else:
                # On a connection of its own, so that writers need not wait.
                source = connect_read_only(store.path)
                try:
                    source.backup(copy)
                finally:
                    source.close()
        finally:
            copy.close()


def _sum(db: sqlite3.Connection, table: str) -> int:
    return int(db.execute(f"SELECT coalesce(sum(size), 0) FROM {table}").fetchone()[0])


def _on_disk(path: Path | None, db: sqlite3.Connection) -> int:
    if path is None:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        return int(pages * db.execute("PRAGMA page_size").fetchone()[0])
    log = path.with_name(path.name + "-wal")
    return sum(file.stat().st_size for file in (path, log) if file.exists())
