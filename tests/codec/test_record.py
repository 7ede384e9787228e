"""Records say what they are, and damage never passes for data."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anytimecl.codec._record import IDS, VERSION, pack, unpack
from anytimecl.errors import StoreError

PAYLOADS = st.binary(max_size=300)


@given(PAYLOADS, st.sampled_from(sorted(IDS)), st.integers(0, 65535), st.integers(0, 65535))
def test_comes_back(payload: bytes, codec: str, tokens: int, width: int) -> None:
    record = pack(codec, tokens, width, payload)
    assert record[0] == VERSION
    assert record[1] == IDS[codec]
    assert unpack([record, record], codec, tokens, width) == [payload, payload]


@given(PAYLOADS, st.data())
def test_any_flipped_bit_is_found(payload: bytes, data: st.DataObject) -> None:
    record = bytearray(pack("vq", 17, 32, payload))
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    with pytest.raises(StoreError, match="damaged"):
        unpack([bytes(record)], "vq", 17, 32)


@given(PAYLOADS, st.data())
def test_any_truncation_is_found(payload: bytes, data: st.DataObject) -> None:
    record = pack("vq", 17, 32, payload)
    kept = data.draw(st.integers(0, len(record) - 1))
    with pytest.raises(StoreError, match="damaged"):
        unpack([record[:kept]], "vq", 17, 32)


@given(PAYLOADS, st.binary(min_size=1, max_size=8))
def test_anything_appended_is_found(payload: bytes, more: bytes) -> None:
    with pytest.raises(StoreError, match="damaged"):
        unpack([pack("vq", 17, 32, payload) + more], "vq", 17, 32)


def test_one_damaged_record_among_whole_ones_is_found() -> None:
    record = pack("vq", 17, 32, b"payload")
    with pytest.raises(StoreError, match="checksum"):
        unpack([record, record[:-1] + b"x", record], "vq", 17, 32)


def test_a_record_of_another_version_is_not_called_damaged() -> None:
    body = bytes([VERSION + 1]) + pack("vq", 17, 32, b"payload")[1:-4]
    record = body + struct.pack("<I", zlib.crc32(body))
    with pytest.raises(StoreError, match=rf"version {VERSION + 1}.*reads version {VERSION}"):
        unpack([record], "vq", 17, 32)


def test_a_record_of_another_codec_is_named() -> None:
    with pytest.raises(StoreError, match="written by the codec vq, and is read as image"):
        unpack([pack("vq", 17, 32, b"")], "image", 17, 32)
    body = bytes([VERSION, 250]) + pack("vq", 17, 32, b"")[2:-4]
    with pytest.raises(StoreError, match="number 250"):
        unpack([body + struct.pack("<I", zlib.crc32(body))], "vq", 17, 32)


def test_a_record_of_another_model_is_named() -> None:
    with pytest.raises(StoreError, match=r"50 tokens of width 768.*197 of width 768"):
        unpack([pack("vq", 50, 768, b"")], "vq", 197, 768)


def test_numbers_of_codecs_are_for_ever() -> None:
    """Stored records name their codec by number."""
    assert IDS == {
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
