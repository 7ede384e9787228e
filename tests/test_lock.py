"""TurnLock under thousands of interleavings, drawn by a scheduler instead of left to luck."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from anytimecl import lock as lock_module
from anytimecl.lock import TurnLock

PATIENCE = 60  # seconds after which a test that hangs has failed


class InterruptError(BaseException):
    """What Ctrl-C is to somebody who waits."""


class Actor(threading.Thread):
    """A thread that runs only when it is told to, from one pause to the next."""

    def __init__(self, stage: Stage, number: int, work: Callable[[Actor], None]) -> None:
        super().__init__(daemon=True)
        self.stage, self.number, self.work = stage, number, work
        self.go = threading.Semaphore(0)
        self.asleep = self.interrupted = self.done = False
        self.about_to: tuple[str, str, int] | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        self.go.acquire()
        try:
            self.work(self)
        except InterruptError:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self.stage.back.release()

    def pause(self) -> None:
        """Let somebody else run."""
        self.stage.back.release()
        assert self.go.acquire(timeout=PATIENCE)


class Stage:
    """Runs actors one step at a time, in an order drawn at random: that is the interleaving.

    It stands in for the condition variable of the lock too. Only one actor runs at a time and none
    pauses while it holds the condition, so holding needs no lock; but whoever takes it pauses
    first, and whoever waits sleeps until notified.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.back = threading.Semaphore(0)
        self.actors: list[Actor] = []
        self.now: Actor
        self.events: list[tuple[str, str, int]] = []  # what, who, which visit
        self.inside: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lock_module, "threading", SimpleNamespace(Condition=lambda: self))
            self.lock = TurnLock()

    def play(self, *visits: tuple[str, int], interrupts: bool = False) -> None:
        """Readers and writers, each coming so many times, until all are done."""
        works = [self.visitor(kind, times) for kind, times in visits]
        self.actors = [Actor(self, number, work) for number, work in enumerate(works)]
        for actor in self.actors:
            actor.start()
        while left := [actor for actor in self.actors if not actor.done]:
            asleep = [actor for actor in left if actor.asleep]
            ready = [actor for actor in left if not actor.asleep]
            assert ready, f"deadlock: {len(left)} wait for ever"
            self.now = self.random.choice(ready)
            if interrupts and asleep and self.random.random() < 0.2:
                self.now = self.random.choice(asleep)
                self.now.asleep, self.now.interrupted = False, True
            self.now.go.release()
            assert self.back.acquire(timeout=PATIENCE)
            if self.now.error is not None:
                raise self.now.error

    def visitor(self, kind: str, times: int) -> Callable[[Actor], None]:
        def work(actor: Actor) -> None:
            hold = self.lock.reading if kind == "reader" else self.lock.writing
            for visit in range(times):
                number = actor.number * 100 + visit
                actor.about_to = ("ask", kind, number)
                with hold():
                    self.events.append(("enter", kind, number))
                    self.inside.append(kind)
                    for _ in range(1 + self.random.randrange(3)):
                        # A writer is alone, and readers meet readers only.
                        assert self.inside == ["writer"] or set(self.inside) == {"reader"}
                        actor.pause()
                    self.inside.remove(kind)
                    actor.about_to = ("leave", kind, number)

        return work

    # The condition

    def __enter__(self) -> None:
        actor = self.now
        actor.pause()
        if actor.about_to is not None:  # it happens now, and not when it was decided
            self.events.append(actor.about_to)
            actor.about_to = None

    def __exit__(self, *_: Any) -> None:
        pass

    def wait_for(self, predicate: Callable[[], bool]) -> None:
        actor = self.now
        while not predicate():
            actor.asleep = True
            actor.pause()
            if actor.interrupted:
                raise InterruptError

    def notify_all(self) -> None:
        for actor in self.actors:
            actor.asleep = False

    # The story, told afterwards

    def count(self, what: str, kind: str, start: int, end: int) -> int:
        return sum(event[:2] == (what, kind) for event in self.events[start:end])

    def visits(self, kind: str) -> list[tuple[int, int]]:
        """Where in the story each visitor of a kind asked, and where it entered."""
        return [
            (place, self.events.index(("enter", kind, number)))
            for place, (what, who, number) in enumerate(self.events)
            if (what, who) == ("ask", kind)
        ]

    def assert_nobody_is_owed_anything(self) -> None:
        lock = self.lock
        assert not lock._writing
        assert (lock._reading, lock._writers, lock._owed, lock._waiting) == (0, 0, 0, 0)


CASTS = {
    "one writer": [("reader", 4), ("reader", 4), ("reader", 4), ("writer", 5)],
    "two writers": [("reader", 4), ("reader", 4), ("writer", 3), ("writer", 3)],
    "many writers": [("reader", 3), ("reader", 3), ("writer", 2), ("writer", 2), ("writer", 2)],
    "no writer": [("reader", 3), ("reader", 3)],
}


@pytest.mark.parametrize("cast", CASTS)
def test_everybody_gets_their_turn(cast: str) -> None:
    """A reader waits for one writer or for none, and a writer for no reader who came later."""
    waited: set[int] = set()
    shared = False
    for seed in range(150):
        stage = Stage(seed)
        stage.play(*CASTS[cast])
        for asked, entered in stage.visits("reader"):
            writers = stage.count("ask", "writer", 0, asked)
            writers -= stage.count("leave", "writer", 0, asked)
            turns = stage.count("leave", "writer", asked, entered)
            assert turns == (1 if writers else 0)
            assert stage.count("enter", "writer", asked, entered) <= 1
            waited.add(turns)
            shared |= stage.count("enter", "reader", 0, entered) > stage.count(
                "leave", "reader", 0, entered
            )
        for asked, entered in stage.visits("writer"):
            if stage.count("leave", "writer", asked, entered) == 0:
                for came, in_at in stage.visits("reader"):
                    assert not asked < came < in_at < entered, "a reader overtook the writer"
        stage.assert_nobody_is_owed_anything()
    assert shared, "readers never met"
    assert waited == ({0} if cast == "no writer" else {0, 1})


@pytest.mark.parametrize("cast", [cast for cast in CASTS if cast != "no writer"])
def test_an_interrupted_wait_holds_nobody_up(cast: str) -> None:
    interrupted: set[str] = set()
    for seed in range(250):
        stage = Stage(seed)
        stage.play(*CASTS[cast], interrupts=True)
        stage.assert_nobody_is_owed_anything()
        interrupted |= {CASTS[cast][actor.number][0] for actor in stage.actors if actor.interrupted}
    assert interrupted == {"reader", "writer"}


def test_an_error_inside_gives_the_lock_back() -> None:
    lock = TurnLock()
    for hold in (lock.reading, lock.writing, lock.reading, lock.writing):
        with pytest.raises(ZeroDivisionError), hold():
            _ = 1 / 0
    with lock.reading(), lock.reading():
        pass


def test_with_real_threads_no_reader_sees_half_a_change() -> None:
    lock, pair, seen = TurnLock(), [0, 0], []

    def write() -> None:
        for _ in range(50):
            with lock.writing():
                pair[0] += 1
                time.sleep(0.0002)
                pair[1] += 1

    def read() -> None:
        while pair[1] < 100:
            with lock.reading():
                first = pair[0]
                time.sleep(0.0001)
                seen.append(first == pair[0] == pair[1])

    threads = [threading.Thread(target=each, daemon=True) for each in (write, write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert pair == [100, 100]
    assert len(seen) > 10
    assert all(seen)
