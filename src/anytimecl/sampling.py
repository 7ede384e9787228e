"""Which stored examples join the new one in a batch.

Every sampler knows examples by id and draws in time that depends on the batch, not on how many
examples are stored. Randomness comes from the caller, so that a step can be repeated exactly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate
from random import Random
from typing import Any, Protocol


class Sampler(Protocol):
    """Draws ids of stored examples."""

    def add(self, example: int, label: str) -> None:
        """An example was stored; its id is higher than all before."""

    def remove(self, example: int, label: str) -> None:
        """An example was forgotten."""

    def draw(self, count: int, random: Random) -> list[int]:
        """At most `count` ids."""
        ...

    def state(self) -> dict[str, Any]:
        """What cannot be rebuilt by adding the stored examples again, as plain JSON values."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Take back a `state`, after those of its examples that are still stored were added."""


def _drop(examples: list[int], example: int) -> int:
    """Take an example out of an ascending list; returns where it was."""
    place = bisect_left(examples, example)
    if place == len(examples) or examples[place] != example:
        raise ValueError(f"There is no example {example}.")
    del examples[place]
    return place


class ClassBalanced:
    """Uniformly drawn classes, equally many examples of each: the paper's choice.

    >>> sampler = ClassBalanced()
    >>> for example, label in enumerate(["cat", "cat", "cat", "dog"]):
    ...     sampler.add(example, label)
    >>> drawn = sampler.draw(2, Random(0))
    >>> len(drawn), 3 in drawn
    (2, True)
    """

    def __init__(self) -> None:
        self._labels: list[str] = []
        self._examples: dict[str, list[int]] = {}

    def add(self, example: int, label: str) -> None:
        if label not in self._examples:
            self._labels.append(label)
            self._examples[label] = []
        self._examples[label].append(example)

    def remove(self, example: int, label: str) -> None:
        _drop(self._examples[label], example)
        if not self._examples[label]:
            del self._examples[label]
            self._labels.remove(label)

    def draw(self, count: int, random: Random) -> list[int]:
        classes = random.sample(self._labels, min(count, len(self._labels)))
        each = count // len(classes) if classes else 0
        return [i for label in classes for i in _some(self._examples[label], each, random)]

    def state(self) -> dict[str, Any]:
        # A label keeps its place even when its first example is forgotten.
        return {"labels": self._labels}

    def restore(self, state: dict[str, Any]) -> None:
        self._labels = [label for label in state["labels"] if label in self._examples]


def _some(examples: list[int], count: int, random: Random) -> list[int]:
    """`count` of them: without repeats where there are enough, so that every class weighs alike."""
    if len(examples) >= count:
        return random.sample(examples, count)
    return random.choices(examples, k=count)


class Uniform:
    """Any stored example, equally likely."""

    def __init__(self) -> None:
        self._examples: list[int] = []

    def add(self, example: int, label: str) -> None:
        self._examples.append(example)

    def remove(self, example: int, label: str) -> None:
        _drop(self._examples, example)

    def draw(self, count: int, random: Random) -> list[int]:
        return random.sample(self._examples, min(count, len(self._examples)))

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


class Fifo:
    """Round and round, in the order of arrival."""

    def __init__(self) -> None:
        self._examples: list[int] = []
        self._next = 0

    def add(self, example: int, label: str) -> None:
        self._examples.append(example)

    def remove(self, example: int, label: str) -> None:
        if _drop(self._examples, example) < self._next:
            self._next -= 1
        if self._next == len(self._examples):
            self._next = 0

    def draw(self, count: int, random: Random) -> list[int]:
        size = len(self._examples)
        drawn = [self._examples[(self._next + i) % size] for i in range(min(count, size))]
        self._next = (self._next + len(drawn)) % size if size else 0
        return drawn

    def state(self) -> dict[str, Any]:
        return {"next": self._examples[self._next] if self._examples else 0}

    def restore(self, state: dict[str, Any]) -> None:
        place = bisect_left(self._examples, state["next"])
        self._next = place if place < len(self._examples) else 0


class FrequencyWeighted:
    """Examples seldom drawn are likelier: the weight is `max(xi ** times_drawn, least)`.

    Weights take few values, so examples live in one bucket per value: a draw picks a bucket by
    its total weight, then anyone in it.
    """

    def __init__(self, xi: float = 0.99, least: float = 0.01) -> None:
        self._weights = [1.0]
        while self._weights[-1] > least:
            self._weights.append(max(self._weights[-1] * xi, least))
        self._buckets: list[list[int]] = [[] for _ in self._weights]
        self._place: dict[int, tuple[int, int]] = {}  # example -> bucket, position

    def add(self, example: int, label: str) -> None:
        self._put(example, 0)

    def remove(self, example: int, label: str) -> None:
        self._take(example)

    def draw(self, count: int, random: Random) -> list[int]:
        drawn: list[tuple[int, int]] = []  # example, the bucket it came from
        for _ in range(min(count, len(self._place))):
            sizes = zip(self._weights, self._buckets, strict=True)
            totals = list(accumulate(weight * len(bucket) for weight, bucket in sizes))
            chosen = bisect_right(totals, random.random() * totals[-1])
            example = random.choice(self._buckets[chosen])
            drawn.append((example, chosen))
            self._take(example)  # an example joins a batch once
        for example, bucket in drawn:
            self._put(example, min(bucket + 1, len(self._buckets) - 1))
        return [example for example, _ in drawn]

    def _put(self, example: int, bucket: int) -> None:
        self._place[example] = (bucket, len(self._buckets[bucket]))
        self._buckets[bucket].append(example)

    def _take(self, example: int) -> None:
        bucket, position = self._place.pop(example)
        last = self._buckets[bucket].pop()
        if last != example:  # the last one fills the gap
            self._buckets[bucket][position] = last
            self._place[last] = (bucket, position)

    def state(self) -> dict[str, Any]:
        return {"buckets": self._buckets}

    def restore(self, state: dict[str, Any]) -> None:
        stored, self._place = self._place, {}
        self._buckets = [[] for _ in self._weights]
        for bucket, examples in enumerate(state["buckets"]):
            for example in examples:
                if example in stored:
                    self._put(example, bucket)


SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "class_balanced": ClassBalanced,
    "uniform": Uniform,
    "fifo": Fifo,
    "frequency_weighted": FrequencyWeighted,
}
