"""Writes a memory's checkpoints in a background thread, and loads the latest."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from anytimecl import checkpoint as checkpoints
from anytimecl.checkpoint import Checkpoint
from anytimecl.errors import CheckpointError
from anytimecl.files import identity, shown
from anytimecl.memory import StoreWarning
from anytimecl.memory.database import FILE

CHECKPOINT = "checkpoint"
CHECKPOINT_EVERY = 256  # journal entries: at most so many are replayed after a crash


class Checkpointer:
    """Writes and loads checkpoints; without a folder, or read-only, `save` does nothing.

    >>> checkpointer = Checkpointer(None, read_only=False)
    >>> checkpointer.load() is None
    True
    >>> checkpointer.close()
    """

    def __init__(self, folder: Path | None, *, read_only: bool) -> None:
        self.unsaved = 0  # journal entries since the last checkpoint
        self.saved = 0  # event of the last checkpoint known to be on disk
        self._saving = 0  # event of the one being written
        self._place = None if folder is None else folder / CHECKPOINT
        self._memory = self._beside()
        self._read_only = read_only
        self._writer = ThreadPoolExecutor(1, "anytimecl-checkpoint")
        self._written: Future[None] | None = None

    @property
    def keeps(self) -> bool:
        """Whether there is a folder for checkpoints."""
        return self._place is not None

    @property
    def due(self) -> bool:
        """Whether the next checkpoint is due."""
        return self.unsaved >= CHECKPOINT_EVERY

    def load(self) -> Checkpoint | None:
        """Load the latest checkpoint."""
        if self._place is None or self._away:
            return None
        self.settle()
        load = checkpoints.load_beside_owner if self._read_only else checkpoints.load
        found = load(self._place)
        self.saved = 0 if found is None else found.event
        return found

    def save(self, take: Callable[[], Checkpoint], *, wait: bool = True) -> None:
        """Write the checkpoint that `take` returns; without `wait`, in the background."""
        self.unsaved = 0
        if self._place is None or self._read_only:
            return
        self.settle()
        if self._away:
            warnings.warn(
                f"The memory in {shown(self._place.parent)} was moved or removed while it was in "
                "use: no checkpoint is written, and opening it repeats what was learned since the "
                "last one.",
                StoreWarning,
                stacklevel=4,
            )
            return
        taken = take()
        self._written = self._writer.submit(checkpoints.save, taken, self._place)
        self._saving = taken.event
        if wait:
            written, self._written = self._written, None
            written.result()
            self.saved = self._saving

    def replace(self, take: Callable[[], Checkpoint]) -> None:
        """After forgetting, replace the checkpoint, which may include forgotten examples."""
        try:
            self.save(take)
        except CheckpointError as error:
            self.unsaved = 1  # so that closing tries again
            told = "It is forgotten, but the last checkpoint knows of it until the next is written."
            warnings.warn(f"{told} {error}", StoreWarning, stacklevel=3)

    @property
    def _away(self) -> bool:
        """Whether the memory was moved or removed since it was opened."""
        return self._beside() != self._memory

    def _beside(self) -> tuple[int, int] | None:
        """Identity of the memory file in the folder now."""
        return None if self._place is None else identity(self._place.with_name(FILE))

    def settle(self) -> None:
        """Wait for the background write. If it failed, warn: the journal has everything."""
        written, self._written = self._written, None
        if written is None:
            return
        error = written.exception()
        if error is None:
            self.saved = self._saving
        else:
            self.unsaved = max(self.unsaved, 1)
            warnings.warn(str(error), StoreWarning, stacklevel=4)

    def close(self) -> None:
        """Stop the background thread; later calls write nothing."""
        self._place = None
        self.unsaved = 0
        self._writer.shutdown()
