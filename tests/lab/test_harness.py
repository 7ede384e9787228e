"""Benchmarks that use the lab's data."""

from __future__ import annotations

from pathlib import Path

from tests.lab.conftest import TEST, TRAIN

from benchmarks import encoders


def test_encoders_learn_and_ask_what_the_lab_does(data: Path) -> None:
    train, learned, test, asked = encoders.parts("pets", data, False, None)
    assert (len(learned), len(asked)) == (3 * TRAIN, 3 * TEST)
    assert train.key != test.key
    train, learned, held, asked = encoders.parts("pets", data, True, None)
    assert train.key == held.key
    assert sorted([*learned, *asked]) == list(range(3 * TRAIN))
    assert len(asked) == 3  # one in five of each label
