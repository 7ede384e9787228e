"""The router's metrics, exported by Ray to Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from anytimecl.scale.leaves import Health

SECONDS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30]


class RouterMetrics:
    """`ray_anytimecl_...`: requests by outcome, and the state of leaves."""

    def __init__(self) -> None:
        from ray.util.metrics import Counter, Gauge, Histogram

        self._done = Counter(
            "anytimecl_calls_total", "Lessons and questions, by outcome.", ("kind", "outcome")
        )
        self._seconds = Histogram(
            "anytimecl_call_seconds", "From a call to its answer.", SECONDS, ("kind",)
        )
        self._waiting = Gauge(
            "anytimecl_leaf_lessons_waiting", "Sent and not acknowledged.", ("leaf",)
        )
        self._alive = Gauge("anytimecl_leaf_alive", "Whether it answered just now.", ("leaf",))
        self._restarts = Gauge("anytimecl_leaf_restarts", "How often it was lost.", ("leaf",))

    @contextmanager
    def timed(self, kind: str, count: int) -> Iterator[None]:
        """Time a call with this many examples or images."""
        began, outcome = time.monotonic(), "failed"
        try:
            yield
            outcome = "done"
        finally:
            self._done.inc(count, {"kind": kind, "outcome": outcome})
            self._seconds.observe(time.monotonic() - began, {"kind": kind})

    def tell(self, leaves: Sequence[Health]) -> None:
        """Report the state of leaves."""
        for each in leaves:
            leaf = {"leaf": str(each.leaf)}
            self._waiting.set(each.pending, leaf)
            self._alive.set(float(each.alive), leaf)
            self._restarts.set(each.restarts, leaf)
