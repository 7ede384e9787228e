"""Where a second copy may be: a folder on another disk, a store of fsspec, or a log service."""

from __future__ import annotations

import os
from pathlib import Path

from anytimecl.errors import StoreError
from anytimecl.files import make_folder, replacing, sync
from anytimecl.memory.opening import refuse_addresses
from anytimecl.scale.log_service import SCHEME, LogService

NO_COPY = "none"
SEGMENT_BYTES = 1 << 26  # size of a file in a folder


class FolderPlace:
    """Files in a folder, synced."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def make(self) -> None:
        """Create the folder, for writing."""
        refuse_addresses(self._path)
        try:
            make_folder(self._path)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be made: {error}.") from error

    def __str__(self) -> str:
        return str(self._path)

    def has(self, name: str) -> bool:
        return (self._path / name).exists()

    def names(self) -> list[str]:
        return sorted(file.name for file in self._path.glob("lessons-*.jsonl"))

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        with replacing(self._path / name) as draft:
            draft.write_bytes(content)

    def append(self, name: str, lines: bytes) -> int:
        """Append to a file; returns its size."""
        file, new = self._path / name, not (self._path / name).exists()
        with file.open("ab") as opened:
            opened.write(lines)
            opened.flush()
            os.fsync(opened.fileno())
            size = opened.tell()
        if new:
            sync(self._path)
        return size


class ObjectPlace:
    """Objects in a store, written once each."""

    def __init__(self, address: str) -> None:
        import fsspec

        try:
            self._fs, root = fsspec.core.url_to_fs(address)
        except (ImportError, ValueError) as error:
            raise StoreError(f"{address} cannot be reached: {error}") from error
        self._root, self._address = str(root).rstrip("/"), address

    def __str__(self) -> str:
        return self._address

    def has(self, name: str) -> bool:
        return bool(self._fs.exists(f"{self._root}/{name}"))

    def names(self) -> list[str]:
        self._fs.invalidate_cache()  # or a store lists what it knew before
        found = self._fs.find(self._root)
        names = (str(name).rpartition("/")[2] for name in found)
        return sorted(name for name in names if name.startswith("lessons-"))

    def read(self, name: str) -> bytes:
        return bytes(self._fs.cat_file(f"{self._root}/{name}"))

    def write(self, name: str, content: bytes) -> None:
        self._fs.pipe_file(f"{self._root}/{name}", content)

    def append(self, name: str, lines: bytes) -> int:
        self.write(name, lines)
        return SEGMENT_BYTES  # an object is never added to


def settled(address: str) -> str:
    """Normalise an address for storing: a folder becomes absolute."""
    return address if address == NO_COPY or "://" in address else os.path.abspath(address)


CopyPlace = FolderPlace | ObjectPlace | LogService


def place_at(address: str) -> CopyPlace:
    """The place at an address."""
    scheme, there, rest = address.partition("://")
    if scheme == SCHEME and there:
        return LogService(address)
    if scheme in ("file", "local") and there:  # fsspec would not sync them
        return FolderPlace(Path(rest))
    return ObjectPlace(address) if there else FolderPlace(Path(address))
