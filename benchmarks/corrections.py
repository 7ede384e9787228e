"""Taught once, asked again at once: the image itself, and other pictures of it.

    python -m benchmarks.corrections DATA [--labels 50] [--before 2] [--images 100]
                                     [--model embedded]

This many labels of pets and flowers102 are learned with a few examples each, by `AnytimeClassifier`
in RAM. Then test images, misclassified ones first, are predicted, learned and predicted again: the
same file, cropped to nine tenths, mirrored, saved as a JPEG of quality 50. Prints the accuracy
before and after.
"""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from anytimecl import AnytimeClassifier
from anytimecl.backbone.prior import VIEWS
from anytimecl.images import ImageRef, iter_images
from anytimecl_lab._progress import tell

KINDS = ("the same", "cropped to 90 %", "mirrored", "JPEG, quality 50")


def chosen(data: Path, count: int) -> dict[str, dict[str, list[ImageRef]]]:
    """Split -> label -> images, of `count` labels of both data sets."""
    found: dict[str, dict[str, list[ImageRef]]] = {"train": {}, "test": {}}
    for ref in chain(*(iter_images(data / f"{name}.zip") for name in ("pets", "flowers102"))):
        found[str(ref.split)].setdefault(str(ref.label), []).append(ref)
    both = [label for label in found["train"] if label in found["test"]][:count]
    return {split: {y: images[y] for y in both} for split, images in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--labels", type=int, default=50)
    parser.add_argument("--before", type=int, default=2, help="examples of each label, at first")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--model", default="embedded")
    given = parser.parse_args()
    images = chosen(given.data, given.labels)
    classifier = AnytimeClassifier.open(model=given.model)
    random = np.random.default_rng(0)
    first = [(ref, y) for y, refs in images["train"].items() for ref in refs[: given.before]]
    for number, at in enumerate(random.permutation(len(first)), 1):
        classifier.learn_one(first[at][0].load(), first[at][1])
        if number % 20 == 0:
            tell(f"{number} of {len(first)} taught")
    asked = [(ref, y) for y, refs in images["test"].items() for ref in refs]
    asked = [asked[at] for at in random.permutation(len(asked))[: 2 * given.images]]
    answers = [classifier.predict(ref.load()).label == y for ref, y in asked]
    order = sorted(range(len(asked)), key=lambda at: answers[at])[
        : given.images
    ]  # misclassified ones first
    before = sum(answers[at] for at in order)
    right: Counter[str] = Counter()
    for number, at in enumerate(order, 1):
        ref, label = asked[at]
        image = ref.load()
        classifier.learn_one(image, label)
        for kind, view in zip(KINDS, (lambda same: same, *VIEWS), strict=True):
            right[kind] += classifier.predict(view(image)).label == label
        if number % 20 == 0:
            tell(f"{number} of {len(order)} corrected")
    table = Table("asked again at once", f"right, of {len(order)}")
    table.add_row("before it was taught", str(before))
    for kind in KINDS:
        table.add_row(kind, str(right[kind]))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
