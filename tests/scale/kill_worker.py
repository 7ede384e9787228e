"""Routers that teach a tree under load while their leaves are killed, until they are killed.

    python -m tests.scale.kill_worker

Each line that it reads is a JSON list, [folder, first number, seed]: a router begins, as a fork,
since importing everything takes longest. Lines that it prints: `router PID`, `open`, `put NUMBER`
when a lesson is acknowledged, `kill PID` when a leaf's process was killed, `dead` at the end.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

import torch
from tests import helpers
from tests.scale.process_ray import ProcessRay

from anytimecl import checkpointer
from anytimecl.scale import on_ray, seat, tree_splitting
from anytimecl.scale.tree import TreeClassifier

CAPACITY = 30
TEACHERS = 4
AGAIN = 40  # lessons before the first one that are sent again: some were acknowledged, some not


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def route(folder: Path, first: int, seed: int) -> None:
    torch.set_num_threads(1)  # after a fork, one thread has to use torch before several do
    checkpointer.CHECKPOINT_EVERY = 7  # so that death meets checkpoints too
    seat.AGAIN = 0.1
    ray = ProcessRay()
    on_ray.import_ray = lambda: ray  # type: ignore[assignment]
    tree = TreeClassifier.open(
        folder,
        model=helpers.model(),
        settings=helpers.settings(),
        capacity=CAPACITY,
        leaves=on_ray.OnRay,
    )
    say("open")
    numbers = itertools.count(max(0, first - AGAIN))
    for _ in range(TEACHERS):
        threading.Thread(target=teach, args=(tree, numbers), daemon=True).start()
    rng = random.Random(seed)
    while True:
        time.sleep(rng.random() * 0.6)
        wait_for_progress()
        alive = ray.alive()
        if alive:
            dying = rng.choice(alive).pid
            with suppress(ProcessLookupError):  # it has split and is gone by itself
                os.kill(dying, 9)
                say(f"kill {dying}")


PUT = threading.Semaphore(0)


def wait_for_progress() -> None:
    """On a busy machine kills must not come faster than lessons."""
    for _ in range(4):
        PUT.acquire(timeout=2)


def teach(tree: TreeClassifier, numbers: itertools.count[int]) -> None:
    try:
        while True:
            number = next(numbers)
            tree.learn_one(*helpers.lesson(number), key=f"lesson {number}")
            say(f"put {number}")
            PUT.release()
            time.sleep(0.02)
    except BaseException:
        traceback.print_exc()
        os._exit(3)  # a lesson is never refused here


def serve() -> None:
    helpers.model()
    tree_splitting.BACK_OFF = 0.5, 2.0  # a split that lost a child is tried again soon
    say("ready")
    while line := sys.stdin.readline():
        folder, first, seed = json.loads(line)
        child = os.fork()
        if not child:
            try:
                route(Path(folder), first, seed)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)  # it is killed before it gets here
        say(f"router {child}")
        _, status = os.waitpid(child, 0)
        say(f"dead {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    serve()
