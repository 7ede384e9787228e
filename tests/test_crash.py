"""Killed at random moments, a classifier keeps every lesson that it acknowledged.

And not only that: what it knows after reopening is, bit for bit, what it would know had it never
been killed.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
from tests.helpers import LABELS, differing, knowledge, lesson, model, picture, settings

from anytimecl import keeper
from anytimecl.classifier import AnytimeClassifier

ROOT = Path(__file__).resolve().parents[1]
LIVES = 8
EVERY = 13  # lessons between two consolidations
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="lives are forks of one process")


def live(folder: Path) -> None:
    """Learn the endless stream from where the memory left off, and say so, until killed."""
    keeper.CHECKPOINT_EVERY = 5  # so that death meets checkpoints too
    classifier = AnytimeClassifier.open(folder, model=model(), settings=settings())
    say(f"open {len(classifier)}")
    for number in itertools.count(len(classifier)):
        learned = classifier.learn_one(*lesson(number), key=f"lesson {number}")
        say(f"learned {learned.id}")
        if number % EVERY == 0:
            classifier.consolidate(1)
            say(f"consolidated {classifier.memory.last}")


def serve(folder: Path) -> None:
    """Begin a life whenever asked: forks, since importing everything takes longest."""
    model()
    say("ready")
    while sys.stdin.readline():
        child = os.fork()
        if not child:
            try:
                live(folder)
            finally:
                os._exit(1)  # it is killed before it gets here
        say(f"child {child}")
        os.waitpid(child, 0)
        say("dead")


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


class Server:
    """The process that gives birth."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def hears(self) -> tuple[str, int]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server is gone"
        word, _, number = line.strip().partition(" ")
        return word, int(number or 0)

    def lets_live(self, random: Random) -> list[tuple[str, int]]:
        """One life, ended by SIGKILL; returns what it acknowledged."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        said: list[tuple[str, int]] = []
        pid = 0
        wanted = random.randrange(12)
        while not pid or len(said) < wanted:
            word, number = self.hears()
            if word == "child":
                pid = number
            else:
                said.append((word, number))
        time.sleep(random.random() * 0.03)
        os.kill(pid, signal.SIGKILL)
        while (heard := self.hears())[0] != "dead":
            said.append(heard)
        return said


@contextmanager
def server(folder: Path) -> Iterator[Server]:
    code = f"import pathlib, tests.test_crash as t; t.serve(pathlib.Path({str(folder)!r}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            server = Server(process)
            assert server.hears() == ("ready", 0)
            yield server
        finally:
            process.kill()


def live_without_dying(journal: AnytimeClassifier, straight: AnytimeClassifier) -> None:
    """Do what the journal says, from where `straight` is on, through the front door."""
    for event in list(journal.memory.events(straight.memory.last)):
        if event.kind == "learn":
            assert straight.learn_one(*lesson(len(straight))).id == event.number
        else:
            assert event.kind == "consolidate"
            straight.consolidate(event.data["epochs"])


def test_killed_at_random_moments_it_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    folder, random = tmp_path / "memory", Random(1)
    straight = AnytimeClassifier.open(model=model(), settings=settings())
    acknowledged: set[int] = set()
    sizes = [0]
    with server(folder) as process:
        for _ in range(LIVES):
            said = process.lets_live(random)
            acknowledged |= {number for word, number in said if word == "learned"}
            if not folder.exists():
                continue  # killed before anything was made
            with AnytimeClassifier.open(folder, model=model(), read_only=True) as found:
                ids = [example for example, _ in found.memory.ids()]
                assert acknowledged <= set(ids)
                for word, number in said:
                    if word == "consolidated":
                        events = {event.number: event.kind for event in found.memory.events()}
                        assert events[number] == "consolidate"
                live_without_dying(found, straight)
                assert differing(knowledge(straight), knowledge(found)) == []
                found.predict(picture(1), LABELS)
                sizes.append(len(found))
    assert sizes[-1] >= 15
    assert len(set(sizes)) >= 5, "most lives were too short to mean anything"
    with AnytimeClassifier.open(folder, model=model()) as owner:
        assert differing(knowledge(straight), knowledge(owner)) == []
        learned = [each.learn_one(*lesson(len(owner))) for each in (straight, owner)]
        assert learned[0] == learned[1]
        assert owner.predict(picture(1)) == straight.predict(picture(1))
    left = {path.name for path in folder.iterdir()}
    assert not {name for name in left if name.startswith(".checkpoint")}
