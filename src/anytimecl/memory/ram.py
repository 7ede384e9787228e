"""A memory in RAM."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from anytimecl.memory.database import connect
from anytimecl.memory.schema import create
from anytimecl.memory.store import CACHE_BYTES, Store


class RamMemory(Store):
    """A memory without files, lost when it is closed: for tests and experiments.

    >>> with RamMemory({"codec": "none"}) as memory:
    ...     first = memory.append("cat", b"a cat")
    ...     second = memory.append("dog", b"a dog", candidates=["cat", "dog"])
    ...     memory.read([second, first]), memory.labels(), len(memory)
    ([b'a dog', b'a cat'], {'cat': 1, 'dog': 1}, 2)
    """

    def __init__(
        self,
        meta: Mapping[str, str] | None = None,
        *,
        cache_bytes: int = CACHE_BYTES,
        cap: int | None = None,
        thumbnails: bool = False,
    ) -> None:
        db = connect(None)
        create(db, meta or {})
        super().__init__(db, None, cache_bytes=cache_bytes, cap=cap, thumbnails=thumbnails)


def open_in_ram(
    folder: Path | None,
    create: Mapping[str, str] | None,
    read_only: bool = False,
    *,
    cache_bytes: int = CACHE_BYTES,
    cap: int | None = None,
    thumbnails: bool = False,
) -> RamMemory:
    """A new memory, with the signature of `STORES`."""
    return RamMemory(create, cache_bytes=cache_bytes, cap=cap, thumbnails=thumbnails)
