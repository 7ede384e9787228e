"""The frequency-weighted sampler: the more often an example was replayed, the less likely again."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from random import Random
from typing import Any


class FrequencyWeighted:
    """Draw examples with weight `max(xi ** times_drawn, least)`.

    A new example's own batch counts, so it starts with weight `xi`. There are few distinct weights:
    examples are kept in one bucket for each, and a draw picks a bucket by its total weight, then an
    example in it uniformly.
    """

    def __init__(self, xi: float = 0.99, least: float = 0.01) -> None:
        if least < 1 and not (xi < 1 and least > 0):
            raise ValueError(f"xi lies below 1 and least above 0, and not {xi!r} and {least!r}.")
        self._weights = [1.0]
        while self._weights[-1] > least:
            self._weights.append(max(self._weights[-1] * xi, least))
        self._buckets: list[list[int]] = [[] for _ in self._weights]
        self._place: dict[int, tuple[int, int]] = {}  # example -> bucket, position

    def add(self, example: int, label: str) -> None:
        self._put(example, 1)  # it was in its own batch

    def remove(self, example: int, label: str) -> None:
        self._take(example)

    def rename(self, label: str, to: str) -> None:
        pass  # weights do not depend on labels

    def draw(self, count: int, random: Random) -> list[int]:
        if count >= len(self._place):
            drawn = list(self._place)
        else:
            sizes = zip(self._weights, self._buckets, strict=True)
            totals = list(accumulate(weight * len(bucket) for weight, bucket in sizes))
            chosen: dict[int, None] = {}  # without replacement: repeats are drawn again
            while len(chosen) < count:
                bucket = bisect_right(totals, random.random() * totals[-1])
                chosen[random.choice(self._buckets[bucket])] = None
            drawn = list(chosen)
        for example in drawn:
            self._put(example, self._take(example) + 1)
        return drawn

    def _put(self, example: int, bucket: int) -> None:
        bucket = min(bucket, len(self._buckets) - 1)
        self._place[example] = (bucket, len(self._buckets[bucket]))
        self._buckets[bucket].append(example)

    def _take(self, example: int) -> int:
        bucket, position = self._place.pop(example)
        last = self._buckets[bucket].pop()
        if last != example:  # swap-remove
            self._buckets[bucket][position] = last
            self._place[last] = (bucket, position)
        return bucket

    def state(self) -> dict[str, Any]:
        return {"buckets": self._buckets}

    def restore(self, state: dict[str, Any]) -> None:
        stored, self._place = self._place, {}
        self._buckets = [[] for _ in self._weights]
        for bucket, examples in enumerate(state["buckets"]):
            for example in examples:
                if example in stored:
                    self._put(example, bucket)
