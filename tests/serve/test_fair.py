"""Shares: between clients, between requests, by cost."""

from __future__ import annotations

import random
from collections import Counter

from anytimecl.serve.fair import FairQueue, Ticket


def drained(queue: FairQueue[str]) -> list[str]:
    return [item for item in iter(queue.pop, None) if item is not None]


def test_one_request_keeps_its_order() -> None:
    queue, ticket = FairQueue[str](), Ticket("a")
    for item in "abc":
        queue.push(ticket, 1, item)
    assert drained(queue) == ["a", "b", "c"]
    assert (len(queue), queue.cost) == (0, 0)


def test_clients_take_turns_however_many_requests_each_has() -> None:
    queue = FairQueue[str]()
    for _ in range(10):
        queue.push(Ticket("many"), 1, "many")
    modest = Ticket("one")
    for _ in range(3):
        queue.push(modest, 1, "one")
    assert Counter(drained(queue)[:6]) == {"many": 3, "one": 3}


def test_requests_of_one_client_take_turns_too() -> None:
    """Without tokens a whole machine is one client."""
    queue, large = FairQueue[str](), Ticket("a")
    for number in range(32):
        queue.push(large, 50, f"large {number}")
    assert queue.pop() == "large 0"
    queue.push(Ticket("a"), 1, "small")
    assert queue.pop() == "small"


def test_what_costs_much_is_served_when_as_much_has_passed() -> None:
    """Small ones that never end do not keep a large one waiting for ever."""
    queue = FairQueue[str]()
    queue.push(Ticket("a"), 50, "large")
    passed = 0
    while True:
        queue.push(Ticket("b"), 1, "small")
        if queue.pop() == "large":
            break
        passed += 1
    assert passed <= 50


def test_shares_are_equal_in_cost_over_time() -> None:
    chance, queue = random.Random(0), FairQueue[tuple[str, int]]()
    tickets = {name: Ticket(name) for name in "abc"}
    for name, ticket in tickets.items():
        for _ in range(3000):
            cost = chance.randint(1, {"a": 5, "b": 50, "c": 500}[name])
            queue.push(ticket, cost, (name, cost))
    served: Counter[str] = Counter()
    while sum(served.values()) < 20_000:
        found = queue.pop()
        assert found is not None
        served[found[0]] += found[1]
    assert max(served.values()) - min(served.values()) <= 1000  # two of the largest items


def test_what_does_not_fit_is_passed_over_and_keeps_its_place() -> None:
    queue = FairQueue[str]()
    queue.push(Ticket("a"), 10, "large")
    queue.push(Ticket("b"), 20, "larger")
    assert queue.pop(lambda cost: cost < 10) is None
    queue.push(Ticket("c"), 15, "small enough")
    assert queue.pop(lambda cost: cost > 10) == "small enough"
    assert queue.pop() == "large"


def test_a_request_is_dropped_whole() -> None:
    queue, gone, stays = FairQueue[str](), Ticket("a"), Ticket("a")
    for _ in range(5):
        queue.push(gone, 2, "gone")
    queue.push(stays, 3, "stays")
    assert list(queue.drop(gone)) == ["gone"] * 5
    assert (len(queue), queue.cost, queue.waiting("a")) == (1, 3, 1)
    assert list(queue.drop(gone)) == []
    assert drained(queue) == ["stays"]
