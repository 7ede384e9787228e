"""The interface of a tree's leaves, and its implementation within one process."""

from __future__ import annotations

import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.errors import StoreError
from anytimecl.memory.database import FILE as MEMORY_FILE
from anytimecl.memory.database import Durability
from anytimecl.memory.store import CACHE_BYTES
from anytimecl.scale.leaf import Leaf, LeafAnswer, LeafLesson
from anytimecl.scale.lowrank import SleepingLeaf
from anytimecl.scale.shortlist import ManyLabels
from anytimecl.settings import Settings
from anytimecl.trainer import Learned

T = TypeVar("T")


class Unreachable(ConnectionError):
    """A leaf cannot be reached now."""


def leaf_folder(folder: Path, leaf: int) -> Path:
    """Folder of a leaf's memory."""
    return folder / f"leaf-{leaf:06d}"


@dataclass(frozen=True)
class Health:
    """State of a leaf."""

    leaf: int
    alive: bool  # whether it answers
    node: str  # on which it runs
    pending: int  # examples sent and not yet acknowledged
    restarts: int = 0


def holds_memory(place: Path) -> bool:
    """Whether a folder contains a leaf's memory."""
    file = place / MEMORY_FILE
    return file.is_file() and file.stat().st_size > 0


def open_leaf(place: Path, *, create: bool, **options: Any) -> Leaf:
    """Open the leaf in a folder; with `create`, make it if there is none.

    Without `create` where a leaf must exist: an empty one would hide its loss.
    """
    if not create and not holds_memory(place):
        raise StoreError(f"The leaf in {place} is missing: restore its folder from a backup.")
    return Leaf.open(place, **options)


class Leaves(Protocol):
    """The leaves of a tree. Each leaf learns in the order of calls to `teach`."""

    def start(
        self, leaves: Iterable[int], *, create: bool = True, within: float | None = None
    ) -> None:
        """Start leaves.

        With `create`, missing memories are created; without, they are an error. Raises
        `Unreachable` if starting takes more than `within` seconds; `retire` gives up on them.
        """

    def introduce(self, labels: Iterable[str]) -> None:
        """Announce labels of coming examples, to embed them without holding a lock."""

    def teach(self, leaf: int, lesson: LeafLesson) -> Future[Learned]:
        """Store and learn an example; returns a future."""
        ...

    def ask(
        self, leaf: int, tokens: Tensor, labels: Sequence[str], vectors: Tensor
    ) -> Future[LeafAnswer]:
        """A leaf's answer; `Unreachable` if it cannot be reached now."""
        ...

    def shortlist(self, leaf: int, tokens: Tensor, many: ManyLabels) -> Future[list[list[int]]]:
        """`Leaf.shortlist`; `Unreachable` if it cannot be reached now."""
        ...

    def call(self, leaf: int, method: str, *args: Any) -> Any:
        """Any other method of `Leaf`, after earlier examples were learned."""

    def retire(self, leaf: int, *, keep: bool = False) -> None:
        """End a leaf, started or not; its memory is deleted unless `keep`."""

    def health(self) -> list[Health]:
        """State of each leaf."""
        ...

    def close(self) -> None:
        """Close everything; nothing acknowledged is lost."""


class Here:
    """Leaves in this process, used one at a time.

    At most `awake` of them, the most recently used, are in RAM; the others are in their checkpoints
    and loaded on demand. With a `rank`, sleeping leaves predict approximately, from a low-rank
    difference of that rank. An acknowledged example survives a power cut or, with the faster
    `durability="process"`, only the end of the process.
    """

    def __init__(
        self,
        folder: Path,
        backbone: Backbone,
        settings: Settings,
        *,
        awake: int | None = None,
        rank: int | None = None,
        durability: Durability = "full",
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        if awake is not None and awake < 1:
            raise ValueError(f"At least one leaf is awake, not {awake}.")
        if rank is not None and settings.learner.tune != "block":
            raise ValueError("A leaf that tunes a classifier cannot be kept as a difference.")
        self._rank = rank
        self._asleep: dict[int, SleepingLeaf] = {}
        self._folder, self._backbone, self._settings = folder, backbone, settings
        self._awake = awake
        self._options: dict[str, Any] = {"durability": durability, "cache_bytes": cache_bytes}
        self._leaves: set[int] = set()
        self._open: OrderedDict[int, Leaf] = OrderedDict()
        self._lock = threading.RLock()

    def start(
        self, leaves: Iterable[int], *, create: bool = True, within: float | None = None
    ) -> None:
        for leaf in leaves:
            self._leaves.add(leaf)
            self._use(leaf, create=create)

    def introduce(self, labels: Iterable[str]) -> None:
        pass  # a leaf embeds its labels itself

    def teach(self, leaf: int, lesson: LeafLesson) -> Future[Learned]:
        return _done(lambda: self._with(leaf, lambda it: it.learn_record(lesson)))

    def ask(
        self, leaf: int, tokens: Tensor, labels: Sequence[str], vectors: Tensor
    ) -> Future[LeafAnswer]:
        with self._lock:
            asleep = None if leaf in self._open else self._asleep.get(leaf)
        if asleep is not None:
            return _done(lambda: asleep.answer(tokens, labels, vectors))
        return _done(lambda: self._with(leaf, lambda it: it.answer(tokens, labels, vectors)))

    def shortlist(self, leaf: int, tokens: Tensor, many: ManyLabels) -> Future[list[list[int]]]:
        return _done(lambda: self._with(leaf, lambda it: it.shortlist(tokens, many)))

    def call(self, leaf: int, method: str, *args: Any) -> Any:
        return self._with(leaf, lambda it: getattr(it, method)(*args))

    def retire(self, leaf: int, *, keep: bool = False) -> None:
        with self._lock:
            self._leaves.discard(leaf)
            self._asleep.pop(leaf, None)
            gone = self._open.pop(leaf, None)
            if gone is not None:
                gone.close()
        if not keep:
            shutil.rmtree(leaf_folder(self._folder, leaf), ignore_errors=True)

    def health(self) -> list[Health]:
        return [Health(leaf, alive=True, node="here", pending=0) for leaf in sorted(self._leaves)]

    def close(self) -> None:
        with self._lock, ExitStack() as closing:  # each, whatever becomes of the others
            self._leaves.clear()  # none is opened again
            while self._open:
                closing.callback(self._open.popitem()[1].close)

    def _with(self, leaf: int, work: Callable[[Leaf], T]) -> T:
        if self._awake is None:  # leaves never sleep, so each has its own lock
            return work(self._use(leaf))
        with self._lock:
            return work(self._use(leaf))

    def _use(self, leaf: int, *, create: bool = False) -> Leaf:
        with self._lock:
            if leaf not in self._leaves:
                raise Unreachable(f"There is no leaf {leaf} any more.")
            if leaf not in self._open:
                place = leaf_folder(self._folder, leaf)
                found = open_leaf(
                    place,
                    create=create,
                    model=self._backbone,
                    settings=self._settings,
                    **self._options,
                )
                self._asleep.pop(leaf, None)
                self._open[leaf] = found
                while self._awake is not None and len(self._open) > self._awake:
                    self._sleep(*self._open.popitem(last=False))
            self._open.move_to_end(leaf)
            return self._open[leaf]

    def _sleep(self, number: int, leaf: Leaf) -> None:
        if self._rank is not None:
            self._asleep[number] = SleepingLeaf(leaf, self._rank)
        leaf.close()


def _done(work: Callable[[], T]) -> Future[T]:
    """Run work immediately; returns a finished future."""
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
    return future
