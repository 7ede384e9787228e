"""Numbers of acknowledged examples by leaf, stored on disk so that a loss is detected."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import Future

from anytimecl.memory import StoreWarning
from anytimecl.scale.tree_folder import TreeFolder
from anytimecl.trainer import Learned

EVERY = 256  # examples between two writes


class Counts:
    """Lower bounds of each leaf's number of examples.

    Stored counts may be old, since examples are only added; before removing any, `save_nothing`.
    """

    def __init__(self, place: TreeFolder, extents: Mapping[int, tuple[int, int]]) -> None:
        self._place = place
        self._sizes = {leaf: size for leaf, (size, _) in extents.items()}
        self._last = {leaf: last for leaf, (_, last) in extents.items()}  # highest id
        self._unsaved = 0
        self._lock = threading.Lock()
        self._saving = threading.Lock()

    @property
    def due(self) -> bool:
        """Whether the next write is due."""
        return self._unsaved >= EVERY

    def acknowledged(self, leaf: int, done: Future[Learned]) -> None:
        """Count an acknowledged example, unless nothing was stored (a repeated key or image)."""
        if done.cancelled() or done.exception() is not None:
            return
        with self._lock:
            if leaf in self._sizes and done.result().id > self._last[leaf]:
                self._unsaved += 1
                self._sizes[leaf] += 1
                self._last[leaf] = done.result().id

    def set(self, leaf: int, size: int) -> None:
        """Set a leaf's count, after forgetting."""
        with self._lock:
            self._sizes[leaf] = size

    def split(self, leaf: int, children: Mapping[int, tuple[int, int]]) -> None:
        """Replace a leaf by its two children."""
        with self._lock:
            del self._sizes[leaf], self._last[leaf]
            for child, (size, last) in children.items():
                self._sizes[child], self._last[child] = size, last

    def save(self) -> None:
        """Write the counts; StoreError if another owner has taken over."""
        with self._saving:  # serialises writes without blocking learning
            with self._lock:
                self._unsaved, counts = 0, dict(self._sizes)
            self._place.save_counts(counts)

    def try_to_save(self) -> None:
        """`save`, with a warning if the disk fails."""
        try:
            self.save()
        except OSError as error:
            told = f"The examples of each leaf could not be counted: {error}"
            warnings.warn(told, StoreWarning, stacklevel=5)

    def save_nothing(self) -> None:
        """Clear the stored counts until the next `save`."""
        with self._saving:
            self._place.save_counts({})
