"""From a folder to a memory."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from anytimecl.errors import StoreError
from anytimecl.memory import schema
from anytimecl.memory.database import (
    FILE,
    Durability,
    connect,
    connect_read_only,
    telling,
)
from anytimecl.memory.lock import OwnerLock
from anytimecl.memory.mark import Mark, read_mark
from anytimecl.memory.store import CACHE_BYTES, Store

LOCK = "memory.lock"
MARK = "memory.mark"


def open_memory(
    folder: Path,
    *,
    create: Mapping[str, str] | None = None,
    read_only: bool = False,
    durability: Durability = "process",
    cache_bytes: int = CACHE_BYTES,
    cap: int | None = None,
) -> Store:
    """The memory in `folder`. If there is none, `create` makes it and becomes its `meta`.

    One process at a time owns a memory; others may open it with `read_only`. An acknowledged
    example survives the end of the process or, with `durability="full"`, of the power. `cap`
    bounds how many examples are stored: then the oldest of the largest class goes first.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with open_memory(folder, create={"codec": "none"}) as memory:
    ...     id = memory.append("cat", b"a cat")
    >>> with open_memory(folder, read_only=True) as memory:
    ...     memory.meta["codec"], memory.example(id).label
    ('none', 'cat')
    """
    folder = Path(folder)
    path = folder / FILE
    if read_only:
        return _open_read_only(path, cache_bytes)
    if not path.exists() and create is None:
        raise StoreError(f"There is no memory in {folder}.")
    folder.mkdir(parents=True, exist_ok=True)
    owner = OwnerLock(folder / LOCK)
    try:
        return _open_owned(path, create, durability, cache_bytes, cap, owner)
    except BaseException:
        owner.close()
        raise


def refuse_to_replace(folder: Path) -> None:
    """StoreError if there is a memory in the folder that a copy is meant for."""
    if (Path(folder) / FILE).exists():
        raise StoreError(f"There is a memory in {folder} already: choose another folder.")


def _open_owned(
    path: Path,
    create: Mapping[str, str] | None,
    durability: Durability,
    cache_bytes: int,
    cap: int | None,
    owner: OwnerLock,
) -> Store:
    with ExitStack() as opened:  # closes everything, unless all goes well
        db = connect(path, durability)
        opened.callback(db.close)
        with telling(path):
            new = schema.check(db) == 0
            if new and create is None:  # an empty file: its making was cut short
                raise StoreError(f"There is no memory in {path.parent}.")
            if new:
                schema.create(db, create or {})
            else:
                schema.migrate(db)
        mark = Mark(path.with_name(MARK))
        opened.callback(mark.close)
        promised = read_mark(path.with_name(MARK))  # of an empty file too: its log may be gone

        def release() -> None:
            mark.close()
            owner.close()

        store = Store(
            db,
            path,
            cache_bytes=cache_bytes,
            cap=cap,
            acknowledge=mark.put,
            release=release,
        )
        store.admit_loss(promised)
        mark.put(store.last)
        opened.pop_all()
    return store


def _open_read_only(path: Path, cache_bytes: int) -> Store:
    if not path.exists():
        raise StoreError(f"There is no memory in {path.parent}.")
    promised = read_mark(path.with_name(MARK))  # before the rest, since the owner may be writing
    with ExitStack() as opened:
        with telling(path):
            db = connect_read_only(path)
            opened.callback(db.close)
            version = schema.check(db)
        if not version:
            raise StoreError(f"There is no memory in {path.parent}.")
        if version < len(schema.MIGRATIONS):
            raise StoreError(
                f"The memory in {path.parent} has the older version {version}: open it once for "
                "writing, which brings it up to date."
            )
        store = Store(db, path, read_only=True, cache_bytes=cache_bytes)
        store.admit_loss(promised)
        opened.pop_all()
    return store
