"""Index of idempotency keys over the leaves, so that a key is learned once in the whole tree.

It is derived from the leaves' memories and updated when a tree is opened, so it need not be synced
with every example: after a crash some keys are read again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from anytimecl.closing import Closing
from anytimecl.memory.database import telling

FILE = "keys.sqlite3"
VERSION = 1
TOGETHER = 1000  # keys written in one transaction


class KeyIndex(Closing):
    """Key -> the leaf it was sent to; the leaf itself knows whether it has the key.

    >>> import tempfile
    >>> index = KeyIndex(Path(tempfile.mkdtemp()))
    >>> index.claim("a.jpg", 3)
    >>> index.leaf_of("a.jpg"), index.leaf_of("b.jpg")
    (3, None)
    """

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._path = folder / FILE
        try:
            self._db = _opened(self._path)
        except sqlite3.DatabaseError:  # damaged or of another version: rebuilt
            for ending in ("", "-wal", "-shm"):
                (folder / f"{FILE}{ending}").unlink(missing_ok=True)
            with telling(self._path):
                self._db = _opened(self._path)

    def leaf_of(self, key: str) -> int | None:
        """The leaf that a key was sent to last."""
        with self._using() as db:
            row = db.execute("SELECT leaf FROM key WHERE key = ?", (key,)).fetchone()
        return None if row is None else int(row[0])

    def claim(self, key: str, leaf: int) -> None:
        """Store that an example with this key is about to be sent to a leaf."""
        with self._using() as db:
            db.execute("INSERT OR REPLACE INTO key VALUES (?, ?)", (key, leaf))

    def mark(self, leaf: int) -> int:
        """The event of a leaf's memory up to which its keys are indexed."""
        with self._using() as db:
            row = db.execute("SELECT event FROM mark WHERE leaf = ?", (leaf,)).fetchone()
        return 0 if row is None else int(row[0])

    def add(self, leaf: int, keys: Sequence[str], event: int) -> None:
        """Add keys of a leaf, which complete its index up to an event."""
        rest = iter(keys)
        while some := [(key, leaf) for key in islice(rest, TOGETHER)]:
            with self._writing() as db:
                db.executemany("INSERT OR REPLACE INTO key VALUES (?, ?)", some)
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO mark VALUES (?, ?)", (leaf, event))

    def clear(self) -> None:
        """Delete every key; they are read again."""
        with self._writing() as db:
            db.execute("DELETE FROM key")
            db.execute("DELETE FROM mark")
        with self._using() as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def keep(self, leaves: Iterable[int]) -> None:
        """Delete the keys of all other leaves."""
        known = {(leaf,) for leaf in leaves}
        with self._writing() as db:
            db.execute("CREATE TEMP TABLE known (leaf INTEGER PRIMARY KEY)")
            db.executemany("INSERT INTO known VALUES (?)", known)
            for table in ("key", "mark"):
                db.execute(f"DELETE FROM {table} WHERE leaf NOT IN (SELECT leaf FROM known)")
            db.execute("DROP TABLE known")

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The connection, with SQLite errors translated."""
        with self._lock, telling(self._path):
            yield self._db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, rolled back if the block raises."""
        with self._using() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()


def _opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"version {version}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the latest keys only
        db.execute("PRAGMA secure_delete = ON")
        db.execute("BEGIN IMMEDIATE")
        db.execute("CREATE TABLE IF NOT EXISTS key (key TEXT PRIMARY KEY, leaf INTEGER NOT NULL)")
        db.execute(
            "CREATE TABLE IF NOT EXISTS mark (leaf INTEGER PRIMARY KEY, event INTEGER NOT NULL)"
        )
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db


class OneAtATime:
    """A lock for each name.

    >>> names = OneAtATime()
    >>> names.enter("a.jpg"), names.enter("a.jpg", patience=0.1)
    (True, False)
    >>> names.leave("a.jpg")
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._free = threading.Condition()

    def enter(self, name: str, patience: float | None = None) -> bool:
        """Acquire a name; False if it is still in use after `patience` seconds."""
        with self._free:
            free = self._free.wait_for(lambda: name not in self._used, patience)
            if free:
                self._used.add(name)
            return free

    def leave(self, name: str) -> None:
        """Release a name."""
        with self._free:
            self._used.discard(name)
            self._free.notify_all()
