"""The part of a classifier that replays its journal: after a crash, and to forget examples."""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

from torch import Tensor

from anytimecl.checkpoint import Checkpoint
from anytimecl.checkpointer import Checkpointer
from anytimecl.codec import Codec, ImageBytes
from anytimecl.errors import AnytimeError, CheckpointError, LabelError, StoreError
from anytimecl.journaled import JournaledTrainer
from anytimecl.labels import clean_label
from anytimecl.memory.censoring import purge
from anytimecl.memory.contract import Progress
from anytimecl.review import Review


class Forgotten(int):
    """Number of forgotten examples, and whether no influence on the model is left.

    >>> gone = Forgotten(2, clean=True)
    >>> gone == 2, gone.clean
    (True, True)
    """

    clean: bool

    def __new__(cls, examples: int, *, clean: bool) -> Self:
        made = super().__new__(cls, examples)
        made.clean = clean
        return made

    def __getnewargs_ex__(self) -> tuple[tuple[int], dict[str, bool]]:
        """For copying and pickling."""
        return (int(self),), {"clean": self.clean}


def number_of(example: Any) -> int:
    """The number of an example, of Python's own or NumPy's.

    >>> number_of("7")
    Traceback (most recent call last):
    TypeError: An example is named by its number, as learning it gave, not by '7'.
    """
    try:
        return operator.index(example)
    except TypeError:
        told = f"An example is named by its number, as learning it gave, not by {example!r}."
        raise TypeError(told) from None


