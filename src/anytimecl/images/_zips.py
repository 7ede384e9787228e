"""Reading of zip members."""

from __future__ import annotations

import os
import threading
import zipfile
from functools import lru_cache
from pathlib import Path

from anytimecl.images._bytes import check_bytes, read_stream
from anytimecl.images._errors import Refusal


def read_member(root: Path, member: str) -> bytes:
    archive = open_zip(root)
    entry = archive.getinfo(member)
    # Other methods inflate all that is given to them at once, with no bound.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Refusal("its compression is not supported in a zip; zip it with deflate")
    if entry.flag_bits & 1:
        raise Refusal("it is encrypted; zip it without a password")
    check_bytes(entry.file_size)
    with archive.open(entry) as file:
        return read_stream(file)


def open_zip(root: Path) -> zipfile.ZipFile:
    status = root.stat()
    version = (status.st_mtime_ns, status.st_size, status.st_ino)
    # An open zip has one file position: neither threads nor forked processes may share it.
    return _cached_zip(root, version, os.getpid(), threading.get_ident())


@lru_cache(maxsize=32)
def _cached_zip(root: Path, version: object, process: int, thread: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(root)
