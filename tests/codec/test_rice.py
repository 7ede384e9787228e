"""Rice codes beside a slow, obvious coder of the same layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from anytimecl.codec._rice import expected_bits, pack_rows, unpack_rows
from anytimecl.errors import StoreError


def slow_pack(rows: NDArray[np.int64]) -> bytes:
    """Bit by bit, trying every split."""
    splits = [
        min(range(16), key=lambda k: sum(int(n) >> k for n in row) + k * len(row)) for row in rows
    ]

    def to_bytes(bits: str) -> bytes:
        bits += "0" * (-len(bits) % 8)
        return bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))

    planes = b"".join(
        to_bytes("".join(str(int(n) >> bit & 1) for n in row))
        for row, split in zip(rows, splits, strict=True)
        for bit in range(split)
    )
    unary = "".join(
        "0" * (int(n) >> k) + "1" for row, k in zip(rows, splits, strict=True) for n in row
    )
    return bytes(splits) + planes + to_bytes(unary)


def blocks(columns: int) -> st.SearchStrategy[NDArray[np.int64]]:
    sizes = st.sampled_from([1, 5, 60, 1000, 32767])
    return st.tuples(st.integers(0, 4), sizes).flatmap(
        lambda shape: arrays(np.int64, (shape[0], columns), elements=st.integers(0, shape[1]))
    )


@given(st.integers(1, 40).flatmap(lambda columns: st.lists(blocks(columns), max_size=4)))
def test_comes_back_and_is_what_the_slow_coder_writes(made: list[NDArray[np.int64]]) -> None:
    packed = [pack_rows(rows) for rows in made]
    assert packed == [slow_pack(rows) for rows in made]
    columns = made[0].shape[1] if made else 3
    back = unpack_rows(packed, [len(rows) for rows in made], columns)
    wanted = np.concatenate(made) if made else np.zeros((0, 3))
    np.testing.assert_array_equal(back, wanted)


def test_the_expected_length_is_that_of_geometric_numbers() -> None:
    generator = np.random.default_rng(0)
    for mean in (0.05, 0.4, 1.0, 3.0, 20.0, 500.0):
        numbers = generator.geometric(1 / (1 + mean), size=(1, 100_000)) - 1
        assert 8 * len(pack_rows(numbers)) / 100_000 == pytest.approx(
            float(expected_bits(np.array(mean))), rel=0.02
        )


@given(blocks(9), st.data())
def test_a_block_that_ends_early_is_found(rows: NDArray[np.int64], data: st.DataObject) -> None:
    """Only of use to one who writes records with valid checksums and wrong contents."""
    block = pack_rows(rows)
    if not len(rows):
        return
    kept = data.draw(st.integers(0, len(block) - 1))
    with pytest.raises(StoreError, match="damaged"):
        unpack_rows([block[:kept]], [len(rows)], 9)
