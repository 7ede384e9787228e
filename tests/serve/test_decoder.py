"""The budget of pixels, and who is decoded when."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from anytimecl.serve.decoder import Decoder
from anytimecl.serve.fair import Ticket
from anytimecl.serve.problems import Busy, Problem


class Gates:
    """Work that says when it begins, and ends when it is let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._changed = threading.Condition()
        self._open: set[str] = set()

    def work(self, name: str) -> Callable[[], str]:
        def run() -> str:
            with self._changed:
                self.begun.append(name)
                self._changed.notify_all()
                assert self._changed.wait_for(lambda: name in self._open, 60)
            return name

        return run

    def let(self, *names: str) -> None:
        with self._changed:
            self._open.update(names)
            self._changed.notify_all()

    def wait_for(self, count: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, 60)
            return list(self.begun)


def done(futures: list[Future[str]]) -> list[str]:
    return [future.result(60) for future in futures]


def test_a_small_image_never_waits_behind_large_ones() -> None:
    decoder, gates = Decoder(budget=160, waiting=99, waiting_pixels=10_000), Gates()
    large = decoder.submit(Ticket("a"), [(100, gates.work(f"large {n}")) for n in range(3)])
    assert gates.wait_for(1) == ["large 0"]  # one at a time, though there are two threads
    small = decoder.submit(Ticket("a"), [(10, gates.work("small"))])
    assert gates.wait_for(2) == ["large 0", "small"]
    gates.let("small")
    assert done(small) == ["small"]
    assert len(decoder) == 2
    gates.let("large 0", "large 1", "large 2")
    assert done(large) == ["large 0", "large 1", "large 2"]
    assert decoder.most == 110
    decoder.close()


def test_no_more_pixels_are_held_than_the_budget() -> None:
    decoder = Decoder(budget=160, waiting=999, waiting_pixels=10**6, threads=3)
    futures = [
        future
        for number in range(60)
        for future in decoder.submit(
            Ticket(str(number % 7)),
            [(cost, lambda: "done") for cost in (decoder.largest, 1, decoder.small, 50)],
        )
    ]
    assert len(done(futures)) == 240
    assert decoder.most <= 160
    decoder.close()


def test_large_images_beyond_the_room_are_refused_and_small_ones_are_not() -> None:
    decoder, gates = Decoder(budget=160, waiting=99, waiting_pixels=300), Gates()
    first = decoder.submit(Ticket("a"), [(100, gates.work("first"))])
    gates.wait_for(1)
    waiting = decoder.submit(Ticket("a"), [(100, gates.work("second"))] * 3)
    with pytest.raises(Busy) as refused:
        decoder.submit(Ticket("b"), [(100, gates.work("never"))])
    assert refused.value.status == 429
    assert done(decoder.submit(Ticket("b"), [(10, lambda: "small")])) == ["small"]
    gates.let("first", "second")
    done(first + waiting)
    decoder.close()


def test_batches_leave_room_for_single_images() -> None:
    decoder, gates = Decoder(budget=160, waiting=16, waiting_pixels=10_000), Gates()
    held = [decoder.submit(Ticket("a"), [(1, gates.work(f"held {n}"))]) for n in range(2)]
    gates.wait_for(2)
    batch = decoder.submit(Ticket("a"), [(1, gates.work("batch"))] * 12)
    with pytest.raises(Busy):
        decoder.submit(Ticket("b"), [(1, gates.work("never"))] * 2)
    one = decoder.submit(Ticket("b"), [(1, gates.work("one"))])
    gates.let("held 0", "held 1", "batch", "one")
    done([future for futures in (*held, batch, one) for future in futures])
    decoder.close()


def test_what_nobody_waits_for_is_dropped() -> None:
    decoder, gates = Decoder(budget=160, waiting=99, waiting_pixels=10_000), Gates()
    gone = Ticket("a")
    futures = decoder.submit(gone, [(100, gates.work(f"image {n}")) for n in range(32)])
    gates.wait_for(1)
    decoder.drop(gone)
    assert len(decoder) == 0
    gates.let("image 0")
    assert [future.cancelled() for future in futures] == [False] + [True] * 31
    assert done(decoder.submit(Ticket("b"), [(1, lambda: "next")])) == ["next"]
    assert gates.begun == ["image 0"]
    decoder.close()


def test_an_error_is_of_its_image_alone() -> None:
    decoder = Decoder(budget=160, waiting=99, waiting_pixels=10_000)
    bad, good = decoder.submit(Ticket("a"), [(1, lambda: 1 / 0), (100, lambda: 1.0)])
    assert isinstance(bad.exception(60), ZeroDivisionError)
    assert good.result(60) == 1.0
    decoder.close()
    with pytest.raises(Problem) as refused:
        decoder.submit(Ticket("a"), [(1, lambda: 1)])
    assert refused.value.status == 503


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has threads with a priority")
def test_large_images_leave_the_processor_to_others() -> None:
    decoder = Decoder(budget=160, waiting=99, waiting_pixels=10_000)

    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    large, small = decoder.submit(Ticket("me"), [(100, priority), (1, priority)])
    assert large.result(60) == min(19, small.result(60) + 10)
    decoder.close()
