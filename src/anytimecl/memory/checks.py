"""Conversion of text, and checksums."""

from __future__ import annotations

import struct
import zlib

from anytimecl.errors import StoreError

FARTHEST = 1 << 28  # events between two examples: more than any memory has had


def check_number(number: int, last: int, where: str) -> None:
    """StoreError for a number impossibly far above `last`: lists are indexed by it."""
    if number - last > FARTHEST:
        raise StoreError(
            f"{where} tells of event {number}, impossibly far after {last}: it is damaged. Restore "
            "a backup."
        )


def file_checksum(example: int, data: bytes) -> int:
    """Checksum of a file and its example."""
    return signed(zlib.crc32(data, zlib.crc32(struct.pack("<q", example))))


def signed(crc: int) -> int:
    """A checksum as SQLite stores it in four bytes; unsigned it takes six."""
    return crc - (1 << 32) if crc >> 31 else crc


def text_checksum(*parts: str | int) -> int:
    """Checksum of parts in order."""
    return signed(zlib.crc32(as_bytes("\0".join(map(str, parts)))))


def as_bytes(text: str) -> bytes:
    """The inverse of `as_text`."""
    return text.encode("utf-8", "surrogateescape")


def as_text(stored: bytes) -> str:
    """Decode UTF-8; invalid bytes are no error here, since the checksum finds them."""
    return stored.decode("utf-8", "surrogateescape")
