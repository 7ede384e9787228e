"""Bounded reading of image files."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import IO, Any

from anytimecl.images._errors import Refusal

MAX_BYTES = 2**28


def read_path(path: str) -> bytes:
    if "://" in path:
        raise Refusal("addresses are not fetched; download it and give the file")
    status = Path(path).stat()
    if stat.S_ISDIR(status.st_mode):
        raise Refusal(
            "it is a folder; check its permissions, and give a file in it or use iter_images"
        )
    if not stat.S_ISREG(status.st_mode):  # a pipe or a device could block for ever
        raise Refusal("it is not a regular file; give a file")
    check_bytes(status.st_size)
    with Path(path).open("rb") as file:
        return read_stream(file)


def read_stream(file: IO[Any]) -> bytes:
    data = bytearray()
    while chunk := file.read(2**20):
        if isinstance(chunk, str):
            raise Refusal("the file is open as text; open it with mode 'rb'")
        data += chunk
        check_bytes(len(data))
    return bytes(data)


def check_bytes(count: int) -> None:
    if count > MAX_BYTES:
        raise Refusal(f"it is larger than {MAX_BYTES} bytes; make it smaller")
