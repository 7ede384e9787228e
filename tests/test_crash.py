"""Killed at random moments, a classifier keeps every lesson that it acknowledged.

And not only that: what it knows after reopening is, bit for bit, what it would know had it never
been killed. Meanwhile another process asks it, and a third tries to own it.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from tests.helpers import LABELS, differing, knowledge, lesson, model, picture, settings

from anytimecl import checkpointer
from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import StoreError
from anytimecl.memory import verify

ROOT = Path(__file__).resolve().parents[1]
EVERY = 23  # lessons between two consolidations
STOP = "stop"  # a file that tells the reader to
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="lives are forks of one process")


# The stream: a lesson for each number, and a consolidation after every so many


def go_on(classifier: AnytimeClassifier) -> str:
    """The next step of the stream, from wherever the memory is; what was acknowledged."""
    learned = len(classifier)
    consolidated = classifier.memory.last - learned
    if consolidated < learned // EVERY:
        classifier.consolidate(1)
        return f"consolidated {classifier.memory.last}"
    return f"learned {classifier.learn_one(*lesson(learned), key=f'lesson {learned}').id}"


# Processes that live, and one that asks


def live(folder: Path) -> None:
    """Go on with the stream, and say so, until killed."""
    checkpointer.CHECKPOINT_EVERY = 5  # so that death meets checkpoints too
    classifier = AnytimeClassifier.open(folder, model=model(), settings=settings())
    say(f"open {len(classifier)}")
    while True:
        say(go_on(classifier))


def serve(folder: Path) -> None:
    """Begin a life whenever asked: forks, since importing everything takes longest."""
    model()
    say("ready")
    while sys.stdin.readline():
        child = os.fork()
        if not child:
            try:
                live(folder)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)  # it is killed before it gets here
        say(f"child {child}")
        os.waitpid(child, 0)
        say("dead")


def ask(folder: Path) -> None:
    """Open the memory to read, predict, and close it, again and again until told to stop."""
    model()
    say("ready")
    for answers in itertools.count():
        if (folder.parent / STOP).exists():
            say(f"answers {answers}")
            return
        while not (folder / "checkpoint").exists():
            time.sleep(0.01)
        with AnytimeClassifier.open(folder, model=model(), read_only=True) as reader:
            assert reader.predict(picture(1), LABELS).label in LABELS
        time.sleep(0.02)  # or it would take a whole core


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


class Process:
    """One of the above, that says what it does line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert self.hears() == ("ready", 0)

    def hears(self) -> tuple[str, int]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process is gone"
        word, _, number = line.strip().partition(" ")
        return word, int(number or 0)

    def tell(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()


@contextmanager
def process(function: str, folder: Path) -> Iterator[Process]:
    code = f"import pathlib, tests.test_crash as t; t.{function}(pathlib.Path({str(folder)!r}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with (
        (folder.parent / f"{function}.txt").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as started,
    ):
        try:
            yield Process(started)
        finally:
            started.kill()


# One life after the other


@dataclass
class Tally:
    """What was found in all lives."""

    kills: int = 0
    acknowledged: set[int] = field(default_factory=set)
    consolidations: int = 0
    refused: int = 0  # second owners
    answers: int = 0  # of the reader
    sizes: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills: {len(self.acknowledged)} acknowledged examples, 0 lost; verify "
            f"clean and the model bit-identical to a life without deaths after each; "
            f"{self.consolidations} consolidations; {self.refused} second owners refused; "
            f"{self.answers} openings to read beside it, all answered"
        )


def one_life(server: Process, folder: Path, random: Random, tally: Tally) -> None:
    """Ended by SIGKILL at a random moment."""
    server.tell()
    said: list[tuple[str, int]] = []
    pid, wanted = 0, random.randrange(12)
    while not pid or len(said) < wanted:
        word, number = server.hears()
        if word == "child":
            pid = number
        else:
            said.append((word, number))
    if said and random.random() < 0.2:  # a second owner
        with pytest.raises(StoreError, match=f"in use by process {pid}"):
            AnytimeClassifier.open(folder, model=model())
        tally.refused += 1
    time.sleep(random.random() * 0.03)
    os.kill(pid, signal.SIGKILL)
    while (heard := server.hears())[0] != "dead":
        said.append(heard)
    tally.kills += 1
    tally.acknowledged |= {number for word, number in said if word == "learned"}
    tally.consolidations += sum(word == "consolidated" for word, _ in said)


def kill_often(folder: Path, kills: int, seed: int) -> Tally:
    random, tally = Random(seed), Tally()
    straight = AnytimeClassifier.open(model=model(), settings=settings())
    with process("serve", folder) as server, process("ask", folder) as reader:
        for _ in range(kills):
            one_life(server, folder, random, tally)
            if not tally.acknowledged:
                continue  # killed before anything was made, perhaps
            with AnytimeClassifier.open(folder, model=model(), read_only=True) as found:
                assert tally.acknowledged <= {example for example, _ in found.memory.ids()}
                report = verify(found.memory)
                assert report.ok, str(report)
                while straight.memory.last < found.memory.last:
                    go_on(straight)
                assert differing(knowledge(straight), knowledge(found)) == []
                tally.sizes.add(len(found))
        (folder.parent / STOP).touch()
        word, tally.answers = reader.hears()
        assert word == "answers"
    with AnytimeClassifier.open(folder, model=model()) as owner:
        assert differing(knowledge(straight), knowledge(owner)) == []
        assert [go_on(straight), go_on(straight)] == [go_on(owner), go_on(owner)]
        assert owner.predict(picture(1)) == straight.predict(picture(1))
    left = {path.name for path in folder.iterdir()}
    assert not {name for name in left if name.startswith(".checkpoint")}
    for function in ("serve", "ask"):
        assert "Traceback" not in (told := (folder.parent / f"{function}.txt").read_text()), told
    return tally


def test_6_kills_lose_nothing(tmp_path: Path) -> None:
    tally = kill_often(tmp_path / "memory", 6, seed=1)
    assert len(tally.acknowledged) >= 15
    assert len(tally.sizes) >= 4, "most lives were too short to mean anything"
    assert tally.answers > 0


@pytest.mark.slow
def test_200_kills_lose_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tally = kill_often(tmp_path / "memory", 200, seed=2)
    assert len(tally.acknowledged) > 500
    assert tally.consolidations > 10
    assert tally.refused > 10
    with capsys.disabled():
        sys.stdout.write(f"\n{tally}\n")
