"""The GPU's benchmark does what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu import Bench
from benchmarks.roofline import Size

from anytimecl.memory import Store, open_memory


def test_learn_one_is_timed_with_a_memory_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[Path] = []
    stores: list[Store] = []

    def opened(folder: Path, **options: Any) -> Store:
        folders.append(folder)
        stores.append(open_memory(folder, **options))
        return stores[-1]

    monkeypatch.setattr("benchmarks.gpu.open_memory", opened)
    monkeypatch.setattr("benchmarks.gpu.LABELS", 3)
    counted: list[int] = []

    def few(run: Any, device: str) -> float:
        run()
        counted.append(len(stores[0]))
        return 1.0

    monkeypatch.setattr("benchmarks.gpu.milliseconds", few)
    Bench(Size(10, 32, 2, 16), "cpu", 8).learn_one()
    assert counted == [4]  # one of each label, and the one that was timed
    assert len(folders) == 1
    assert not folders[0].exists()  # it is cleared away