class Recovery(Review):
    """Restores the model from a checkpoint and the journal."""

    trainer_type: type[JournaledTrainer] = JournaledTrainer
    _codec: Codec
    _learning: threading.Lock
    _checkpointer: Checkpointer

    def consolidate(self, epochs: int = 10, *, progress: Progress | None = None) -> None:
        """Train offline over the whole memory, when there is idle time.

        Atomic: if it is interrupted, nothing has changed. Predictions continue meanwhile, with the
        weights from before.

        Parameters
        ----------
        epochs
            Number of passes over all examples.
        progress
            Called with the steps done and their total.

        Raises
        ------
        ValueError
            `epochs` is not a whole number from 1.
        StoreError
            The memory is read-only, closed or damaged, or the disk is full.
        CheckpointError
            The training took effect, but there is no room for a checkpoint: opening the memory
            repeats it.
        """
        if not isinstance(epochs, int) or epochs < 1:
            raise ValueError(f"epochs is a whole number from 1, not {epochs!r}.")
        with self._learning:
            self.memory.check_writable()
            self._catch_up()

            def note() -> None:
                self.memory.record_event("consolidate", {"epochs": epochs})
                self._checkpointer.unsaved += 1

            self._trainer.consolidate(epochs, self.memory.last + 1, progress, note)
            self._save()

    def forget(self, *, example_id: int | None = None, label: str | None = None) -> Forgotten:
        """Delete an example, or every example of a label, permanently.

        Everything since the last checkpoint is replayed without them. If that checkpoint is older
        than all of them, no influence on weights and accuracies remains, and the result is `clean`.
        Otherwise, and always without a folder, some remains until `rebuild`; `consolidate` reduces
        it.

        Parameters
        ----------
        example_id
            Number of the example, `Learned.id`.
        label
            Label whose examples are forgotten.

        Returns
        -------
        Forgotten
            The number of examples, an `int` with the attribute `clean`.

        Raises
        ------
        LabelError
            Neither or both of the two are given.
        StoreError
            There is no such example, or the memory cannot be written.
        CheckpointError
            The last checkpoint is damaged, or one that is needed first cannot be written; nothing
            is forgotten.
        """
        if (example_id is None) == (label is None):
            raise LabelError("Say what to forget: either example_id=... or label=...")
        with self._learning:
            self._catch_up()
            saved = self._checkpointer.load()  # first, since it may be damaged
            if label is not None:
                gone = [example for example, _ in self.memory.ids(clean_label(label))]
            else:
                gone = [number_of(example_id)]
            if self._checkpointer.keeps and self._corrected_since(saved, gone):
                self._save()  # their corrections leave the journal with them
                saved = self._checkpointer.load()
            taken = self._taken(gone)
            count = self.memory.forget(gone)
            if example_id is not None and not count:
                raise StoreError(f"There is no example {example_id}: it may be forgotten already.")
            if not count:
                return Forgotten(0, clean=True)
            self._last_asked = None
            self._streams.clear()
            self._vectors.clear()
            if isinstance(self._codec, ImageBytes):
                self._codec.clear()
            if not self._checkpointer.keeps:
                self._catch_up(taken)
                return Forgotten(count, clean=False)
            self._lock.torn = True  # after an interrupt, the next call replays
            # As after a crash, so that a crash here leads to the same model.
            self._replace(self._recovered(saved, taken=taken))
            self._checkpointer.replace(self._trainer.checkpoint)
            purge(self.memory, self._checkpointer.saved)
            return Forgotten(count, clean=saved is None or saved.event < min(gone))

    def rebuild(self, *, progress: Progress | None = None) -> None:
        """Learn every stored example again, from the pre-trained weights.

        The result is as if forgotten examples had never been learned, and current labels had been
        given from the start.

        Parameters
        ----------
        progress
            Called with the steps done and their total.

        Raises
        ------
        StoreError
            The memory is closed or damaged.
        CheckpointError
            No checkpoint can be written; everything stays as it was.
        """
        with self._learning:
            trainer = self._recovered(None, progress, corrected=True)
            # First, since the journal has no entry for it: a full disk changes nothing.
            self._checkpointer.save(trainer.checkpoint)
            self._replace(trainer)
            self._purge()

    def _recovered(
        self,
        saved: Checkpoint | None,
        progress: Progress | None = None,
        *,
        keep: bool = False,
        taken: Mapping[int, tuple[str, Tensor]] | None = None,
        corrected: bool = False,
    ) -> JournaledTrainer:
        """A trainer restored from a checkpoint and a replay of the journal after it.

        With `keep`, checkpoints are written on the way, so that an interrupted replay can resume.
        With `corrected`, every example is learned with its current label.
        """
        trainer = self.trainer_type(
            self.backbone, self._codec, self.memory, self.settings, self._lock
        )
        if saved is not None:
            self.memory.admit_loss(saved.event)
            try:
                trainer.restore(saved, taken)
            except AnytimeError:
                raise
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise CheckpointError(
                    f"The checkpoint is damaged: its parts do not fit together ({error!r}). Delete "
                    "it: learning is repeated from the memory."
                ) from error
        self._checkpointer.unsaved = 0
        ahead = self.memory.last - trainer.event

        def step(done: int, _: int) -> None:
            self._checkpointer.unsaved += 1
            if keep and self._checkpointer.due:
                self._checkpointer.save(trainer.checkpoint, wait=False)
            if progress is not None:
                progress(done, ahead)

        trainer.replay(step, corrected=corrected)
        return trainer

    def _replace(self, trainer: JournaledTrainer) -> None:
        with self._lock.writing():
            self._trainer = trainer
            self._streams.clear()
        self._lock.torn = False

    def _catch_up(self, taken: Mapping[int, tuple[str, Tensor]] | None = None) -> None:
        """Replay journal entries that the trainer lacks, after an interrupted call."""
        if self._lock.torn:
            self._replace(self._recovered(self._checkpointer.load(), taken=taken))
        elif self._trainer.event < self.memory.last:
            images = {example: image for example, (_, image) in (taken or {}).items()}
            self._trainer.replay(taken=images)

    def _taken(self, examples: Sequence[int]) -> dict[int, tuple[str, Tensor]]:
        """Labels and image embeddings of those that exist and can be read."""
        label_of = self._trainer.label_of
        found, images = self._trainer.images([each for each in examples if label_of(each)])
        return {each: (label_of(each), image) for each, image in zip(found, images, strict=True)}

    def _save(self, *, wait: bool = True) -> None:
        self._checkpointer.save(self._trainer.checkpoint, wait=wait)
        self._purge()

    def _purge(self) -> None:
        """Delete undone examples, unless a replay from the checkpoint needs them."""
        if self.memory.closed:
            return  # by another thread; deleted next time
        keeps = self._checkpointer.keeps
        purge(self.memory, self._checkpointer.saved if keeps else self._trainer.event)

    def _corrected_since(self, saved: Checkpoint | None, examples: Sequence[int]) -> bool:
        """Whether the journal has corrections after a checkpoint that concern these examples.

        Those of any label that they ever had count: they leave the journal with the examples.
        """
        labels = {self._trainer.label_of(example) for example in examples}
        labels = self.memory.history().labels_of(examples, labels)
        since = self.memory.history(0 if saved is None else saved.event)
        return since.touches(examples, labels)
