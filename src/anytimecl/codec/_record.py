"""The format of records: version, codec, shape, payload, checksum.

    version u8 | codec u8 | tokens u16 | width u16 | payload | crc32 u32     (little endian)

A custom codec has no number: its name, preceded by its length, starts the payload. The checksum
covers everything before it and is last in every version, so that a damaged record is distinguished
from a newer one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from anytimecl.errors import StoreError

VERSION = 1
_HEAD = struct.Struct("<BBHH")
_CRC = struct.Struct("<I")
OVERHEAD = _HEAD.size + _CRC.size

# A record's second byte. Numbers are never reused, since records outlive codecs.
IDS = {
    "image": 0,
    "tokens-fp32": 1,
    "tokens-fp16": 2,
    "vq": 3,
    "pca-dataset": 4,
    "pca-image": 5,
    "pca-image-cls": 6,
    "pca-image-cls-int8": 7,
    "attention-pca": 8,
}
_OUTSIDE = 255
_NAMES = {number: name for name, number in IDS.items()}


def pack(codec: str, tokens: int, width: int, payload: bytes) -> bytes:
    """One record.

    >>> record = pack("tokens-fp16", 197, 768, b"...")
    >>> unpack([record], "tokens-fp16", 197, 768)
    [b'...']
    """
    body = _head(codec, tokens, width) + payload
    return body + _CRC.pack(zlib.crc32(body))


def unpack(records: Sequence[bytes], codec: str, tokens: int, width: int) -> list[bytes]:
    """The payloads of records; StoreError if one is damaged, or of another codec or model."""
    expected = _head(codec, tokens, width)
    payloads = []
    for record in records:
        if len(record) < OVERHEAD:
            raise StoreError(
                f"The record is damaged: {len(record)} bytes are too few for any record."
            )
        body = record[:-4]
        if record[-4:] != _CRC.pack(zlib.crc32(body)):
            raise StoreError(
                f"The record of {len(record)} bytes is damaged: its checksum does not match."
            )
        if not body.startswith(expected):
            raise StoreError(_foreign(body, codec, tokens, width))
        payloads.append(body[len(expected) :])
    return payloads


def _head(codec: str, tokens: int, width: int) -> bytes:
    if codec in IDS:
        return _HEAD.pack(VERSION, IDS[codec], tokens, width)
    name = codec.encode()
    return _HEAD.pack(VERSION, _OUTSIDE, tokens, width) + struct.pack(
        f"<B{len(name)}s", len(name), name
    )


def _foreign(body: bytes, codec: str, tokens: int, width: int) -> str:
    """Message for an undamaged record of another version, codec or model."""
    version, number, its_tokens, its_width = _HEAD.unpack_from(body)
    if version != VERSION:
        return (
            f"The record has version {version}; this anytimecl reads version {VERSION}. "
            "Use the release that wrote it."
        )
    its_codec = _NAMES.get(number, f"number {number}")
    if number == _OUTSIDE:
        named = body[_HEAD.size :]
        its_codec = named[1 : 1 + int.from_bytes(named[:1])].decode("utf-8", "replace")
    if its_codec != codec:
        return f"The record was written by the codec {its_codec}, and is read as {codec}."
    return (
        f"The record holds {its_tokens} tokens of width {its_width}, but the model has {tokens} "
        f"of width {width}: it was stored with another model."
    )
