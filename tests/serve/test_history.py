"""The chart's file: bounded, harmless when damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from anytimecl.serve import history as module
from anytimecl.serve.history import FILE, History, Outcome


def outcome(number: int) -> Outcome:
    return Outcome(number, number % 2 == 0, number % 3 == 0, number % 5 == 0)


def test_comes_back_after_a_crash(tmp_path: Path) -> None:
    history = History(tmp_path)
    for number in range(1, 6):
        history.add(outcome(number))
    # The last line is cut short.
    with (tmp_path / FILE).open("a") as file:
        file.write("6,1")
    again = History(tmp_path)
    assert again.latest() == [outcome(number) for number in range(1, 6)]
    again.add(outcome(6))
    assert History(tmp_path).latest()[-1] == outcome(6)


def test_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 10)
    for _ in range(3):
        history = History(tmp_path)
        for number in range(8):
            history.add(outcome(number))
        assert len(history.latest()) <= 10
    History(tmp_path)
    assert len((tmp_path / FILE).read_text().splitlines()) == 10


def test_accuracy_is_over_the_last_window() -> None:
    history = History(None)
    assert history.accuracy() is None
    outcomes = [outcome(number) for number in range(120)]
    for one in outcomes:
        history.add(one)
    last = outcomes[-module.WINDOW :]
    expected = tuple(sum(one[place] for one in last) / len(last) for place in (1, 2, 3))
    assert history.accuracy() == pytest.approx(expected)


def test_rubbish_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"1,1,1,1\n\xff\xfe\nwords,1,1,1\n2,1\n3,0,1,0\n")
    history = History(tmp_path)
    assert [one.example for one in history.latest()] == [1, 3]


def test_a_folder_that_cannot_be_written_costs_only_the_file(tmp_path: Path) -> None:
    history = History(tmp_path / "missing")
    history.add(outcome(1))
    assert history.latest() == [outcome(1)]
