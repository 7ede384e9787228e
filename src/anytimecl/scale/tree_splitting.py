"""The part of a tree that splits full leaves, while the others learn and all of them predict."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from anytimecl.errors import StoreError
from anytimecl.memory import StoreWarning
from anytimecl.scale import splitting
from anytimecl.scale.counts import Counts
from anytimecl.scale.keys import KeyIndex
from anytimecl.scale.leaves import Unreachable, leaf_folder
from anytimecl.scale.pending import Lessons
from anytimecl.scale.splitting import LeafSplit, Undecided, split_leaf
from anytimecl.scale.tree_folder import UNREAD, TreeFolder
from anytimecl.scale.tree_predicting import TreePredicting

BACK_OFF = 30.0, 3600.0  # seconds until a split that failed is tried again, doubling, and at most


class TreeSplitting(TreePredicting):
    """Splits leaves in the background, one at a time; examples for a leaf that splits wait."""

    folder: Path
    capacity: int | None
    _place: TreeFolder
    _keys: KeyIndex
    _counts: Counts  # acknowledged
    _pending: Lessons
    _lock: threading.RLock  # one at a time decides where an example goes
    _changing: threading.RLock  # one at a time splits or forgets; before `_lock`
    _splitter: ThreadPoolExecutor
    _splitting: dict[int, Future[None]]  # examples for these leaves wait
    _moved: dict[int, tuple[int, int]]  # split, and its keys are not read yet
    _not_before: dict[int, tuple[float, float]]  # when to split again; the pause
    _limit: dict[int, int | None]  # examples above which a leaf is split
    _sizes: dict[int, int]  # examples sent
    _stopped: StoreError | None  # why learning has stopped

    def _meta(self) -> dict[str, str]:
        """Metadata of the routes."""
        raise NotImplementedError

    def _read_keys(self, leaf: int) -> None:
        """Update the index of keys from a leaf."""
        mark = self._keys.mark(leaf)
        keys, last = self.leaves.call(leaf, "keys_after", mark)
        if last < mark:  # an older memory was put in its place
            keys, last = self.leaves.call(leaf, "keys_after", 0)
        self._keys.add(leaf, keys, last)

    def _split_if_full(self, leaf: int) -> None:
        """Start splitting a leaf in the background; requires the lock."""
        limit = self._limit[leaf]
        if self._stopped is not None:  # nothing is learned any more
            return
        if limit is None or self._sizes[leaf] <= limit or leaf in self._splitting:
            return
        if time.monotonic() < self._not_before.get(leaf, (0.0, 0.0))[0]:
            return
        self._splitting[leaf] = self._splitter.submit(self._try_split, leaf, limit)

    def _try_split(self, leaf: int, limit: int) -> None:
        """Split a leaf if it is full; after a failure it is retried later."""
        failed = None
        try:
            with self._changing:
                self._settle_leaf(leaf)
                size = int(self.leaves.call(leaf, "__len__"))
                with self._lock:  # a repeated key stored nothing
                    self._sizes[leaf] = size
                if size > limit:
                    self._split(leaf)
        except Exception as error:
            failed = error
            pause = min(2 * self._not_before.get(leaf, (0.0, BACK_OFF[0] / 2))[1], BACK_OFF[1])
            self._not_before[leaf] = time.monotonic() + pause, pause
        finally:
            with self._lock:
                del self._splitting[leaf]
        if failed is not None:
            told = f"Leaf {leaf} could not be split, and goes on as it is: {failed}"
            if self._stopped is None:
                told += f" It is tried again in {pause:.0f} s."
            warnings.warn(told, StoreWarning, stacklevel=1)

    def _settle_leaf(self, leaf: int) -> None:
        """Wait until the leaf has learned its pending examples."""
        if wait(self._pending.of(leaf), splitting.ROOM).not_done:
            raise Unreachable(f"It has not learned what was sent to it in {splitting.ROOM:.0f} s.")

    def _split(self, leaf: int) -> None:
        """Split a leaf; see `split_leaf`."""
        try:
            made = split_leaf(self._place, self.leaves, self.routes, leaf, self._meta())
        except Undecided as error:
            self._stopped = error
            raise
        if made is None:  # all equal: retry at twice the number
            self._limit[leaf] = 2 * self._sizes[leaf]
            return
        with self._lock:
            whole = sum(size for size, _ in made.extents.values()) >= self._sizes[leaf]
            self._replace(leaf, made)
        try:
            self._clear_up(leaf, whole)
        except Exception as error:
            told = f"Leaf {leaf} has split; but: {error} The next owner clears up."
            warnings.warn(told, StoreWarning, stacklevel=1)
        with self._lock:
            for child in made.extents:  # a lopsided split may leave a child still too large
                self._split_if_full(child)

    def _replace(self, leaf: int, made: LeafSplit) -> None:
        """Use the two children instead of a leaf; requires the lock."""
        self.routes = made.routes
        self._moved[leaf] = new = min(made.extents), max(made.extents)
        del self._sizes[leaf], self._limit[leaf]
        self._not_before.pop(leaf, None)
        self._pending.drop(leaf)
        self._sizes |= {child: size for child, (size, _) in made.extents.items()}
        self._limit |= dict.fromkeys(new, self.capacity)
        self._counts.split(leaf, made.extents)

    def _clear_up(self, leaf: int, whole: bool) -> None:
        """Index what the children have, and retire a leaf that has split.

        Unless all of it could be read (`whole`), its folder is kept.
        """
        for child in self._moved[leaf]:
            self._read_keys(child)
            self._labels.put(child, self.leaves.call(child, "known_labels"))
        self._labels.drop(leaf)
        with self._lock:
            del self._moved[leaf]
        self._counts.save()
        self.leaves.retire(leaf, keep=not whole)
        if not whole:
            self._place.set_aside(leaf_folder(self.folder, leaf), UNREAD)

    @contextmanager
    def _occupied(self, leaf: int) -> Iterator[None]:
        """Make new examples for a leaf wait, without considering it stuck."""
        done: Future[None] = Future()
        with self._lock:
            mine = self._splitting.setdefault(leaf, done) is done  # else they wait already
        try:
            yield
        finally:
            with self._lock:
                if mine:
                    del self._splitting[leaf]
                self._pending.restart_clocks([leaf])
            done.set_result(None)
            with self._lock:
                if leaf in self._sizes:
                    self._split_if_full(leaf)
