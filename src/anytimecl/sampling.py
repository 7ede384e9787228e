"""Samplers: which stored examples are replayed with the new one.

A sampler knows examples by id. The time for a draw depends on the batch size, not on the number of
stored examples. The caller passes the random generator, so that a step can be repeated exactly.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from random import Random
from typing import Any, Protocol

from anytimecl.frequency_weighted import FrequencyWeighted
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
        if bisect_left(self._examples, example) < self._next:
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
