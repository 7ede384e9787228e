"""SQLite connections with the memory's settings, and translation of SQLite errors."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from anytimecl.errors import StoreError
from anytimecl.files import shown
from anytimecl.memory.checks import as_text
from anytimecl.memory.schema import PAGE, check

FILE = "memory.sqlite3"
Durability = Literal["process", "full"]

_SYNCHRONOUS = {"process": "NORMAL", "full": "FULL"}
_PAGES_IN_RAM = 16 * 1024 * 1024
_LONGEST_LOG = 64 * 1024 * 1024  # size to which the write-ahead log is truncated
_PATIENCE = 10.0  # seconds to wait for a lock

ERRORS = (sqlite3.Error, OverflowError, struct.error)
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_SEALED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def connect(path: Path | None, durability: Durability = "process") -> sqlite3.Connection:
    """A writing connection; without a path, to a database in RAM."""
    if durability not in _SYNCHRONOUS:
        raise StoreError(f'Durability is "process" or "full", not {durability!r}.')
    with telling(path):
        db = _connect(str(path) if path else ":memory:")
        try:
            # First, since the file may be of another program.
            if not check(db):
                db.execute(f"PRAGMA page_size = {PAGE}")
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA journal_size_limit = {_LONGEST_LOG}")
            db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
            db.execute(f"PRAGMA fullfsync = {int(durability == 'full')}")  # macOS only
            db.execute("PRAGMA secure_delete = ON")
        except BaseException:
            db.close()
            raise
    return db


def connect_read_only(path: Path) -> sqlite3.Connection:
    """A read-only connection, also while the owner writes."""
    name = path.resolve().as_uri()
    try:
        return _connect(f"{name}?mode=ro")
    except sqlite3.Error as error:
        log = path.with_name(path.name + "-wal")
        if _primary(error) not in _SEALED or (log.exists() and log.stat().st_size):
            raise
        # Readers need a shared-memory file. Where it cannot be created, there is no writer either.
        return _connect(f"{name}?mode=ro&immutable=1")


def _connect(name: str) -> sqlite3.Connection:
    db = sqlite3.connect(
        name,
        timeout=_PATIENCE,
        isolation_level=None,  # explicit transactions, see `Store`
        check_same_thread=False,  # serialised by the store's lock
        uri=name.startswith("file:"),
    )
    db.text_factory = as_text
    try:
        db.execute(f"PRAGMA cache_size = {-_PAGES_IN_RAM // 1024}")
        db.execute("PRAGMA cell_size_check = ON")  # detect damage early
    except BaseException:
        db.close()
        raise
    return db


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error means that the file is damaged."""
    return _primary(error) in _DAMAGED


@contextmanager
def telling(path: Path | None) -> Iterator[None]:
    """Translate SQLite errors to StoreError, with advice."""
    try:
        yield
    except ERRORS as error:
        raise in_words(error, path) from error


def in_words(error: Exception, path: Path | None) -> StoreError:
    """The StoreError for one of `ERRORS`."""
    if isinstance(error, OverflowError | struct.error):
        return StoreError(f"There is no such number in a memory: {error}.")
    code = _primary(error)
    if code in _FULL:
        told = "cannot be written: the disk is full or failing. Nothing stored is lost; make "
        told += f"room and try again. ({error})"
    elif code in _DAMAGED:
        told = f"is damaged: run `anytimecl memory verify`, or restore a backup. ({error})"
    elif code == sqlite3.SQLITE_BUSY:
        told = f"is being used by another program: try again later. ({error})"
    elif code == sqlite3.SQLITE_READONLY:
        told = f"was opened for reading only, or its files cannot be written. ({error})"
    else:
        told = f"cannot do that: {error}."
    return StoreError(f"The memory in {shown(path.parent) if path else 'RAM'} {told}")


def _primary(error: Exception) -> int:
    """The error's family: the low byte of SQLite's extended code."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
