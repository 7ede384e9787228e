"""AnytimeClassifier, the main class of the library."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Self

from anytimecl.acceleration import DeviceStreams
from anytimecl.backbone import Backbone
from anytimecl.checkpointer import Checkpointer
from anytimecl.codec import ImageBytes, make_codec
from anytimecl.errors import StoreError
from anytimecl.label_stats import LabelStats, label_stats
from anytimecl.lock import TurnLock
from anytimecl.memory import Store
from anytimecl.memory.contract import Progress
from anytimecl.memory.database import FILE as MEMORY_FILE
from anytimecl.opening import opened, store_of
from anytimecl.predicting import AskedLabels
from anytimecl.registry import Choice
from anytimecl.review import Vectors
from anytimecl.saving import Saving
from anytimecl.settings import Settings

__all__ = ["AnytimeClassifier", "LabelStats"]


class AnytimeClassifier(Saving):
    """Open-vocabulary image classification that learns from every single labelled image.

    Thread-safe: any number of threads may predict while others learn. Examples are learned one at a
    time, in order of arrival; a prediction waits for at most one update and never sees half of one.
    Only one process at a time may learn with a memory.

    Parameters
    ----------
    backbone
        The model; `open` loads it.
    memory
        The store of learned examples.
    settings
        How the model learns and predicts.
    folder
        The folder of the memory, for checkpoints; None keeps everything in RAM.
    progress
        Called with the number of replayed examples and their total.

    Examples
    --------
    >>> from PIL import Image
    >>> red, blue = Image.new("RGB", (32, 32), "red"), Image.new("RGB", (32, 32), "blue")
    >>> with AnytimeClassifier.open() as clf:  # in RAM; a folder makes it last
    ...     first = clf.predict(red, labels=["red", "blue"]).label
    ...     learned = [clf.learn_one(red, "stop"), clf.learn_one(blue, "go")]
    ...     first, clf.predict(blue, labels=["stop", "go"]).label, clf.labels
    ('red', 'go', ['stop', 'go'])
    """

    def __init__(
        self,
        backbone: Backbone,
        memory: Store,
        settings: Settings,
        folder: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.backbone = backbone
        self.memory = memory
        self.settings = settings
        self._streams = DeviceStreams(backbone.device)
        self._vectors = Vectors(backbone.spec.dim)
        self._codec = make_codec(settings.codec, backbone.spec, backbone.tail)
        if isinstance(self._codec, ImageBytes):
            self._codec.attach(self.encode)
        self._lock = TurnLock()  # guards the trainer's state
        self._learning = threading.Lock()  # one example at a time
        self._checkpointer = Checkpointer(folder, read_only=memory.read_only)
        self._last_asked: AskedLabels | None = None
        try:
            self._trainer = self._recovered(self._checkpointer.load(), progress, keep=True)
        except BaseException:
            self._checkpointer.close()  # or it might still write when the next owner does
            raise

    @classmethod
    def open(
        cls,
        folder: str | Path | None = None,
        *,
        model: Choice[Backbone] | Path | None = None,
        settings: Settings | None = None,
        store: Choice[Store] | None = None,
        device: str = "cpu",
        read_only: bool = False,
        progress: Progress | None = None,
        **options: Any,
    ) -> Self:
        """Create the memory in `folder`, or reopen it; without a folder it is kept in RAM.

        Parameters
        ----------
        folder
            Folder of the memory; None for one in RAM.
        model
            A name, {"name": ..., "options": {...}}, a folder or a loaded model. By default the
            memory's own, with its tail; "embedded" for a new memory.
        settings
            Settings of a new memory. Of an existing one, only blend and precision may differ.
        store
            The storage backend: a name, {"name": ..., "options": {...}}, or an open store. By
            default the one that made the memory; SQLite for a new one.
        device
            As torch names it.
        read_only
            Do not learn; another process may own the memory.
        progress
            Called with the number of replayed examples and their total.
        **options
            Of the store: `durability`, `cache_bytes`, `cap`, `thumbnails`.

        Returns
        -------
        AnytimeClassifier
            Ready to predict and to learn.

        Raises
        ------
        StoreError
            The memory is owned by another process, damaged, or made with another model or setting.
        CheckpointError
            The checkpoint is damaged; if it is deleted, learning is replayed from the memory.
        ModelError
            There is no such model, or it cannot be loaded.
        PartError
            There is no such store or model, or the model has no such option.
        TypeError
            The store has no such option.
        """
        place = None if folder is None else Path(folder).absolute()  # os.chdir must not change it
        named = store_of(store, place, options)
        backbone, memory, agreed = opened(place, named, model, settings, device, read_only)
        try:
            return cls(backbone, memory, agreed, place, progress)
        except BaseException:
            memory.close()
            raise

    def __len__(self) -> int:
        """Number of stored examples."""
        return len(self.memory)

    def stats(self) -> dict[str, LabelStats]:
        """Number of examples, running accuracies and the tuned model's weight for each label.

        Returns
        -------
        dict of str to LabelStats
            Statistics by label.
        """
        counts = self.memory.labels()
        with self._lock.reading():
            return label_stats(counts, self._trainer.model, self.settings.blend)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> Self:
        """Open what `save_pretrained` saved; it continues to learn in that folder.

        Parameters
        ----------
        folder
            Where it was saved.
        **options
            As `open` takes them.

        Returns
        -------
        AnytimeClassifier
            In the state in which it was saved.

        Raises
        ------
        StoreError
            There is no saved classifier in that folder.
        """
        if not (Path(folder) / MEMORY_FILE).exists():
            raise StoreError(f"There is no saved classifier in {folder}.")
        return cls.open(folder, **options)

    def __repr__(self) -> str:
        name, where = self.backbone.spec.name, self.memory.path
        place = "in RAM" if where is None else f"in {where.parent}"
        try:
            known = self.memory.labels()
        except StoreError:
            return f"<{type(self).__name__} of {name!r} {place}, closed>"
        told = f"{sum(known.values())} examples of {len(known)} labels"
        return f"<{type(self).__name__} of {name!r} {place}: {told}>"
