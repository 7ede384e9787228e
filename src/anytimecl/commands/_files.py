"""Files, folders and zips from the command line as references to images."""

from __future__ import annotations

import hashlib
import stat
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, NamedTuple

from anytimecl.errors import ImageError
from anytimecl.images import MAX_BYTES, ImageRef, iter_images

_SAFE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others decompress without a size limit


class Failure(NamedTuple):
    """An argument that cannot be used, and why."""

    name: str
    why: str


def find(paths: Iterable[Path]) -> Iterator[ImageRef | Failure]:
    """All images in the given order; folders and zips are expanded."""
    for path in paths:
        try:
            if path.is_dir() or (path.suffix.lower() == ".zip" and path.is_file()):
                yield from iter_images(path)
            else:
                yield ImageRef(path.name, label=None, split=None, root=path.parent)
        except ImageError as error:
            yield Failure(str(path), str(error))


def shown(ref: ImageRef) -> str:
    """The path of an image as the user would write it."""
    return str(ref.root / ref.name)


def digest(ref: ImageRef) -> bytes:
    """SHA-256 of the file."""
    try:
        with _opened(ref) as file:
            return _digest(file)
    except Exception as error:  # zipfile raises many types of exceptions
        ref.load()  # raises a better message
        raise ImageError(
            f"cannot read image {shown(ref)!r}: it changed while it was read; try again"
        ) from error


def contents(ref: ImageRef) -> bytes:
    """The bytes of the file."""
    with _opened(ref) as file:
        return file.read(MAX_BYTES)


def _digest(file: IO[bytes]) -> bytes:
    digest, left = hashlib.sha256(), MAX_BYTES
    while left > 0 and (chunk := file.read(1 << 20)):
        digest.update(chunk)
        left -= len(chunk)
    return digest.digest()


@contextmanager
def _opened(ref: ImageRef) -> Iterator[IO[bytes]]:
    if ref.member is None:
        path = ref.root / ref.name
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe could block forever
            raise OSError("not a regular file")
        with path.open("rb") as file:
            yield file
        return
    archive = _zip(ref.root, ref.root.stat().st_mtime_ns)
    entry = archive.getinfo(ref.member)
    if entry.compress_type not in _SAFE:
        raise OSError("compressed in another way")
    with archive.open(entry) as member:
        yield member


@lru_cache(maxsize=1)
def _zip(root: Path, changed: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(root)  # kept open: reading the directory is slow
