"""Limits on the number of chunks, segments or blocks of a file.

Pillow's readers take microseconds for each, and concatenate some one by one: a file of a few
megabytes of empty parts takes half a minute.
"""

from __future__ import annotations

import re

from anytimecl.images._errors import Refusal

MAX_PARTS = 2**15  # as many as the largest PNG allowed has when written eight kilobytes at a time
MAX_COMMENTS = 2**12  # blocks of comment in a GIF, each of which copies all before it

_MARKER = re.compile(rb"(\xff+)([^\0\xff])")
_LONE = frozenset(range(0xD0, 0xD9)) | {0x01}  # JPEG markers without a length


def check_png(data: bytes) -> None:
    """Chunks of a PNG, to its end."""
    position, parts = 8, 0
    while position + 8 <= len(data):
        parts += 1
        _check(parts, MAX_PARTS, "chunks")
        position += 12 + int.from_bytes(data[position : position + 4])


def check_jpeg(data: bytes) -> int:
    """Segments of a JPEG and the filling between them, up to its pixels.

    Returns the components in its first scan: the reader keeps all of it where some come later.
    """
    position, parts = 2, 0
    while found := _MARKER.search(data, position):
        parts += max(1, len(found[1]) - 1) + (found.start() - position)
        _check(parts, MAX_PARTS, "segments")
        marker, position = found[2][0], found.end()
        if marker in (0xDA, 0xD9):
            return data[position + 2] if len(data) > position + 2 else 0
        if marker not in _LONE:
            position += max(2, int.from_bytes(data[position : position + 2]))
    return 0


def check_gif(data: bytes) -> None:
    """Blocks of a GIF, up to its first picture."""
    position, parts, comments = 13, 0, 0
    if len(data) > 10 and data[10] & 0x80:
        position += 3 << (data[10] & 7) + 1
    while position < len(data) and data[position] not in b",;":
        kind = data[position : position + 2]
        if kind[:1] != b"!":  # a stray byte, which is passed over
            position, blocks = position + 1, 1
        else:
            position, blocks = _gif_blocks(data, position + 2)
        parts += blocks
        comments += blocks if kind == b"!\xfe" else 0
        _check(parts, MAX_PARTS, "blocks")
        _check(comments, MAX_COMMENTS, "blocks of comment")


def _gif_blocks(data: bytes, position: int) -> tuple[int, int]:
    """Where the blocks of an extension end, and how many there are; an empty one is the last."""
    blocks = 1
    while blocks <= MAX_PARTS and (size := data[position] if position < len(data) else 0):
        position += 1 + size
        blocks += 1
    return position + 1, blocks


def _check(found: int, most: int, what: str) -> None:
    if found > most:
        raise Refusal(f"it has more than {most} {what}; export it again")
