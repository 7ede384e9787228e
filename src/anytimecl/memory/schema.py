"""The tables, and migrations from older versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from anytimecl.errors import StoreError
from anytimecl.memory.checks import text_checksum

APPLICATION = 0x616E7974  # "anyt": distinguishes our files from other SQLite databases
PAGE = 4096

# Step n migrates version n to n + 1; a new memory takes every step. Released steps never change.
#
# `id` of an example and `number` of an event come from one counter: an example is its own `learn`
# event. Checksums cover all columns, so that a flipped bit in a label number is found like one in
# a record.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE meta (
        key TEXT PRIMARY KEY,
        value TEXT NOT NULL,
        crc INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE label (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        text TEXT NOT NULL UNIQUE,
        examples INTEGER NOT NULL,
        crc INTEGER
    );
    CREATE TABLE candidates (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        digest BLOB NOT NULL UNIQUE,
        labels TEXT NOT NULL
    );
    CREATE TABLE example (
        id INTEGER PRIMARY KEY,
        label INTEGER NOT NULL,
        candidates INTEGER,
        start INTEGER NOT NULL,
        size INTEGER NOT NULL,
        crc INTEGER NOT NULL,
        key TEXT
    );
    CREATE INDEX example_label ON example (label);
    CREATE UNIQUE INDEX example_key ON example (key) WHERE key IS NOT NULL;
    CREATE TABLE event (
        number INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        data TEXT NOT NULL,
        crc INTEGER NOT NULL
    );
    CREATE TABLE extent (id INTEGER PRIMARY KEY, data BLOB NOT NULL);
    CREATE TABLE hole (start INTEGER PRIMARY KEY, size INTEGER NOT NULL);
    CREATE INDEX hole_size ON hole (size);
    """,
    # When an example was learned, in milliseconds since 1970. Older ones have no time.
    "ALTER TABLE example ADD COLUMN time INTEGER",
    # Digest of an image's tokens, to recognise the image. Older examples have none.
    """
    CREATE TABLE content (example INTEGER PRIMARY KEY, digest INTEGER NOT NULL);
    CREATE INDEX content_digest ON content (digest)
    """,
    # Used keys of requests, which outlive their examples; digests only, since forgetting must leave
    # no text.
    """
    CREATE TABLE used_key (
        key BLOB PRIMARY KEY,
        example INTEGER NOT NULL,
        content BLOB NOT NULL,
        crc INTEGER NOT NULL
    ) WITHOUT ROWID
    """,
    # Name of an image where it comes from, and its thumbnail. `withdrawn` has undone examples
    # (their label is 0), each with the event that undid it: they stay until no checkpoint needs
    # them.
    """
    CREATE TABLE source (example INTEGER PRIMARY KEY, name TEXT NOT NULL);
    CREATE TABLE thumbnail (example INTEGER PRIMARY KEY, data BLOB NOT NULL);
    CREATE TABLE withdrawn (example INTEGER PRIMARY KEY, number INTEGER NOT NULL)
    """,
    # Checksums of these tables. Older rows have none.
    """
    ALTER TABLE content ADD COLUMN crc INTEGER;
    ALTER TABLE source ADD COLUMN crc INTEGER;
    ALTER TABLE thumbnail ADD COLUMN crc INTEGER
    """,
)


def version_of(db: sqlite3.Connection) -> int:
    """The version of the tables; 0 if there are none yet."""
    found = db.execute("PRAGMA user_version").fetchone()[0]
    assert isinstance(found, int)
    return found


def create(db: sqlite3.Connection, meta: Mapping[str, str]) -> None:
    """Create empty tables and the metadata, atomically."""
    migrate(db, MIGRATIONS, meta)


def migrate(
    db: sqlite3.Connection,
    steps: Sequence[str] = MIGRATIONS,
    meta: Mapping[str, str] | None = None,
) -> None:
    """Migrate the tables to the newest version, atomically.

    >>> db = sqlite3.connect(":memory:", isolation_level=None)
    >>> migrate(db)
    >>> version_of(db) == len(MIGRATIONS)
    True
    """
    version = check(db, steps)
    if version == len(steps):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        for step in steps[version:]:
            for statement in step.split(";"):
                db.execute(statement)
        rows = [(key, value, text_checksum(key, value)) for key, value in (meta or {}).items()]
        db.executemany("INSERT INTO meta VALUES (?, ?, ?)", rows)
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {len(steps)}")
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise


def check(db: sqlite3.Connection, steps: Sequence[str] = MIGRATIONS) -> int:
    """The version, if this program can use or migrate it; StoreError otherwise."""
    version = version_of(db)
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application = db.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION and (tables or version):
        raise StoreError("The file is a SQLite database, but not a memory of anytimecl.")
    if version > len(steps):
        raise StoreError(
            f"The memory has version {version}, and this program knows {len(steps)} at most: "
            "update anytimecl to open it."
        )
    return version


def read_meta(db: sqlite3.Connection) -> dict[str, str]:
    """The metadata; StoreError if it is damaged."""
    rows = db.execute("SELECT key, value, crc FROM meta").fetchall()
    for key, value, crc in rows:
        if crc != text_checksum(key, value):
            told = f"What the memory says of itself is damaged ({key}): restore a backup."
            raise StoreError(told)
    return {key: value for key, value, _ in rows}
