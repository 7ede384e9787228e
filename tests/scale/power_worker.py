"""A tree on a disk of its own, whose power is cut again and again.

    python -m tests.scale.power_worker learn FOLDER DURABILITY COUNT
    python -m tests.scale.power_worker check FOLDER

`learn` mounts FOLDER/disk.img, an ext4 of its own on a loop device, and teaches a tree there. The
image holds what the file system has sent to its disk, and nothing that only its cache has: so a
copy of it is what a power cut at that moment leaves. One is made after each lesson and at many of
the file operations of splits; its name says how many lessons were acknowledged by then. `check`
mounts each copy, opens the tree in it, and prints one JSON line: [acknowledged, lost, what was
said]. It needs a mount namespace of its own (`unshare -m`) and root.

What it does not cover: sectors written in part, a drive that says "written" too early, other file
systems, and copies made while the file system writes (here nothing else writes meanwhile).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from tests import helpers

from anytimecl.errors import AnytimeError
from anytimecl.scale.leaves import Here
from anytimecl.scale.tree import TreeClassifier

IMAGE, PLACE = "disk.img", "mounted"
EACH = 12  # file operations of a split between two power cuts


def mount(folder: Path, image: Path) -> Path:
    place = folder / PLACE
    place.mkdir(exist_ok=True)
    # By default everything goes to the disk after five seconds, which is luck and no promise.
    subprocess.run(["mount", "-o", "loop,commit=300", image, place], check=True)
    return place


def opened(place: Path, durability: str) -> TreeClassifier:
    return TreeClassifier.open(
        place / "tree",
        model=helpers.model(),
        settings=helpers.settings(),
        capacity=8,
        leaves=partial(Here, durability=durability),
    )


class Cuts:
    """Copies of the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.acknowledged, self.number, self.busy = folder, 0, 0, False

    def cut(self, why: str) -> None:
        self.number += 1
        name = f"{self.number:04d}-{self.acknowledged:04d}-{why}.img"
        subprocess.run(
            ["cp", "--sparse=always", self.folder / IMAGE, self.folder / name], check=True
        )

    def hook(self, event: str, given: tuple[Any, ...]) -> None:
        """At file operations of splits, which work in the folders of leaves and drafts."""
        if self.busy or not any(f"{PLACE}/tree" in str(one) for one in given[:2]):
            return
        self.busy = True  # copying is a file operation, too
        self.number += 1
        if self.number % EACH == 0:
            self.cut(event)
        self.busy = False


def learn(folder: Path, durability: str, count: int) -> None:
    place = mount(folder, folder / IMAGE)
    cuts = Cuts(folder)
    with opened(place, durability) as tree:
        sys.addaudithook(cuts.hook)
        for number in range(count):
            tree.learn_one(*helpers.lesson(number), key=f"lesson {number}")
            tree.settle()
            cuts.acknowledged = number + 1
            cuts.busy = True
            cuts.cut("lesson")
            cuts.busy = False
        cuts.busy = True


def check(folder: Path) -> None:
    for image in sorted(folder.glob("*-*.img")):
        acknowledged = int(image.name.split("-")[1])
        place = mount(folder, image)
        try:
            lost, said = lost_in(place, acknowledged)
        finally:
            subprocess.run(["umount", place], check=True)
        os.write(1, f"{json.dumps([acknowledged, lost, said])}\n".encode())
        image.unlink()


def lost_in(place: Path, acknowledged: int) -> tuple[int, str]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            with opened(place, "full") as tree:
                keys: list[str] = []
                for leaf in tree.routes.leaves():
                    keys += tree.leaves.call(leaf, "keys_after", 0)[0]
        except AnytimeError as error:
            return acknowledged, f"refused: {error}"
    assert len(keys) == len(set(keys)), "one was taught twice"
    lost = {f"lesson {number}" for number in range(acknowledged)} - set(keys)
    return len(lost), "; ".join(str(one.message) for one in heard)


if __name__ == "__main__":
    if sys.argv[1] == "learn":
        learn(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        check(Path(sys.argv[2]))
