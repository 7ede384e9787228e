"""The threads behind the event loop: order, batches, back-pressure, ends."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError

import pytest
import torch
from torch import Tensor

from anytimecl.serve.encoder import Encoder
from anytimecl.serve.fair import Ticket
from anytimecl.serve.problems import Busy, Problem
from anytimecl.serve.turns import Turns


class Held:
    """A trunk that waits to be let through, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.gate = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def __call__(self, pixels: Tensor) -> Tensor:
        self.batches.append(len(pixels))
        self.entered.release()
        assert self.gate.acquire(timeout=60)
        return pixels + 1


def test_what_waits_goes_together_and_each_gets_its_own() -> None:
    trunk = Held()
    encoder = Encoder(trunk, batch=4, waiting=16)
    futures = encoder.submit(Ticket("me"), [torch.tensor([0.0])])
    assert trunk.entered.acquire(timeout=60)  # alone, since nobody else was there
    for value in range(1, 8):
        futures += encoder.submit(Ticket("me"), [torch.tensor([float(value)])])
    trunk.gate.release(10)
    assert [float(future.result(60)) for future in futures] == [value + 1 for value in range(8)]
    assert trunk.batches == [1, 4, 3]
    encoder.close()


def order(lessons: int, questions: int) -> list[list[float]]:
    """Which images meet in batches of four: lessons are numbered from 100."""
    batches: list[list[float]] = []
    gate, entered = threading.Semaphore(0), threading.Semaphore(0)

    def trunk(pixels: Tensor) -> Tensor:
        batches.append(pixels.flatten().tolist())
        entered.release()
        assert gate.acquire(timeout=60)
        return pixels

    encoder = Encoder(trunk, batch=4, waiting=99)
    encoder.submit(Ticket("me"), [torch.zeros(1)])
    assert entered.acquire(timeout=60)  # the rest waits
    for number in range(questions):
        encoder.submit(Ticket("me"), [torch.tensor([1.0 + number])])
    for number in range(lessons):
        encoder.submit(Ticket("me"), [torch.tensor([100.0 + number])], lesson=True)
    gate.release(99)
    encoder.close()
    return batches[1:]


def test_lessons_have_a_quarter_and_what_is_left() -> None:
    assert order(lessons=2, questions=5) == [[100, 1, 2, 3], [101, 4, 5]]
    assert order(lessons=5, questions=2) == [[100, 101, 1, 2], [102, 103, 104]]
    assert order(lessons=0, questions=5) == [[1, 2, 3, 4], [5]]


def test_images_are_taken_all_or_none() -> None:
    trunk = Held()
    encoder = Encoder(trunk, batch=1, waiting=2)
    first = encoder.submit(Ticket("me"), [torch.zeros(1)])
    assert trunk.entered.acquire(timeout=60)
    encoder.submit(Ticket("me"), [torch.zeros(1)])
    with pytest.raises(Busy) as refused:
        encoder.submit(Ticket("me"), [torch.zeros(1)] * 2)
    assert int(refused.value.headers["retry-after"]) >= 1
    assert len(encoder) == 1
    trunk.gate.release(10)
    first[0].result(60)
    encoder.close()


def test_a_cancelled_image_is_passed_over() -> None:
    trunk = Held()
    encoder = Encoder(trunk, batch=4, waiting=16)
    encoder.submit(Ticket("me"), [torch.zeros(1)])
    assert trunk.entered.acquire(timeout=60)
    [gone], [kept] = (
        encoder.submit(Ticket("me"), [torch.zeros(1)]),
        encoder.submit(Ticket("me"), [torch.ones(1)]),
    )
    assert gone.cancel()
    trunk.gate.release(10)
    assert float(kept.result(60)) == 2.0
    assert trunk.batches == [1, 1]
    encoder.close()


def test_a_failing_trunk_fails_its_batch_and_no_other() -> None:
    def trunk(pixels: Tensor) -> Tensor:
        if pixels.sum() < 0:
            raise RuntimeError("no")
        return pixels

    encoder = Encoder(trunk, batch=1, waiting=4)
    [bad], [good] = (
        encoder.submit(Ticket("me"), [-torch.ones(1)]),
        encoder.submit(Ticket("me"), [torch.ones(1)]),
    )
    assert isinstance(bad.exception(60), RuntimeError)
    assert float(good.result(60)) == 1.0
    encoder.close()


def test_closing_finishes_what_waits() -> None:
    trunk = Held()
    encoder = Encoder(trunk, batch=1, waiting=8)
    futures = encoder.submit(Ticket("me"), [torch.zeros(1)] * 3)
    trunk.gate.release(10)
    encoder.close()
    assert all(future.done() for future in futures)
    assert not encoder.alive
    with pytest.raises(Problem) as refused:
        encoder.submit(Ticket("me"), [torch.zeros(1)])
    assert refused.value.status == 503


def test_turns_are_taken_in_order() -> None:
    turns, done = Turns("test", waiting=100), list[int]()
    futures = [turns.submit(lambda number=number: done.append(number)) for number in range(50)]  # type: ignore[misc]
    for future in futures:
        future.result(60)
    assert done == list(range(50))
    turns.close()


def test_turns_refuse_beyond_their_room_and_can_be_taken_back() -> None:
    turns, go = Turns("test", waiting=2), threading.Event()
    first = turns.submit(lambda: go.wait(60))
    while len(turns):
        time.sleep(0.001)
    second, third = turns.submit(lambda: 2), turns.submit(lambda: 3)
    with pytest.raises(Busy):
        turns.submit(lambda: 4)
    assert second.cancel()
    assert not first.cancel()  # its turn has come
    go.set()
    assert third.result(60) == 3
    with pytest.raises(CancelledError):
        second.result()
    turns.close()


def test_closing_turns_finishes_what_waits_and_takes_no_more() -> None:
    turns, go, done = Turns("test", waiting=9), threading.Event(), list[int]()
    turns.submit(lambda: go.wait(60))
    for number in range(3):
        turns.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    closing = threading.Thread(target=turns.close)
    closing.start()
    go.set()
    closing.join(60)
    assert done == [0, 1, 2]
    with pytest.raises(Problem):
        turns.submit(lambda: 1)


def test_an_error_ends_a_turn_and_not_the_thread() -> None:
    turns = Turns("test", waiting=4)
    bad = turns.submit(lambda: 1 / 0)
    assert isinstance(bad.exception(60), ZeroDivisionError)
    assert turns.submit(lambda: 5).result(60) == 5
    turns.close()


def test_images_of_large_requests_go_a_few_at_a_time_in_turn_with_others() -> None:
    batches: list[list[float]] = []
    gate, entered = threading.Semaphore(0), threading.Semaphore(0)

    def trunk(pixels: Tensor) -> Tensor:
        batches.append(pixels.flatten().tolist())
        entered.release()
        assert gate.acquire(timeout=60)
        return pixels

    encoder = Encoder(trunk, batch=4, waiting=99, bulk=2)
    encoder.submit(Ticket("a"), [torch.zeros(1)])
    assert entered.acquire(timeout=60)  # the rest waits
    encoder.submit(Ticket("a"), [torch.tensor([100.0 + number]) for number in range(7)])
    for number in range(6):
        encoder.submit(Ticket("a"), [torch.tensor([1.0 + number])])
    encoder.submit(Ticket("a"), [torch.tensor([200.0])], lesson=True)
    gate.release(99)
    encoder.close()
    assert batches[1:] == [
        [100, 101], [200, 1, 2, 3], [102, 103], [4, 5, 6], [104, 105], [106],
    ]  # fmt: skip
