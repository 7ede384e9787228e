"""Opening and creating memories on disk."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from anytimecl.errors import StoreError, reason
from anytimecl.files import identity, make_folder, shown
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

S = TypeVar("S", bound=Store)
LOCK = "memory.lock"
MARK = "memory.mark"
BESIDE = (f"{FILE}-wal", LOCK, MARK, "checkpoint", "prior.safetensors")  # or a classifier's


def open_memory(
    folder: Path,
    create: Mapping[str, str] | None = None,
    read_only: bool = False,
    *,
    durability: Durability = "process",
    cache_bytes: int = CACHE_BYTES,
    cap: int | None = None,
    thumbnails: bool = False,
    _kind: type[Store] = Store,
) -> Store:
    """Open the memory in `folder`, or create it with `create` as its metadata.

    One process at a time owns a memory; others may open it with `read_only`. An acknowledged
    example survives the end of the process or, with `durability="full"`, a power cut. `cap` bounds
    the number of examples: beyond it, the oldest of the largest class is evicted. With
    `thumbnails`, a thumbnail of every learned image is stored.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with open_memory(folder, create={"codec": "none"}) as memory:
    ...     id = memory.append("cat", b"a cat")
    >>> with open_memory(folder, read_only=True) as memory:
    ...     memory.meta["codec"], memory.example(id).label
    ('none', 'cat')
    """
    folder = Path(folder).absolute()  # os.chdir must not change it
    path = folder / FILE
    refuse_remains(folder)
    if read_only:
        return _open_read_only(_kind, path, cache_bytes)
    if not path.exists() and create is None:
        raise StoreError(f"There is no memory in {shown(folder)}.")
    if folder.is_file():
        raise StoreError(f"{shown(folder)} is a file: a memory is a folder. Choose another name.")
    refuse_addresses(folder)
    with ExitStack() as opened:  # closes everything on failure
        try:
            if durability == "full":
                make_folder(folder)
            else:
                folder.mkdir(parents=True, exist_ok=True)
            owner = OwnerLock(folder / LOCK)
            opened.callback(owner.close)
            store = _open_owned(_kind, path, create, durability, cache_bytes, cap, owner)
        except OSError as error:
            raise StoreError(
                f"The memory in {shown(folder)} cannot be opened for writing: "
                f"{error.filename or 'its lock'}: {reason(error)}. To read it only, open it with "
                "read_only=True."
            ) from error
        store.thumbnails = thumbnails
        opened.pop_all()
    return store


def open_as(
    kind: type[S],
    folder: Path,
    create: Mapping[str, str] | None = None,
    read_only: bool = False,
    **options: Any,
) -> S:
    """`open_memory` for a subclass of `Store`."""
    store = open_memory(folder, create, read_only, _kind=kind, **options)
    assert isinstance(store, kind)
    return store


def stored_meta(folder: Path) -> dict[str, str] | None:
    """The metadata of the memory in a folder, of any version; None if there never was one."""
    path = Path(folder) / FILE
    refuse_remains(Path(folder))
    if not path.exists():
        return None
    with telling(path):
        db = connect_read_only(path)
        try:
            return schema.read_meta(db) if schema.check(db) else None
        finally:
            db.close()


def refuse_remains(folder: Path) -> None:
    """StoreError for a folder whose mark says that there was a memory, and whose database is gone.

    A new memory there would hide the loss.
    """
    if (folder / FILE).exists() or not (last := read_mark(folder / MARK)):
        return
    rest = ", ".join(name for name in BESIDE if (folder / name).exists())
    raise StoreError(
        f"The memory in {shown(folder)} has lost its {FILE}, which held everything up to event "
        f"{last}; what is still there: {rest}. Restore {FILE}, or the whole folder, from a "
        "backup; or name another folder; or delete what is still there to start anew."
    )


def refuse_to_replace(folder: Path) -> None:
    """Raise StoreError if the folder contains a memory, or is a file."""
    if Path(folder).is_file():
        raise StoreError(f"{folder} is a file: choose a folder.")
    if (Path(folder) / FILE).exists():
        raise StoreError(f"There is a memory in {folder} already: choose another folder.")
    refuse_addresses(Path(folder).absolute())


def refuse_addresses(folder: Path) -> None:
    """StoreError rather than a new folder of the name `~` or `s3:`, which nobody wants."""
    new = [each for each in (*reversed(folder.parents), folder) if not each.exists()]
    if new and new[0].name == "~":
        raise StoreError(f"{shown(folder)} does not name your home folder: write its path out.")
    if new and re.fullmatch(r"[a-z][a-z0-9+.-]+:", new[0].name):
        raise StoreError(f"{shown(folder)} is an address: a memory is a folder of this machine.")


def _open_owned(
    kind: type[S],
    path: Path,
    create: Mapping[str, str] | None,
    durability: Durability,
    cache_bytes: int,
    cap: int | None,
    owner: OwnerLock,
) -> S:
    with ExitStack() as opened:  # closes everything on failure
        db = connect(path, durability)
        opened.callback(db.close)
        with telling(path):
            new = schema.check(db) == 0
            if new and create is None:  # an empty file: its creation was interrupted
                raise StoreError(f"There is no memory in {shown(path.parent)}.")
            if new:
                schema.create(db, create or {})
            else:
                schema.migrate(db)
        beside = path.with_name(MARK)
        mark = Mark(beside)
        own, its = identity(path), identity(beside)
        opened.callback(mark.close)
        promised = read_mark(beside)  # also for an empty file, whose log may be gone

        def acknowledge(number: int) -> None:
            mark.put(number)
            if identity(path) == own:
                return
            # Valid if moved with its folder; not if the mark was deleted or stayed behind.
            if mark.removed or identity(beside) == its:
                raise StoreError(
                    f"The memory in {shown(path.parent)} was removed while it was in use, and "
                    "nothing that is learned now would last: restore it from a backup, and open "
                    "it again."
                )

        def release() -> None:
            mark.close()
            owner.close()

        store = kind(
            db,
            path,
            cache_bytes=cache_bytes,
            cap=cap,
            acknowledge=acknowledge,
            release=release,
        )
        store.admit_loss(promised)
        mark.put(store.last)
        opened.pop_all()
    return store


def _open_read_only(kind: type[S], path: Path, cache_bytes: int) -> S:
    if not path.exists():
        raise StoreError(f"There is no memory in {shown(path.parent)}.")
    promised = read_mark(path.with_name(MARK))  # first, since the owner may be writing
    with ExitStack() as opened:
        with telling(path):
            db = connect_read_only(path)
            opened.callback(db.close)
            version = schema.check(db)
        if not version:
            raise StoreError(f"There is no memory in {shown(path.parent)}.")
        if version < len(schema.MIGRATIONS):
            raise StoreError(
                f"The memory in {shown(path.parent)} has the older version {version}: open it "
                "once for writing, which brings it up to date."
            )
        store = kind(db, path, read_only=True, cache_bytes=cache_bytes)
        store.admit_loss(promised)
        opened.pop_all()
    return store
