"""Checksums: of a record together with what it means, and of text."""

from __future__ import annotations

import struct
import zlib


def checksum(
    example: int,
    label: int,
    candidates: int | None,
    key: str | None,
    record: bytes,
    time: int | None = None,
) -> int:
    """Covers the record, whose it is and what it is an example of.

    >>> checksum(1, 1, None, None, b"cat") == checksum(1, 2, None, None, b"cat")
    False
    """
    about = struct.pack("<qqq", example, label, candidates or 0) + as_bytes(key or "")
    if time is not None:
        about += struct.pack("<q", time)
    return _signed(zlib.crc32(record, zlib.crc32(about)))


def text_checksum(*parts: str | int) -> int:
    """Covers the parts and their order."""
    return _signed(zlib.crc32(as_bytes("\0".join(map(str, parts)))))


def as_bytes(text: str) -> bytes:
    """UTF-8, and the other way round of `as_text` for what is not."""
    return text.encode("utf-8", "surrogateescape")


def as_text(stored: bytes) -> str:
    """Text from UTF-8; damaged text is not an error here, but for its checksum to find."""
    return stored.decode("utf-8", "surrogateescape")


def _signed(crc: int) -> int:
    """SQLite stores 32 bits with a sign in four bytes, and without one in six."""
    return crc - (1 << 32) if crc >> 31 else crc
