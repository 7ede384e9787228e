"""The demo's images: as many as asked for, the same for the same seed, and none in both sets."""

from __future__ import annotations

from collections import Counter

import numpy as np
from PIL import Image

from anytimecl.demo import data


def pixels(examples: list[data.DemoExample]) -> list[bytes]:
    return [example.image.tobytes() for example in examples]


def test_lights_come_from_the_wheels_own_sets_and_yellow_is_rare() -> None:
    task = data.traffic_lights(4, 3, seed=0)
    assert Counter(e.label for e in task.train) == {
        "red light": 4, "yellow light": 3, "green light": 4,
    }  # fmt: skip
    assert Counter(e.label for e in task.test) == {
        "red light": 3, "yellow light": 1, "green light": 3,
    }  # fmt: skip
    assert not set(pixels(task.train)) & set(pixels(task.test))
    for example in task.train:  # the label is that of the folder
        red, green, _ = np.asarray(example.image).mean((0, 1))
        assert ("red" in example.label) == (red > 150 > green)


def test_digits_are_ink_on_paper_and_as_many_of_each() -> None:
    task = data.digits(2, 3, seed=0)
    assert Counter(e.label for e in task.train) == dict.fromkeys(data.DIGITS, 2)
    assert Counter(e.label for e in task.test) == dict.fromkeys(data.DIGITS, 3)
    assert not set(pixels(task.train)) & set(pixels(task.test))
    corner = np.mean([np.asarray(e.image)[:8, :8] for e in task.train])
    assert corner > 200  # paper


def test_a_digit_has_its_own_label() -> None:
    from sklearn.datasets import load_digits

    scans = load_digits()
    truth = {
        data.ink(scan).tobytes(): data.DIGITS[number]
        for scan, number in zip(scans.images, scans.target, strict=True)
    }
    for example in data.digits(3, 3, seed=1).train:
        assert truth[example.image.tobytes()] == example.label


def test_the_seed_chooses() -> None:
    first, again, other = (data.digits(2, 2, seed) for seed in (0, 0, 1))
    assert pixels(first.train) == pixels(again.train)
    assert pixels(first.train) != pixels(other.train)


def test_the_untaught_question_shares_no_label_with_the_tasks() -> None:
    lights, digits = data.traffic_lights(1, 1, 0), data.digits(1, 1, 0)
    kinds = data.kinds(lights, digits)
    assert not kinds.train
    assert not set(kinds.labels) & {*lights.labels, *digits.labels}
    assert {example.label for example in kinds.test} == set(kinds.labels)
    assert all(isinstance(example.image, Image.Image) for example in kinds.test)
