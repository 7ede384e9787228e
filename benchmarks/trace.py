"""How far one image travels: the files that `learn_one` and `predict` go through, call by call.

    python -m benchmarks.trace            # how many changes of file, and in how many files
    python -m benchmarks.trace --walk     # each stop of the way

A change is a call into another file of the package than the call before it. The memory holds 40
examples of four labels under the default settings; the question was asked once before.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import anytimecl
from anytimecl import AnytimeClassifier

HOME = str(Path(anytimecl.__file__).parent) + "/"
LABELS = ("cat", "dog", "tabby cat", "great white shark")


def calls(work: Callable[[], object]) -> list[tuple[str, str]]:
    """Every call inside the package, in order: its file and function."""
    found: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(HOME):
            found.append((name.removeprefix(HOME), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def stops(made: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first call of each consecutive run in a file.

    >>> stops([("a.py", "f"), ("a.py", "g"), ("b.py", "h"), ("a.py", "k")])
    [('a.py', 'f'), ('b.py', 'h'), ('a.py', 'k')]
    """
    return [next(group) for _, group in groupby(made, key=lambda call: call[0])]


def main(arguments: list[str] | None = None) -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walk", action="store_true", help="print each stop")
    parser.add_argument("--model", default="embedded")
    given = parser.parse_args(arguments)
    random = np.random.default_rng(0)

    def picture() -> np.ndarray[Any, Any]:
        return random.integers(0, 256, (36, 34, 3), dtype=np.uint8)

    with (
        tempfile.TemporaryDirectory() as folder,
        AnytimeClassifier.open(Path(folder) / "memory", model=given.model) as classifier,
    ):
        for number in range(40):
            classifier.learn_one(picture(), LABELS[number % len(LABELS)])
        image, asked = picture(), picture()
        classifier.predict(asked, LABELS)
        for title, work in (
            ("learn_one", lambda: classifier.learn_one(image, "cat")),
            ("predict", lambda: classifier.predict(asked, LABELS)),
        ):
            way = stops(calls(work))
            files = {file for file, _ in way}
            print(f"{title}: {len(way) - 1} changes of file, {len(files)} files")
            for file, name in way if given.walk else ():
                print(f"    {file:32} {name}")


if __name__ == "__main__":
    main()
