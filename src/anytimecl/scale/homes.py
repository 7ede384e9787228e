"""Index of the leaves that have examples of each label."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future

from anytimecl.scale.leaf import Emptied, Former
from anytimecl.trainer import Learned


class LabelHomes:
    """Label -> leaves, in order of first appearance.

    >>> homes = LabelHomes()
    >>> homes.put(0, ["cat", "dog"])
    >>> homes.put(1, ["cat"])
    >>> homes.drop(0)
    >>> homes.names()
    ['cat']
    """

    def __init__(self) -> None:
        self._leaves: dict[str, set[int]] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Every label of any leaf."""
        with self._lock:
            return [label for label, leaves in self._leaves.items() if leaves]

    def put(self, leaf: int, labels: Iterable[str]) -> None:
        """Add labels of a leaf."""
        with self._lock:
            for label in labels:
                self._leaves.setdefault(label, set()).add(leaf)

    def drop(self, leaf: int) -> None:
        """Remove a leaf."""
        with self._lock:
            for leaves in self._leaves.values():
                leaves.discard(leaf)

    def forget(self, label: str) -> None:
        """Remove a label."""
        with self._lock:
            self._leaves.pop(label, None)

    def sent(self, leaf: int, label: str, lesson: Future[Learned]) -> None:
        """Add the label of an example being sent, until it is refused.

        Or found to be a late retry, whose image has another label now.
        """
        with self._lock:
            leaves = self._leaves.setdefault(label, set())
            new = leaf not in leaves
            leaves.add(leaf)

        def over(done: Future[Learned]) -> None:
            refused = done.cancelled() or done.exception() is not None
            vain = refused or isinstance(done.result(), Former)
            with self._lock:
                if vain and new:
                    leaves.discard(leaf)
                elif not vain:
                    leaves.add(leaf)
                    if isinstance(done.result(), Emptied):
                        self._leaves.get(str(done.result().replaced), set()).discard(leaf)

        lesson.add_done_callback(over)
