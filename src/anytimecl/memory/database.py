"""A connection set up as the memory needs it, and SQLite's errors in words for people."""

from __future__ import annotations

import sqlite3
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
_LONGEST_LOG = 64 * 1024 * 1024  # what a large transaction leaves of the write-ahead log
_PATIENCE = 10.0  # seconds that a reader may hold up a checkpoint

ERRORS = (sqlite3.Error, OverflowError)
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_SEALED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def connect(path: Path | None, durability: Durability = "process") -> sqlite3.Connection:
    """A connection that writes; without a path the database lives in RAM."""
    if durability not in _SYNCHRONOUS:
        raise StoreError(f'Durability is "process" or "full", not {durability!r}.')
    with telling(path):
        db = _connect(str(path) if path else ":memory:")
        try:
            # Before anything is changed, for the file may be somebody else's.
            if not check(db):
                db.execute(f"PRAGMA page_size = {PAGE}")
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA journal_size_limit = {_LONGEST_LOG}")
            db.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
            db.execute(f"PRAGMA fullfsync = {int(durability == 'full')}")  # macOS alone has it
            db.execute("PRAGMA secure_delete = ON")
        except BaseException:
            db.close()
            raise
    return db


def connect_read_only(path: Path) -> sqlite3.Connection:
    """A connection that only reads, beside the owner's or alone."""
    name = path.resolve().as_uri()
    try:
        return _connect(f"{name}?mode=ro")
    except sqlite3.Error as error:
        log = path.with_name(path.name + "-wal")
        if _primary(error) not in _SEALED or (log.exists() and log.stat().st_size):
            raise
        # Readers make themselves known in a file. Where none can be made, nobody writes either.
        return _connect(f"{name}?mode=ro&immutable=1")


def _connect(name: str) -> sqlite3.Connection:
    db = sqlite3.connect(
        name,
        timeout=_PATIENCE,
        isolation_level=None,  # transactions are written out, see `Store`
        check_same_thread=False,  # the store's own lock keeps threads apart
        uri=name.startswith("file:"),
    )
    db.text_factory = as_text
    try:
        db.execute(f"PRAGMA cache_size = {-_PAGES_IN_RAM // 1024}")
        db.execute("PRAGMA cell_size_check = ON")  # damage is an error early, not garbage later
    except BaseException:
        db.close()
        raise
    return db


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file, rather than the request, is to blame."""
    return _primary(error) in _DAMAGED


@contextmanager
def telling(path: Path | None) -> Iterator[None]:
    """Turn SQLite's errors into a StoreError that says what to do."""
    try:
        yield
    except ERRORS as error:
        raise in_words(error, path) from error


def in_words(error: Exception, path: Path | None) -> StoreError:
    """What to say of one of these `ERRORS` of SQLite."""
    if isinstance(error, OverflowError):
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
