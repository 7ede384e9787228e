"""Rice codes for rows of small integers, decoded for a whole batch at once.

A number is split at bit `k` of its row: the low bits are stored as they are, the rest in unary.
This is within a few percent of the entropy of quantised features, needs no tables and, unlike
Huffman or arithmetic codes, no loop over symbols: unary codes end at the ones of a bit string,
which NumPy finds in one call.

    block of [row, column]: k u8 of each row | low bits, plane by plane | unary codes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from anytimecl.errors import StoreError

_MOST = 15  # low bits; more would only help rows with a mean above 60,000
_TOGETHER = 8  # blocks whose unary codes are read at once, so that arrays fit the cache


def pack_rows(rows: NDArray[np.int64]) -> bytes:
    """Encode rows [row, column] of non-negative integers.

    >>> block = pack_rows(np.array([[0, 1, 2, 300], [7, 7, 7, 7]]))
    >>> unpack_rows([block], [2], 4).tolist()
    [[0, 1, 2, 300], [7, 7, 7, 7]]
    """
    count, columns = rows.shape
    bits = _low_bits(rows)
    planes = [rows[row] >> bit & 1 for row in range(count) for bit in range(bits[row])]
    low = np.packbits(np.array(planes, np.uint8).reshape(-1, columns), axis=1)
    ends = np.cumsum((rows >> bits[:, None]).ravel() + 1)
    unary = np.zeros(int(ends[-1]) if ends.size else 0, np.uint8)
    unary[ends - 1] = 1
    return bits.astype(np.uint8).tobytes() + low.tobytes() + np.packbits(unary).tobytes()


def unpack_rows(blocks: Sequence[bytes], counts: Iterable[int], columns: int) -> NDArray[np.int16]:
    """Decode the rows of several blocks, concatenated: [row, column]."""
    counts = [int(count) for count in counts]
    per_plane = (columns + 7) // 8
    bits, low, unary = [], [], []
    for block, count in zip(blocks, counts, strict=True):
        its_bits = block[:count]
        at = count + per_plane * sum(its_bits)
        bits.append(its_bits)
        low.append(block[count:at])
        unary.append(block[at:])
    numbers = np.empty(sum(counts) * columns, np.int16)
    top = 0
    for start in range(0, len(unary), _TOGETHER):
        sizes = [columns * count for count in counts[start : start + _TOGETHER]]
        _read_unary(unary[start : start + _TOGETHER], sizes, numbers[top : top + sum(sizes)])
        top += sum(sizes)
    rows = numbers.reshape(-1, columns)
    low_bits = np.frombuffer(b"".join(low), np.uint8).reshape(-1, per_plane)
    _add_low_bits(rows, np.frombuffer(b"".join(bits), np.uint8), low_bits)
    return rows


def pack_signed(rows: NDArray[np.int64]) -> bytes:
    """`pack_rows` for signed integers: 0, -1, 1, -2, ... as 0, 1, 2, 3, ..."""
    return pack_rows(_unsigned(rows))


def unpack_signed(
    blocks: Sequence[bytes], counts: Iterable[int], columns: int
) -> NDArray[np.int16]:
    """The inverse of `pack_signed`."""
    return _signed(unpack_rows(blocks, counts, columns))


def pack_sorted(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], bytes]:
    """Encode rows whose order of columns is irrelevant; returns a shift of each row, and bytes.

    Columns are sorted by the first row, which is stored as differences.
    """
    if not len(rows):
        return np.zeros(0, np.int64), pack_rows(rows)
    rows = rows[:, np.argsort(rows[0], kind="stable")]
    shifts = np.median(rows, axis=1).astype(np.int64)
    shifts[0] = rows[0, 0]
    numbers = _unsigned(rows - shifts[:, None])
    numbers[0] = np.diff(rows[0], prepend=rows[0, 0])
    return shifts, pack_rows(numbers)


def unpack_sorted(
    blocks: Sequence[bytes], counts: NDArray[np.int64], columns: int, shifts: NDArray[np.int16]
) -> NDArray[np.int16]:
    """The inverse of `pack_sorted`, for the rows of a batch."""
    numbers = unpack_rows(blocks, counts, columns)
    rows = _signed(numbers)
    firsts = (np.cumsum(counts) - counts)[counts > 0]
    rows[firsts] = np.cumsum(numbers[firsts], axis=1)
    rows += shifts[:, None]
    return rows


def _unsigned(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    return numbers << 1 ^ numbers >> 63


def _signed(numbers: NDArray[np.int16]) -> NDArray[np.int16]:
    return numbers >> 1 ^ -(numbers & 1)


def _low_bits(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each row, the split with the shortest code."""
    columns = rows.shape[1]
    # With a bit more than the largest number has, rows only get longer.
    most = min(_MOST, int(rows.max(initial=0)).bit_length())
    lengths = [(rows >> bit).sum(1) + columns * bit for bit in range(most + 1)]
    return np.asarray(np.argmin(lengths, axis=0))


def expected_bits(mean: NDArray[np.float64]) -> NDArray[np.float64]:
    """Expected bits of a number with a geometric distribution of this mean.

    >>> expected_bits(np.array([0.0, 1.0, 8.0])).round(2).tolist()
    [1.0, 2.0, 4.64]
    """
    bit = np.arange(_MOST + 1.0)
    ratio = mean / (1 + mean)  # of one number's chance to that of the one below it
    beyond = ratio[..., None] ** (2**bit)
    return np.asarray((bit + 1 + beyond / (1 - beyond)).min(-1))


def _read_unary(strings: Sequence[bytes], sizes: Sequence[int], numbers: NDArray[np.int16]) -> None:
    """Decode the unary codes of several blocks of `sizes` into `numbers`."""
    string = np.frombuffer(b"".join(strings), np.uint8)
    ends = np.unpackbits(string).view(bool).nonzero()[0]
    lengths, wanted = 8 * np.array([len(each) for each in strings]), np.array(sizes)
    after = np.cumsum(wanted)
    bounds, filled = np.cumsum(lengths), wanted > 0
    first, last = (after - wanted)[filled], after[filled] - 1
    begin = (bounds - lengths)[filled]
    whole = len(ends) == after[-1]
    if not whole or (ends[first] < begin).any() or (ends[last] >= bounds[filled]).any():
        raise StoreError("The record is damaged: it does not hold as many numbers as it should.")
    if len(ends):
        np.subtract(ends[1:], ends[:-1] + 1, out=numbers[1:], casting="unsafe")
        numbers[first] = (ends[first] - begin).astype(np.int16)


def _add_low_bits(
    rows: NDArray[np.int16], bits: NDArray[np.uint8], planes: NDArray[np.uint8]
) -> None:
    """Shift in each row's low bits from the concatenated planes of all rows."""
    rows <<= bits[:, None]
    firsts = np.cumsum(bits, dtype=np.int64) - bits
    for bit in range(int(bits.max(initial=0))):
        having = np.flatnonzero(bits > bit)
        plane = np.unpackbits(planes[firsts[having] + bit], axis=1)[:, : rows.shape[1]]
        rows[having] |= plane.astype(np.int16) << bit
