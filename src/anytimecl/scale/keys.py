"""Which leaf holds each key, so that a key teaches once in the whole tree.

The leaves' memories are the truth. This is an index of them that is brought up to date when a tree
is opened, so it need not be on disk before a lesson is: a crash costs reading some keys again.
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
TOGETHER = 1000  # keys that are written in one go while others wait


class KeyIndex(Closing):
    """Key -> the leaf that it was sent to; who finds one there asks the leaf whether it has it.

    >>> index = KeyIndex(None)
    >>> index.claim("a.jpg", 3)
    >>> index.leaf_of("a.jpg"), index.leaf_of("b.jpg")
    (3, None)
    """

    def __init__(self, folder: Path | None) -> None:
        self._lock = threading.Lock()
        self._path = None if folder is None else folder / FILE
        try:
            self._db = _opened(self._path)
        except sqlite3.DatabaseError:  # damaged or of another version: it is made again
            assert folder is not None
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
        """A lesson with this key is about to go to a leaf."""
        with self._using() as db:
            db.execute("INSERT OR REPLACE INTO key VALUES (?, ?)", (key, leaf))

    def mark(self, leaf: int) -> int:
        """The last event of a leaf's memory up to which its keys are here."""
        with self._using() as db:
            row = db.execute("SELECT event FROM mark WHERE leaf = ?", (leaf,)).fetchone()
        return 0 if row is None else int(row[0])

    def add(self, leaf: int, keys: Sequence[str], event: int) -> None:
        """These are in a leaf, and so are all up to an event."""
        rest = iter(keys)
        while some := [(key, leaf) for key in islice(rest, TOGETHER)]:
            with self._writing() as db:
                db.executemany("INSERT OR REPLACE INTO key VALUES (?, ?)", some)
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO mark VALUES (?, ?)", (leaf, event))

    def clear(self) -> None:
        """Forget every key, for good; they are to be read again."""
        with self._writing() as db:
            db.execute("DELETE FROM key")
            db.execute("DELETE FROM mark")
        with self._using() as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def keep(self, leaves: Iterable[int]) -> None:
        """Forget the keys of all other leaves."""
        known = {(leaf,) for leaf in leaves}
        with self._writing() as db:
            db.execute("CREATE TEMP TABLE known (leaf INTEGER PRIMARY KEY)")
            db.executemany("INSERT INTO known VALUES (?)", known)
            for table in ("key", "mark"):
                db.execute(f"DELETE FROM {table} WHERE leaf NOT IN (SELECT leaf FROM known)")
            db.execute("DROP TABLE known")

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The connection, with errors told in words."""
        with self._lock, telling(self._path):
            yield self._db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, undone if the block raises."""
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
        """Let go of the file."""
        with self._lock:
            self._db.close()


def _opened(path: Path | None) -> sqlite3.Connection:
    name = ":memory:" if path is None else str(path)
    db = sqlite3.connect(name, isolation_level=None, check_same_thread=False)
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, VERSION):
            raise sqlite3.DatabaseError(f"version {version}")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")  # after a power cut it is older, and whole
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
    """Names that are in use; who wants one that is waits for it.

    >>> names = OneAtATime()
    >>> names.enter("a.jpg"), names.enter("a.jpg", patience=0.1)
    (True, False)
    >>> names.leave("a.jpg")
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._free = threading.Condition()

    def enter(self, name: str, patience: float | None = None) -> bool:
        """True when nobody else uses the name, False if somebody still does after `patience` s."""
        with self._free:
            free = self._free.wait_for(lambda: name not in self._used, patience)
            if free:
                self._used.add(name)
            return free

    def leave(self, name: str) -> None:
        """Let the next one have it."""
        with self._free:
            self._used.discard(name)
            self._free.notify_all()
