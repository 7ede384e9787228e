"""`anytimecl demo`, on a tiny model in the place of the embedded one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.demo.conftest import PLAN
from typer.testing import CliRunner

import anytimecl.demo
from anytimecl import backbone
from anytimecl.cli import app
from anytimecl.commands.demo import fresh_memory
from anytimecl.errors import StoreError


def test_it_writes_the_report_the_plot_and_the_numbers_twice(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = backbone.load
    monkeypatch.setattr(backbone, "load", lambda name, **_: load(model))
    monkeypatch.setattr(anytimecl.demo, "QUICK", PLAN)
    out = tmp_path / "out"
    for _ in range(2):  # the second run clears what the first left
        result = CliRunner().invoke(app, ["demo", "--quick", "--out", str(out)])
        assert result.exit_code == 0, result.output
        assert "One correction" in result.output
    assert {path.name for path in out.iterdir()} == {
        "report.html", "accuracy.png", "results.json", "memory",
    }  # fmt: skip
    numbers = json.loads((out / "results.json").read_text())
    assert numbers["looks"][-1]["learned"] == numbers["reopened"]["examples"]


def test_a_memory_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    precious = tmp_path / "memory" / "precious"
    precious.touch()
    with pytest.raises(StoreError, match="--out"):
        fresh_memory(tmp_path)
    assert precious.exists()


def test_a_demo_that_was_stopped_can_be_started_again(tmp_path: Path) -> None:
    for _ in range(2):
        memory = fresh_memory(tmp_path)
        assert not memory.exists()
        memory.mkdir()


def test_results_that_no_demo_wrote_are_left_alone(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    results.write_text('{"accuracy": 0.9}')
    (tmp_path / "memory").mkdir()
    with pytest.raises(StoreError, match=r"results\.json that no demo made"):
        fresh_memory(tmp_path)
    (tmp_path / "memory").rmdir()
    with pytest.raises(StoreError, match=r"results\.json that no demo made"):
        fresh_memory(tmp_path)
    assert results.read_text() == '{"accuracy": 0.9}'
