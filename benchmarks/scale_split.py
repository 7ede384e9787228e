"""A leaf of many examples splits while another leaf is taught: how long do its lessons take?

    python -m benchmarks.scale split [--examples 10000] [--seconds 20] [--folder TREE]

A tree of two leaves runs on Ray. One leaf holds so many examples that the next one splits it; the
other is taught through the router, one lesson after another, before and meanwhile. What a split
holds up is the longest lesson meanwhile less the longest before.
Filling the leaf takes minutes; with a folder it is filled once, and copied for each run.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from benchmarks.scale_serve import pictures_of, ray_here

from anytimecl import backbone as backbones
from anytimecl.backbone import Backbone
from anytimecl.scale import router
from anytimecl.scale.leaves import Here
from anytimecl.scale.record_host import EncodedImage, RecordMaker
from anytimecl.scale.routes import Routes
from anytimecl.scale.tree import FILE, TreeClassifier
from anytimecl.settings import LearnerConfig, Settings

QUICK = Settings(learner=LearnerConfig(batch=1))  # the leaf is filled in minutes
LABELS = [f"thing {number}" for number in range(20)]


def split(given: argparse.Namespace) -> None:
    """A table: lessons of the other leaf before a split, and while it goes on."""
    torch.set_num_threads(1)
    model = backbones.load("embedded")
    with tempfile.TemporaryDirectory() as temporary:
        name = Path(temporary) / "tree"
        images = _filled(given, model, given.folder or name)
        if given.folder is not None:
            shutil.copytree(given.folder, name)
        with ray_here(16):
            _measure(given, name, images)


def _filled(given: argparse.Namespace, model: Backbone, folder: Path) -> list[EncodedImage]:
    """A tree of two leaves, of which one is full, unless the folder has it; and its lessons."""
    began = time.perf_counter()
    leaves = partial(Here, durability="process")
    with TreeClassifier.open(folder, model=model, leaves=leaves, settings=QUICK) as young:
        maker = RecordMaker(model, young.settings)
        images = [maker.located(young.codec.encode(one)) for one in pictures_of(model, 240)]
        if len(young.routes.leaves()) == 1:
            for number, one in enumerate(images[:60]):
                young.learn_record(one.record, LABELS[number % 20])
            young._split(0)
        full = young.routes.leaves()[0]
        own = itertools.cycle(one for one in images if _leaf(young.routes, one) == full)
        while young._sizes[full] < given.examples:
            one, number = next(own), young._sizes[full]
            young.submit(one.record, LABELS[number % 20], vector=torch.tensor(one.vector))
    print(f"filled in {time.perf_counter() - began:.0f} s", flush=True)
    return images


def _leaf(routes: Routes, image: EncodedImage) -> int:
    return routes.leaf_of(torch.tensor(image.vector))


def _measure(given: argparse.Namespace, name: Path, images: list[EncodedImage]) -> None:
    routes, _ = Routes.load(name / FILE)
    full, other = routes.leaves()
    others = itertools.cycle(one for one in images if _leaf(routes, one) == other)
    last = next(one for one in images if _leaf(routes, one) == full)
    tree = router.up(str(name), cpus=0.5, capacity=given.examples)
    numbers = itertools.count()

    def learn(one: EncodedImage) -> float:
        number = next(numbers)
        began = time.perf_counter()
        tree._call("learn", "learn_all", [(one, LABELS[number % 20], None, f"more {number}")])
        return time.perf_counter() - began

    for _ in range(30):
        learn(next(others))  # warm
    before = _lessons(lambda: learn(next(others)), given.seconds, lambda: False)
    learn(last)  # one more than it may hold
    over = threading.Event()
    threading.Thread(target=_wait, args=(tree, full, over), daemon=True).start()
    began = time.perf_counter()
    meanwhile = _lessons(lambda: learn(next(others)), 600.0, over.is_set)
    took = time.perf_counter() - began
    assert over.is_set(), "the leaf has not split in ten minutes"
    print(f"{len(tree):,} examples; the split took {took:.0f} s; ms a lesson of another leaf:")
    print("| | lessons | median | 99 % | longest |\n" + "|---" * 5 + "|")
    for when, found in ((f"{given.seconds:.0f} s before", before), ("meanwhile", meanwhile)):
        median, late = (1000 * _quantile(found, part) for part in (0.5, 0.99))
        longest = 1000 * max(found)
        print(f"| {when} | {len(found):,} | {median:.0f} | {late:.0f} | {longest:.0f} |")
    held = 1000 * (max(meanwhile) - max(before))
    print(f"held up by at most {held:.0f} ms (asked: 100)")
    tree.down()


def _lessons(learn: Callable[[], float], seconds: float, over: Callable[[], bool]) -> list[float]:
    """How long each lesson took, until so many seconds have passed, or it is over."""
    end, found = time.perf_counter() + seconds, []
    while not found or (time.perf_counter() < end and not over()):
        found.append(learn())
    return found


def _quantile(found: list[float], part: float) -> float:
    return sorted(found)[min(len(found) - 1, int(part * len(found)))]


def _wait(tree: router.ClusterClassifier, leaf: int, over: threading.Event) -> None:
    while leaf in (each.leaf for each in tree.health()):
        time.sleep(0.5)
    over.set()
