"""The stored examples that a trainer knows: the label of each, and the sampler that draws them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from anytimecl.memory.checks import check_number
from anytimecl.sampling import Sampler


class Examples:
    """The label of every example, and the sampler, updated together.

    >>> from anytimecl.sampling import Uniform
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
        self._counts: Counter[str] = Counter()

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
        return self._counts[label]

    def add(self, example: int, label: str) -> None:
        """Add a learned example, which may be drawn from now on."""
        if example > len(self._of):  # a gap, which is filled below
            check_number(example, len(self._of), "The memory")
        self.sampler.add(example, label)
        if label not in self._place:
            self._place[label] = len(self._texts)
            self._texts.append(label)
        self._of.extend([0] * (example + 1 - len(self._of)))
        self._of[example] = self._place[label]
        self._counts[label] += 1

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
