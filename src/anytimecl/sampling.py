"""Samplers: which stored examples are replayed with the new one.

A sampler knows examples by id. The time for a draw depends on the batch size, not on the number of
stored examples. The caller passes the random generator, so that a step can be repeated exactly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from itertools import accumulate
from random import Random
from typing import Any, Protocol

from anytimecl.registry import Registry


class Sampler(Protocol):
    """Draws ids of stored examples.

    By default renaming a label changes nothing, and there is no state beyond the stored examples.
    """

    def add(self, example: int, label: str) -> None:
        """An example was stored, or relabelled to this label."""

    def remove(self, example: int, label: str) -> None:
        """An example was forgotten, or is about to be relabelled."""

    def rename(self, label: str, to: str) -> None:
        """A label was renamed."""

    def draw(self, count: int, random: Random) -> list[int]:
        """Draw at most `count` ids."""
        ...

    def state(self) -> dict[str, Any]:
        """State that adding the stored examples again cannot rebuild, as JSON values."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a `state`, after all examples that are still stored were added."""


def _drop(examples: list[int], example: int) -> int:
    """Remove an example from a sorted list; returns its position."""
    place = bisect_left(examples, example)
    if place == len(examples) or examples[place] != example:
        raise ValueError(f"There is no example {example}.")
    del examples[place]
    return place


class ClassBalanced(Sampler):
    """Draw classes uniformly, then the same number of examples of each: the paper's sampler.

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
        insort(self._examples[label], example)

    def remove(self, example: int, label: str) -> None:
        _drop(self._examples[label], example)
        if not self._examples[label]:
            del self._examples[label]
            self._labels.remove(label)

    def rename(self, label: str, to: str) -> None:
        self._labels[self._labels.index(label)] = to
        self._examples[to] = self._examples.pop(label)

    def draw(self, count: int, random: Random) -> list[int]:
        classes = random.sample(self._labels, min(count, len(self._labels)))
        each = count // len(classes) if classes else 0
        return [i for label in classes for i in _some(self._examples[label], each, random)]

    def state(self) -> dict[str, Any]:
        # The order of the labels stays, even if the first example of one is forgotten.
        return {"labels": self._labels}

    def restore(self, state: dict[str, Any]) -> None:
        self._labels = [label for label in state["labels"] if label in self._examples]


def _some(examples: list[int], count: int, random: Random) -> list[int]:
    """Draw `count` examples, with replacement only if there are fewer: classes weigh the same."""
    if len(examples) >= count:
        return random.sample(examples, count)
    return random.choices(examples, k=count)


class Uniform(Sampler):
    """Draw uniformly from all stored examples."""

    def __init__(self) -> None:
        self._examples: list[int] = []

    def add(self, example: int, label: str) -> None:
        insort(self._examples, example)

    def remove(self, example: int, label: str) -> None:
        _drop(self._examples, example)

    def draw(self, count: int, random: Random) -> list[int]:
        return random.sample(self._examples, min(count, len(self._examples)))


class Fifo(Sampler):
    """Cycle through the examples in order of arrival."""

    def __init__(self) -> None:
        self._examples: list[int] = []
        self._next = 0

    def add(self, example: int, label: str) -> None:
        insort(self._examples, example)
        if example < self._examples[-1] and bisect_left(self._examples, example) < self._next:
            self._next += 1  # a relabelled example is inserted at its old position

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


class FrequencyWeighted(Sampler):
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
        self._put(example, min(1, len(self._buckets) - 1))  # it was in its own batch

    def remove(self, example: int, label: str) -> None:
        self._take(example)

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
            self._used(example)
        return drawn

    def _used(self, example: int) -> None:
        """Move an example that was drawn to the bucket of the next lower weight."""
        bucket = self._take(example)
        self._put(example, min(bucket + 1, len(self._buckets) - 1))

    def _put(self, example: int, bucket: int) -> None:
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


SAMPLERS: Registry[Sampler] = Registry(
    "sampler",
    {
        "class_balanced": ClassBalanced,
        "uniform": Uniform,
        "fifo": Fifo,
        "frequency_weighted": FrequencyWeighted,
    },
    copies=True,
)


class Examples:
    """The label of every example, and the sampler, updated together.

    >>> examples = Examples(Uniform())
    >>> examples.add(1, "cat")
    >>> examples.add(2, "dog")
    >>> examples.remove(1), examples.label_of(1), examples.ids()  # nothing is called cat any more
    (True, '', [2])
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self._of: list[int] = []  # index into `_texts` by example; ids are nearly dense
        self._texts: list[str] = [""]  # a label is renamed here, for all its examples at once
        self._place: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def label_of(self, example: int) -> str:
        """The label of an example; "" if there is no such example."""
        return self._texts[self._of[example]] if 0 <= example < len(self._of) else ""

    def known(self, examples: Iterable[int]) -> list[int]:
        """Those of `examples` that are here, in the same order."""
        return [example for example in examples if self.label_of(example)]

    def ids(self, before: int | None = None) -> list[int]:
        """All examples, or those with an id below `before`."""
        return [i for i, place in enumerate(self._of[:before]) if place]

    def count(self, label: str) -> int:
        """Number of examples of a label."""
        return self._counts.get(label, 0)

    def draw(self, count: int, random: Random) -> list[tuple[int, str]]:
        """At most `count` examples with their labels."""
        return [(each, self.label_of(each)) for each in self.sampler.draw(count, random)]

    def add(self, example: int, label: str) -> None:
        """Add a learned example, which may be drawn from now on."""
        self.sampler.add(example, label)
        if label not in self._place:
            self._place[label] = len(self._texts)
            self._texts.append(label)
        self._of.extend([0] * (example + 1 - len(self._of)))
        self._of[example] = self._place[label]
        self._counts[label] = self.count(label) + 1

    def remove(self, example: int) -> bool:
        """Remove an example; returns whether it was the last of its label."""
        label = self.label_of(example)
        self._of[example] = 0
        self.sampler.remove(example, label)
        return self._one_less(label)

    def move(self, example: int, label: str) -> bool:
        """Relabel an example; returns whether it was the last of its old label."""
        before = self.label_of(example)
        self.sampler.remove(example, before)
        self.add(example, label)
        return self._one_less(before)

    def rename(self, label: str, to: str) -> None:
        """Rename a label."""
        self.sampler.rename(label, to)
        self._counts[to] = self._counts.pop(label)
        place = self._place.pop(label)
        self._texts[place], self._place[to] = to, place

    def _one_less(self, label: str) -> bool:
        self._counts[label] -= 1
        if self._counts[label]:
            return False
        del self._counts[label]
        self._texts[self._place.pop(label)] = ""
        return True
