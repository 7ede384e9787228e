"""Leaves, routers, encoders and whole nodes of a real Ray die under load: nothing is lost."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests import helpers
from tests.backbone import tiny
from tests.scale.raylets import processes
from tests.scale.test_on_ray import cluster  # noqa: F401 (a fixture)

from anytimecl.memory import StoreWarning
from anytimecl.scale import router
from anytimecl.scale.tree import TreeClassifier

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
ROUNDS, KILLS = 20, 10  # 200 in all
TEACHERS = 4
KINDS = ["ray::LeafHost", "ray::LeafHost", "ray::RouterHost", "ray::RecordHost", "node"]


class Teachers:
    """Each teaches one lesson after another, the same one until it is acknowledged."""

    def __init__(self, tree: Any) -> None:
        self._tree, self._numbers = tree, itertools.count()
        self.acknowledged: set[int] = set()
        self._halt = threading.Event()
        self._threads = [threading.Thread(target=self._teach) for _ in range(TEACHERS)]
        for thread in self._threads:
            thread.start()

    def _teach(self) -> None:
        while not self._halt.is_set():
            number = next(self._numbers)
            image, label = helpers.lesson(number)
            while True:
                try:
                    self._tree.learn_one(image, label, key=f"lesson {number}")
                except Exception as error:  # whatever it was, nobody has acknowledged it
                    told = f"{type(error).__name__}: {error}".replace("\n", " ")
                    sys.stderr.write(f"lesson {number}: {told:.200}\n")
                    if self._halt.is_set():
                        return
                    time.sleep(0.5)
                else:
                    self.acknowledged.add(number)
                    break

    def end(self) -> None:
        self._halt.set()
        for thread in self._threads:
            thread.join()


def kill(kind: str, cluster: Any, ray: Any, rng: random.Random) -> bool:  # noqa: F811
    """Whether there was one to kill."""
    if kind == "node":
        cluster.remove_node(rng.choice(sorted(cluster.worker_nodes, key=str)), allow_graceful=False)
        cluster.add_node(num_cpus=8, object_store_memory=80_000_000)
        return True
    found = processes(ray, kind, cluster.worker_nodes)
    if found:
        with suppress(ProcessLookupError):
            os.kill(rng.choice(found), signal.SIGKILL)
            return True
    return False


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_kills_of_every_kind_lose_nothing(
    tmp_path: Path,
    cluster: Any,  # noqa: F811
    seed: int,
) -> None:
    import ray

    model, rng = str(tiny.clip(tmp_path / "model")), random.Random(seed)
    tree = router.up(tmp_path / "tree", model=model, capacity=40, cpus=0.5, encoders=1)
    teachers, killed = Teachers(tree), Counter[str]()
    while killed.total() < KILLS:
        before, end = len(teachers.acknowledged), time.monotonic() + 120
        while len(teachers.acknowledged) < before + 8:  # it goes on after every kill
            assert time.monotonic() < end, "nothing was acknowledged for two minutes"
            time.sleep(0.05)
        time.sleep(rng.random())
        kind = rng.choice(KINDS)
        killed[kind] += kill(kind, cluster, ray, rng)
    teachers.end()
    tree.down()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)  # of what was put aside
        with TreeClassifier.open(tmp_path / "tree", model=model) as home:
            found: list[str] = []
            for leaf in home.routes.leaves():
                found += home.leaves.call(leaf, "keys_after", 0)[0]
            assert len(found) == len(set(found)) == len(home), "one was taught twice"
            expected = {f"lesson {number}" for number in teachers.acknowledged}
            assert expected <= set(found), "one was lost"
            leaves = len(home.routes.leaves())
    kinds = ", ".join(f"{count} {kind.removeprefix('ray::')}" for kind, count in killed.items())
    told = f"{len(expected)} lessons in {leaves} leaves, 0 lost, 0 twice"
    sys.stderr.write(f"{KILLS} kills on Ray ({kinds}): {told}\n")
