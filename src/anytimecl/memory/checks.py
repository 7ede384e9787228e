"""Text as bytes and back, and checksums of texts and files."""

from __future__ import annotations

import struct
import zlib

# SQLite stores 32 bits with a sign in four bytes, and without one in six.
UNSIGNED, SIGNED = struct.Struct("<I"), struct.Struct("<i")


def file_checksum(example: int, data: bytes) -> int:
    """Covers a file, and whose it is."""
    return _signed(zlib.crc32(data, zlib.crc32(struct.pack("<q", example))))


def _signed(crc: int) -> int:
    number: int = SIGNED.unpack(UNSIGNED.pack(crc))[0]
    return number


def text_checksum(*parts: str | int) -> int:
    """Covers the parts and their order."""
    return _signed(zlib.crc32(as_bytes("\0".join(map(str, parts)))))


def as_bytes(text: str) -> bytes:
    """UTF-8, and the other way round of `as_text` for what is not."""
    return text.encode("utf-8", "surrogateescape")


def as_text(stored: bytes) -> str:
    """Text from UTF-8; damaged text is not an error here, but for its checksum to find."""
    return stored.decode("utf-8", "surrogateescape")
