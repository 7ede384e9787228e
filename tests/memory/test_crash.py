"""Killed at any moment, a memory keeps all that it acknowledged."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.memory.checks import assert_sound
from tests.memory.crash_worker import contents

from anytimecl.memory import open_memory

ROOT = Path(__file__).resolve().parents[2]
FRESH = 20  # kills after which a new memory begins, or checking would take longer than working


def work_until_killed(folder: Path, seed: int, rng: random.Random) -> list[list[object]]:
    """What a worker said before it was killed."""
    durability = "full" if seed % 3 == 0 else "process"
    code = [sys.executable, "-m", "tests.memory.crash_worker", str(folder), str(seed), durability]
    with subprocess.Popen(code, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        if rng.random() < 0.9:
            said = [process.stdout.readline()]
            time.sleep(rng.random() * 0.3)
        else:  # while it opens the memory, perhaps
            said = []
            time.sleep(rng.random() * 0.6)
        process.kill()
        said += process.stdout.read().splitlines()
        assert process.wait() < 0, "it was killed, and did not stop by itself"
    return [json.loads(line) for line in said]


def check_nothing_is_lost(folder: Path, said: list[list[object]]) -> int:
    """Compare what all workers said with what there is; returns how many were acknowledged."""
    put: dict[int, int] = {}
    tried: set[int] = set()
    given_up: set[int] = set()
    forgotten: set[int] = set()
    for word, *rest in said:
        if word == "put":
            put[rest[0]] = rest[1]  # type: ignore[index]
        elif word == "try":
            tried.update(rest)  # type: ignore[arg-type]
        elif word == "forget":
            given_up.update(rest[0])  # type: ignore[arg-type]
        elif word == "forgot":
            forgotten.update(rest[0])  # type: ignore[arg-type]
    with open_memory(folder, create={}) as memory:  # any warning of loss is an error here
        assert_sound(memory)
        stored = dict(memory.ids())
        assert put.keys() - given_up <= stored.keys(), "an acknowledged example is lost"
        assert not forgotten & stored.keys(), "a forgotten example is back"
        for example, number in put.items():
            if example in stored:
                found = memory.example(example)
                expected = (f"label {number % 7}", contents(number), (f"{number % 3}",))
                assert (found.label, found.record, found.candidates) == expected
        for number in tried - set(put.values()):  # repeating what was not acknowledged is safe
            memory.append(f"label {number % 7}", contents(number), [f"{number % 3}"], f"{number}")
        keys = memory.db.execute("SELECT count(*), count(DISTINCT key) FROM example").fetchone()
        assert keys[0] == keys[1]
    return len(put)


def kill_often(folder: Path, kills: int, seed: int) -> int:
    rng = random.Random(seed)
    acknowledged = 0
    for start in range(0, kills, FRESH):
        said: list[list[object]] = []
        for kill in range(start, min(start + FRESH, kills)):
            said += work_until_killed(folder / f"{start}", kill + 1, rng)
            count = check_nothing_is_lost(folder / f"{start}", said)
        acknowledged += count
    return acknowledged


def test_15_kills_lose_nothing(tmp_path: Path) -> None:
    assert kill_often(tmp_path, 15, seed=0) > 100


@pytest.mark.slow
def test_200_kills_lose_nothing(tmp_path: Path) -> None:
    acknowledged = kill_often(tmp_path, 200, seed=1)
    assert acknowledged > 2000
    sys.stderr.write(f"200 kills, {acknowledged} acknowledged examples, 0 lost\n")
