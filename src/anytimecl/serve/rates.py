"""Rate limits of clients."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

CLIENTS = 10_000  # tracked; the least recently used is dropped


class Rates:
    """A token bucket per client: `burst` requests, refilled at `per_second`.

    >>> rates = Rates(per_second=1, burst=2, clock=lambda: 0.0)
    >>> [rates.wait("me") for _ in range(3)]
    [0.0, 0.0, 1.0]
    """

    def __init__(
        self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second, self._burst, self._clock = per_second, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # (left, when)

    def wait(self, client: str) -> float:
        """Seconds until the client may send a request; if 0.0, one is taken from its bucket."""
        now = self._clock()
        left, since = self._buckets.pop(client, (float(self._burst), now))
        left = min(self._burst, left + (now - since) * self._per_second)
        allowed = left >= 1
        self._buckets[client] = (left - 1 if allowed else left, now)
        if len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._per_second
