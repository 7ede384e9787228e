"""The part of a classifier that is saved as a folder, and closed."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from anytimecl import checkpoint as checkpoints
from anytimecl.checkpointer import CHECKPOINT
from anytimecl.closing import Closing
from anytimecl.errors import StoreError
from anytimecl.learning import Learning
from anytimecl.memory import backup
from anytimecl.opening import PRIOR


class Saving(Learning, Closing):
    """Saving and closing."""

    def save_pretrained(self, folder: str | Path) -> None:
        """Save everything, memory included, as a folder that `from_pretrained` opens.

        Parameters
        ----------
        folder
            A new or empty folder.

        Raises
        ------
        StoreError
            The folder is not empty, or cannot be written.
        CheckpointError
            There is no room for the checkpoint.
        """
        folder = Path(folder)
        if folder.is_file() or (folder.exists() and any(folder.iterdir())):
            raise StoreError(f"{folder} is not empty: save into a new folder.")
        if self.memory.closed:
            raise StoreError("The memory is closed: open it again.")
        with self._learning:
            self._catch_up()
            backup(self.memory, folder)
            if self.backbone.prior is not None:
                self.backbone.prior.save(folder / PRIOR)
            checkpoints.save(self._trainer.checkpoint(), folder / CHECKPOINT)

    def close(self) -> None:
        """Write a checkpoint and close the memory; a second call does nothing.

        Raises
        ------
        CheckpointError
            There is no room for the checkpoint: opening the memory replays from the one before.
        """
        with self._learning:
            try:
                self._checkpointer.settle()
                if self._checkpointer.unsaved and not self._lock.torn:
                    self._save()
            finally:
                self._checkpointer.close()
                self.memory.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "A classifier holds an open memory, which has one owner: it can be neither copied nor "
            "pickled. Save it (save_pretrained) and open the copy, or open its folder with "
            "read_only=True where it is needed."
        )
