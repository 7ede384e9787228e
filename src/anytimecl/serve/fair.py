"""A fair queue: every client gets the same share, however much it sends.

Self-clocked fair queueing (by finish tags) at two levels: between clients, and between the requests
of one client. Cheap items overtake expensive ones, and none waits for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(eq=False)
class Ticket:
    """A client's request; the key of its items in a queue.

    >>> Ticket("127.0.0.1") == Ticket("127.0.0.1")
    False
    """

    client: str


@dataclass
class _Flow(Generic[T]):
    start: float  # start tag of its next item, on its client's clock
    items: deque[tuple[float, T]] = field(default_factory=deque)  # with their costs

    @property
    def finish(self) -> float:
        return self.start + self.items[0][0]


@dataclass
class _Client(Generic[T]):
    start: float  # start tag of its next item, on the common clock
    clock: float = 0.0
    flows: dict[Ticket, _Flow[T]] = field(default_factory=dict)


class FairQueue(Generic[T]):
    """Items with a cost, in fair order. Not thread-safe: the owner has a lock.

    >>> queue, greedy, modest = FairQueue[str](), Ticket("a"), Ticket("b")
    >>> for item in ("a1", "a2", "a3"):
    ...     queue.push(greedy, 10, item)
    >>> queue.push(modest, 1, "b1")
    >>> [queue.pop() for _ in range(4)]
    ['b1', 'a1', 'a2', 'a3']
    """

    def __init__(self) -> None:
        self._clients: dict[str, _Client[T]] = {}
        self._clock = 0.0
        self._count = 0
        self.cost = 0.0  # of all items

    def __len__(self) -> int:
        return self._count

    def waiting(self, client: str) -> int:
        """Number of items of a client."""
        known = self._clients.get(client)
        return sum(len(flow.items) for flow in known.flows.values()) if known else 0

    def push(self, ticket: Ticket, cost: float, item: T) -> None:
        """Add an item, behind others of the same request."""
        client = self._clients.setdefault(ticket.client, _Client(self._clock))
        flow = client.flows.setdefault(ticket, _Flow(client.clock))
        flow.items.append((cost, item))
        self._count += 1
        self.cost += cost

    def pop(self, fits: Callable[[float], bool] = lambda cost: True) -> T | None:
        """The next item whose cost `fits`; None if there is none."""
        best: tuple[float, _Client[T], Ticket] | None = None
        for client in self._clients.values():
            heads = [
                (flow.finish, ticket)
                for ticket, flow in client.flows.items()
                if fits(flow.items[0][0])
            ]
            if heads:
                _, ticket = min(heads, key=lambda head: head[0])
                finish = client.start + client.flows[ticket].items[0][0]
                if best is None or finish < best[0]:
                    best = finish, client, ticket
        return None if best is None else self._serve(*best)

    def drop(self, ticket: Ticket) -> Iterator[T]:
        """Remove and yield all items of a request."""
        client = self._clients.get(ticket.client)
        flow = client.flows.pop(ticket, None) if client else None
        if client is not None and not client.flows:
            del self._clients[ticket.client]
        for cost, item in flow.items if flow else ():
            self._count -= 1
            self.cost -= cost
            yield item

    def _serve(self, finish: float, client: _Client[T], ticket: Ticket) -> T:
        flow = client.flows[ticket]
        flow.start = flow.finish
        client.clock = max(client.clock, flow.start)
        client.start = finish
        self._clock = max(self._clock, finish)
        cost, item = flow.items.popleft()
        self._count -= 1
        self.cost -= cost
        if not flow.items:
            del client.flows[ticket]
        if not client.flows:
            del self._clients[ticket.client]
        return item
