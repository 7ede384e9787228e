"""Leaves and routers are killed under load: no acknowledged lesson is lost, and none taught twice.

Processes are real and are killed by SIGKILL; Ray is `process_ray`. With Ray itself, and nodes that
die, `test_on_ray` does the same on a smaller scale.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import IO

import pytest
from tests import helpers

from anytimecl.errors import StoreError
from anytimecl.memory import StoreWarning
from anytimecl.scale.tree import TreeClassifier

ROOT = Path(__file__).parents[2]
FRESH = 50  # kills after which a new tree begins
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="lives are forks of one process")


def hears(lines: IO[str]) -> tuple[str, int]:
    line = lines.readline()
    assert line, "the process is gone"
    word, _, number = line.strip().partition(" ")
    return word, int(number or 0)


def live(process: subprocess.Popen[str], folder: Path, first: int, seed: int) -> list[int]:
    """One life of a router: what it acknowledged, and how often its leaves were killed."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([str(folder), first, seed]) + "\n")
    process.stdin.flush()
    word, router = hears(process.stdout)
    assert word == "router"
    rng = random.Random(seed)
    end = time.monotonic() + (rng.random() if rng.random() < 0.2 else 2 + 8 * rng.random())
    put, kills = [], 0
    word = ""
    while word != "dead":
        word, number = hears(process.stdout)
        put += [number] if word == "put" else []
        kills += word == "kill"
        if time.monotonic() > end and router:
            os.kill(router, signal.SIGKILL)
            router = 0
    assert number == -signal.SIGKILL, "it was killed, and did not stop by itself"
    return [kills + 1, *put]


def opened(folder: Path) -> TreeClassifier:
    """The tree, once the leaves of the last router have noticed that it is gone."""
    end = time.monotonic() + 30
    while True:
        try:
            return TreeClassifier.open(folder, model=helpers.model(), settings=helpers.settings())
        except StoreError as error:
            if "in use by process" not in str(error) or time.monotonic() > end:
                raise
        time.sleep(0.1)


def check(folder: Path, put: set[int]) -> int:
    """Every acknowledged lesson is there once; gives how many leaves there are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)  # of what was put aside
        with opened(folder) as tree:
            found: list[str] = []
            for leaf in tree.routes.leaves():
                found += tree.leaves.call(leaf, "keys_after", 0)[0]
            assert len(found) == len(set(found)) == len(tree), "one was taught twice"
            assert {f"lesson {number}" for number in put} <= set(found), "one was lost"
            return len(tree.routes.leaves())


def kill_often(folder: Path, kills: int, seed: int) -> tuple[int, int, int]:
    """Acknowledged lessons, routers killed, and leaves at the ends."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    folder.mkdir(exist_ok=True)
    acknowledged = routers = leaves = done = 0
    with (
        (folder / "errors.txt").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.scale.kill_worker"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert hears(process.stdout)[0] == "ready"
            while done < kills:
                tree, put, until = folder / f"{done}", set[int](), min(done + FRESH, kills)
                while done < until:
                    killed, *more = live(process, tree, max(put, default=-1) + 1, seed + routers)
                    done, routers = done + killed, routers + 1
                    put.update(more)
                leaves += check(tree, put)
                acknowledged += len(put)
        finally:
            process.kill()
    told = (folder / "errors.txt").read_text()
    assert "Traceback" not in told, told[-3000:]
    return acknowledged, routers, leaves


@pytest.mark.e2e
def test_10_kills_lose_nothing(tmp_path: Path) -> None:
    acknowledged, routers, _ = kill_often(tmp_path / "trees", 10, seed=1)
    assert acknowledged > 10
    assert routers > 0


@pytest.mark.slow
def test_200_kills_lose_nothing(tmp_path: Path) -> None:
    acknowledged, routers, leaves = kill_often(tmp_path / "trees", 200, seed=100)
    assert acknowledged > 300
    assert routers > 10
    assert leaves > 8
    sys.stderr.write(f"200 kills, {routers} of routers: {acknowledged} lessons, 0 lost, 0 twice\n")
