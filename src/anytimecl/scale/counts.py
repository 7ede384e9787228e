"""How many examples each leaf has acknowledged, on disk, so that a loss is noticed."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import Future

from anytimecl.memory import StoreWarning
from anytimecl.scale.tree_folder import TreeFolder
from anytimecl.trainer import Learned

EVERY = 256  # lessons between two writes


class Counts:
    """They are never more than there are: what is on disk may be old, and examples only come.

    Where some go, whoever takes them writes nothing down first (`save_nothing`).
    """

    def __init__(self, place: TreeFolder, extents: Mapping[int, tuple[int, int]]) -> None:
        self._place = place
        self._sizes = {leaf: size for leaf, (size, _) in extents.items()}
        self._last = {leaf: last for leaf, (_, last) in extents.items()}  # the highest id so far
        self._unsaved = 0
        self._lock = threading.Lock()
        self._saving = threading.Lock()

    @property
    def due(self) -> bool:
        """Whether it is time to write them."""
        return self._unsaved >= EVERY

    def acknowledged(self, leaf: int, done: Future[Learned]) -> None:
        """A lesson has come back from a leaf; a repeated key or image has stored nothing."""
        if done.cancelled() or done.exception() is not None:
            return
        with self._lock:
            if leaf in self._sizes and done.result().id > self._last[leaf]:
                self._unsaved += 1
                self._sizes[leaf] += 1
                self._last[leaf] = done.result().id

    def set(self, leaf: int, size: int) -> None:
        """A leaf has forgotten some, and holds so many."""
        with self._lock:
            self._sizes[leaf] = size

    def split(self, leaf: int, children: Mapping[int, tuple[int, int]]) -> None:
        """Two leaves have the place of one."""
        with self._lock:
            del self._sizes[leaf], self._last[leaf]
            for child, (size, last) in children.items():
                self._sizes[child], self._last[child] = size, last

    def save(self) -> None:
        """Write them; StoreError if another owner has taken over."""
        with self._saving:  # one after the other; lessons need not wait for the disk
            with self._lock:
                self._unsaved, counts = 0, dict(self._sizes)
            self._place.save_counts(counts)

    def try_to_save(self) -> None:
        """`save`, where a disk that fails is no failure of what was asked for."""
        try:
            self.save()
        except OSError as error:
            told = f"The examples of each leaf could not be counted: {error}"
            warnings.warn(told, StoreWarning, stacklevel=5)

    def save_nothing(self) -> None:
        """Until the next `save`, nothing is known."""
        with self._saving:
            self._place.save_counts({})
