"""Checksums: of a record together with what it means, and of text."""

from __future__ import annotations

import struct
import zlib


def checksum(
    example: int, label: int, candidates: int | None, key: str | None, record: bytes
) -> int:
    """Covers the record, whose it is and what it is an example of.

    >>> checksum(1, 1, None, None, b"cat") == checksum(1, 2, None, None, b"cat")
    False
    """
    about = struct.pack("<qqq", example, label, candidates or 0) + (key or "").encode()
    return _signed(zlib.crc32(record, zlib.crc32(about)))


def text_checksum(*parts: str | int) -> int:
    """Covers the parts and their order."""
    return _signed(zlib.crc32("\0".join(map(str, parts)).encode()))


def _signed(crc: int) -> int:
    """SQLite stores 32 bits with a sign in four bytes, and without one in six."""
    return crc - (1 << 32) if crc >> 31 else crc
