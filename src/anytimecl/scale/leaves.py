"""Where leaves live: the promise to the tree, and the plain case of this very process."""

from __future__ import annotations

import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
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
    """A leaf that cannot be asked now."""


def leaf_folder(folder: Path, leaf: int) -> Path:
    """Where a leaf's memory is."""
    return folder / f"leaf-{leaf:06d}"


@dataclass(frozen=True)
class Health:
    """How a leaf is."""

    leaf: int
    alive: bool  # it answered just now
    node: str  # where it runs
    pending: int  # lessons sent and not yet acknowledged
    restarts: int = 0


def holds_memory(place: Path) -> bool:
    """Whether there is a leaf's memory in a folder."""
    file = place / MEMORY_FILE
    return file.is_file() and file.stat().st_size > 0


def open_leaf(place: Path, *, create: bool, **options: Any) -> Leaf:
    """The leaf in a folder; where there is none, it is made if that is wanted.

    It is not where others rely on a leaf that was there: an empty one would hide the loss.
    """
    if not create and not holds_memory(place):
        raise StoreError(f"The leaf in {place} is missing: restore its folder from a backup.")
    return Leaf.open(place, **options)


class Leaves(Protocol):
    """All leaves of a tree. Lessons of one leaf are learned in the order of `teach`."""

    def start(
        self, leaves: Iterable[int], *, create: bool = True, within: float | None = None
    ) -> None:
        """These leaves answer from now on.

        With `create`, memories are made where there are none; without, a missing one is an error.
        `Unreachable` where they cannot be started in `within` seconds; `retire` gives up on them.
        """

    def introduce(self, labels: Iterable[str]) -> None:
        """Lessons with these labels are about to come; what that takes need hold up nobody."""

    def teach(self, leaf: int, lesson: LeafLesson) -> Future[Learned]:
        """The lesson is stored and learned when the result is there; it waits where it must."""
        ...

    def ask(
        self, leaf: int, tokens: Tensor, labels: Sequence[str], vectors: Tensor
    ) -> Future[LeafAnswer]:
        """What a leaf says; `Unreachable` where it cannot be asked now."""
        ...

    def shortlist(self, leaf: int, tokens: Tensor, many: ManyLabels) -> Future[list[list[int]]]:
        """As `Leaf` does; `Unreachable` where it cannot be asked now."""
        ...

    def call(self, leaf: int, method: str, *args: Any) -> Any:
        """Any other method of `Leaf`, after all that was taught before."""

    def retire(self, leaf: int, *, keep: bool = False) -> None:
        """The leaf is no more, whether it was started or not; its memory goes, unless kept."""

    def health(self) -> list[Health]:
        """How each leaf is."""
        ...

    def close(self) -> None:
        """Let go of everything; nothing acknowledged is lost."""


class Here:
    """Leaves in this process, one after the other.

    At most `awake` of them are held in RAM, those used last: the rest are in their checkpoints, and
    what is asked of one brings it back. So a hundred leaves need not cost a hundred blocks. With a
    `rank`, one that sleeps answers from a difference of that rank, nearly as it would awake. An
    acknowledged lesson survives a power cut or, with `durability="process"`, which is faster, the
    end of the process alone.
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
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def _with(self, leaf: int, work: Callable[[Leaf], T]) -> T:
        if self._awake is None:  # none is ever put to sleep, so each guards itself
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
    """The result of work that is done at once."""
    future: Future[T] = Future()
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
    return future
