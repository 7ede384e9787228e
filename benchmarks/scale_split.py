"""What lessons of other leaves hear of a leaf that splits, or stops.

    python -m benchmarks.scale split [--examples 10000] [--seconds 20] [--folder TREE]
    python -m benchmarks.scale stopped [--leaves 4] [--seconds 10]

`split`: a tree of two leaves runs on Ray. One leaf is so full that the next example splits it; the
other one learns examples through the router, one after another, before and during the split. The
delay is the longest time of an example during the split minus the longest before. Filling the leaf
takes minutes; with a folder it is filled once, and copied for each run.

`stopped` learns and predicts with a tree on Ray through its router while one leaf's process is
stopped.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
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
from anytimecl.scale.record_host import EncodedImage, Looked, RecordMaker
from anytimecl.scale.routes import Routes
from anytimecl.scale.tree import FILE, TreeClassifier
from anytimecl.settings import LearnerConfig, Settings

QUICK = Settings(learner=LearnerConfig(batch=1))  # fills the leaf in minutes
LABELS = [f"thing {number}" for number in range(20)]


def split(given: argparse.Namespace) -> None:
    """Print a table: times of learning in the other leaf before and during a split."""
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
    """Make a tree of two leaves, one of them full, unless the folder has it; returns examples."""
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
        learn(next(others))  # warm-up
    before = _lessons(lambda: learn(next(others)), given.seconds, lambda: False)
    learn(last)  # exceeds the capacity
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
    """Time of each example, until the time has passed or `over` holds."""
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


# ------------------------------------------------------------------------------------- stopped


def stopped(given: argparse.Namespace) -> None:
    """Learning in the other leaves and predictions, before and while one leaf is stopped."""
    from tests.scale.raylets import processes

    torch.set_num_threads(1)
    model = backbones.load("embedded")
    tokens = pictures_of(model, 480)
    labels = [f"thing {number}" for number in range(20)]
    with tempfile.TemporaryDirectory() as name, ray_here(16) as ray:
        with TreeClassifier.open(Path(name), model=model) as young:
            maker = RecordMaker(model, young.settings)
            images = [maker.located(young.codec.encode(one)) for one in tokens]
            for number, one in enumerate(images[:60]):
                young.learn_record(one.record, labels[number % 20])
            while len(young.routes.leaves()) < given.leaves:
                sizes = dict(young._sizes)
                young._split(max(sizes, key=lambda leaf: sizes[leaf]))
            routes = young.routes
        tree = router.up(name, cpus=0.5)
        of = [routes.leaf_of(torch.tensor(one.vector)) for one in images]
        looked = [
            Looked(tokens[n : n + 1].numpy(), images[n].vector[None]) for n in range(len(images))
        ]
        counts: dict[str, int] = {}
        halt, numbers = threading.Event(), iter(range(10**9))

        def teach(leaf: int) -> None:
            own = [n for n, its in enumerate(of) if its == leaf]
            while not halt.is_set():
                n = next(numbers)
                told = images[own[n % len(own)]], labels[n % 20], None, f"{leaf} {n}"
                try:
                    tree._call("learn", "learn_all", [told])
                except ConnectionError:  # the leaf is stuck
                    time.sleep(0.1)
                    continue
                counts[f"lessons {leaf}"] = counts.get(f"lessons {leaf}", 0) + 1

        def ask(_: int) -> None:
            while not halt.is_set():
                n = next(numbers) % len(looked)
                tree._call("ask", "predict", looked[n], labels, 0.5)
                counts["predictions"] = counts.get("predictions", 0) + 1

        threads = [
            threading.Thread(target=work, args=(leaf,), daemon=True)
            for leaf in routes.leaves()
            for work in (teach, teach, ask)
        ]
        for thread in threads:
            thread.start()
        time.sleep(5)
        before = _counted(counts, given.seconds)
        dying = processes(ray, "ray::LeafHost")[0]
        os.kill(dying, signal.SIGSTOP)
        time.sleep(0.5)
        at_once = _counted(counts, given.seconds)
        time.sleep(max(0.0, 35 - given.seconds))  # until the leaf counts as stuck
        later = _counted(counts, given.seconds)
        os.kill(dying, signal.SIGCONT)
        halt.set()
        for thread in threads:
            thread.join()
        own = min(later, key=lambda kind: later[kind] / max(before[kind], 1e-9))
        print(f"{given.leaves} leaves, of which one is stopped ({own}); per second")
        print(
            "| | before | as soon as it is stopped | ratio | later | ratio |\n" + "|---" * 6 + "|"
        )
        others = [kind for kind in before if kind not in (own, "predictions")]
        for kind, parts in (("lessons of the others", others), ("predictions", ["predictions"])):
            rates = [sum(each[part] for part in parts) for each in (before, at_once, later)]
            print(
                f"| {kind} | {rates[0]:.1f} | {rates[1]:.1f} | {rates[1] / rates[0]:.2f} "
                f"| {rates[2]:.1f} | {rates[2] / rates[0]:.2f} |"
            )
        tree.down()


def _counted(counts: dict[str, int], seconds: float) -> dict[str, float]:
    began, first = time.perf_counter(), dict(counts)
    time.sleep(seconds)
    over = time.perf_counter() - began
    return {kind: (count - first.get(kind, 0)) / over for kind, count in dict(counts).items()}
