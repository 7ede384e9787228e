"""`make bench`: each part gets the words that are for it, and no others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from benchmarks.run import PARTS, Part, main

Told = list[tuple[str, list[str]]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What each part was told, instead of its running."""
    heard: Told = []

    def part(name: str) -> Part:
        return Part(name, lambda words: heard.append((name, list(words))))

    monkeypatch.setattr("benchmarks.run.PARTS", {name: part(name) for name in PARTS})
    return heard


def test_all_parts_run_and_are_told_nothing(told: Told) -> None:
    main([])
    assert told == [(name, []) for name in ("encode", "step", "learn", "predict", "memory")]


def test_words_go_to_the_part_they_name(told: Told) -> None:
    main("--step.rounds 5 --only memory,step --memory.layouts --step.device cpu".split())
    assert told == [("memory", ["--layouts"]), ("step", ["--rounds", "5", "--device", "cpu"])]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--only steps", "there is no part steps"),
        ("--steps.rounds 5", "there is no part steps"),
        ("--only memory --step.rounds 5", "leaves out step"),
        ("--rounds 5", "unrecognized arguments: --rounds 5"),
    ],
)
def test_what_is_for_nobody_is_refused_before_anything_runs(
    told: Told, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words.split())
    assert said in capsys.readouterr().err
    assert told == []


@pytest.mark.parametrize(
    ("name", "option"),
    [("encode", "--images"), ("step", "--rounds"), ("learn", "--examples"),
     ("predict", "--stored"), ("memory", "--records")],
)  # fmt: skip
def test_parts_read_what_they_are_given_and_not_the_command_line(
    name: str, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words: Sequence[str] = ["--help"]
    monkeypatch.setattr("sys.argv", ["benchmarks.run", "--only", name])
    with pytest.raises(SystemExit) as ended:
        PARTS[name].main(words)
    assert ended.value.code == 0
    assert option in capsys.readouterr().out
