"""The capacity model: whatever runs out first decides how many machines there are."""

from __future__ import annotations

import pytest
from benchmarks.scale import Needed, Node, needed, predicted_shape

NODE = Node(cores=4, ram=8e9, disk=1e12)


@pytest.mark.parametrize(
    ("disk", "awake", "cpus", "found"),
    [
        (1e9, 1, 1.0, Needed(1, 1, 1)),
        (2.5e12, 1, 1.0, Needed(3, 1, 1)),
        (1e9, 30, 0.1, Needed(1, 4, 1)),  # 8 leaves of a GB in each
        (1e9, 30, 1.0, Needed(1, 4, 8)),
    ],
)
def test_nodes_for_disk_ram_and_cores(disk: float, awake: int, cpus: float, found: Needed) -> None:
    assert needed(disk, awake, 1e9, cpus, NODE) == found


def test_leaves_and_copies_of_a_stream() -> None:
    shape = predicted_shape(1000, 100, 0.625)
    assert (shape["leaves"], shape["copies"], shape["depth"]) == (16, 1.5, 4)
