"""Records laid end to end: nothing overlaps, nothing is lost, what is free is blank."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytimecl.memory import open_memory
from anytimecl.memory.database import FILE, connect
from anytimecl.memory.schema import migrate
from anytimecl.memory.stream import EXTENT, Stream

SIZES = st.one_of(st.integers(1, 300), st.integers(1, 3 * EXTENT), st.sampled_from([EXTENT, 4400]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SIZES, st.integers(0, 5)), max_size=40), st.randoms())
def test_ranges_never_mix(steps: list[tuple[int, int]], rng: random.Random) -> None:
    db = connect(None)
    migrate(db)
    stream = Stream(db)
    stream.load()
    stored: dict[int, bytes] = {}
    for number, (size, frees) in enumerate(steps):
        data = bytes([number % 255 + 1]) * size
        start = stream.put(data)
        assert start not in stored
        stored[start] = data
        for _ in range(min(frees, len(stored)) if frees > 3 else 0):
            gone = rng.choice(sorted(stored))
            stream.free(gone, len(stored.pop(gone)))
    for start, data in stored.items():
        assert stream.get(start, len(data)) == data
    holes = dict(db.execute("SELECT start, size FROM hole").fetchall())
    taken = {start: len(data) for start, data in stored.items()}
    end = 0
    for start, size in sorted((taken | holes).items()):
        assert start == end, "the stream has no gap and no overlap"
        end += size
    assert end == stream.end
    assert len(holes) + len(taken) == len(taken | holes)
    for start, size in holes.items():
        assert start + size in taken, "holes side by side are one"
        assert stream.get(start, size) == bytes(size)
    left = stream.extents * EXTENT - end
    assert stream.get(end, left) == bytes(left)
    db.close()


@pytest.mark.parametrize("size", [2000, 2500, 3000, 4400, 4500, 6400, 9000])
def test_disk_is_little_more_than_payload(tmp_path: Path, size: int) -> None:
    rng = random.Random(0)
    sizes = [rng.randint(size * 9 // 10, size * 11 // 10) for _ in range(4000)]
    with open_memory(tmp_path, create={}) as memory:
        memory.append_many((f"label {n % 100}", bytes(size)) for n, size in enumerate(sizes))
    assert (tmp_path / FILE).stat().st_size <= 1.05 * sum(sizes)


def test_an_extent_fills_its_pages(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}) as memory:
        before = memory.db.execute("PRAGMA page_count").fetchone()[0]
        memory.append("cat", bytes(800 * EXTENT))
        added = memory.db.execute("PRAGMA page_count").fetchone()[0] - before
    assert added * 4096 <= 1.01 * 800 * EXTENT
