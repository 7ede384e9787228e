"""Benchmarks that are the lab under their own names."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.conftest import TEST, TRAIN

from anytimecl_lab.digest import digest
from anytimecl_lab.run import read_lines
from benchmarks import data_incremental, encoders


def test_data_incremental_is_the_labs(
    data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    words = [str(data), str(out), "--tasks", "pets", "--seeds", "0", "--model", str(model)]
    data_incremental.main(words)
    (line,) = read_lines(out)
    assert line["digest"] == digest()
    told = capsys.readouterr().out
    final = line["results"][-1]["answers"]["task"]["pets"]
    assert f"{final['tuned']:.1f}" in told
    assert f"{line['reading']} - better" in told


def test_encoders_learn_and_ask_what_the_lab_does(data: Path) -> None:
    train, learned, test, asked = encoders.parts("pets", data, False, None)
    assert (len(learned), len(asked)) == (3 * TRAIN, 3 * TEST)
    assert train.key != test.key
    train, learned, held, asked = encoders.parts("pets", data, True, None)
    assert train.key == held.key
    assert sorted([*learned, *asked]) == list(range(3 * TRAIN))
    assert len(asked) == 3  # one in five of each label
