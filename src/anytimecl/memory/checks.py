"""Conversion of text, and checksums."""

from __future__ import annotations

import struct
import zlib

# SQLite stores signed 32-bit numbers in four bytes, unsigned ones in six.
UNSIGNED, SIGNED = struct.Struct("<I"), struct.Struct("<i")


def file_checksum(example: int, data: bytes) -> int:
    """Checksum of a file and its example."""
    return _signed(zlib.crc32(data, zlib.crc32(struct.pack("<q", example))))


def _signed(crc: int) -> int:
    number: int = SIGNED.unpack(UNSIGNED.pack(crc))[0]
    return number


def text_checksum(*parts: str | int) -> int:
    """Checksum of parts in order."""
    return _signed(zlib.crc32(as_bytes("\0".join(map(str, parts)))))


def as_bytes(text: str) -> bytes:
    """The inverse of `as_text`."""
    return text.encode("utf-8", "surrogateescape")


def as_text(stored: bytes) -> str:
    """Decode UTF-8; invalid bytes are no error here, since the checksum finds them."""
    return stored.decode("utf-8", "surrogateescape")
