"""AnytimeClassifier: the one object that users meet."""

from __future__ import annotations

import dataclasses
import json
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anytimecl import checkpoint as checkpoints
from anytimecl.backbone import Backbone, Spec
from anytimecl.backbone import load as load_backbone
from anytimecl.blend import Opinions, blend, weights
from anytimecl.codec import make_codec
from anytimecl.errors import AnytimeError, LabelError, StoreError
from anytimecl.images import ImageSource, load_image
from anytimecl.labels import clean_label, clean_labels
from anytimecl.lock import TurnLock
from anytimecl.memory import RamMemory, Store, StoreWarning, backup, open_memory
from anytimecl.memory.database import FILE as MEMORY_FILE
from anytimecl.prediction import Prediction, predictions
from anytimecl.settings import Settings
from anytimecl.student import Learned, Progress, Student

Item = TypeVar("Item")
Made = TypeVar("Made")
CHECKPOINT = "checkpoint"
CHECKPOINT_EVERY = 256  # examples: what opening after a crash repeats at most


class LabelStats(NamedTuple):
    """What is known about one label."""

    examples: int
    tuned: float  # estimated accuracy, from examples scored before they were learned
    original: float
    weight: float  # of the tuned model in the blend


class AnytimeClassifier:
    """Open-vocabulary image classification that learns from every single labelled image.

    Threads: any number may predict while others learn. Learning happens one example at a time, in
    the order of arrival; a prediction waits for at most one update and never sees half of one.
    One process at a time owns a memory.
    """

    def __init__(
        self, backbone: Backbone, memory: Store, settings: Settings, folder: Path | None = None
    ) -> None:
        self.backbone = backbone
        self.memory = memory
        self.settings = settings
        self._folder = folder
        self._codec = make_codec(settings.codec, backbone.spec, backbone.tail)
        self._lock = TurnLock()  # guards the student
        self._learning = threading.Lock()  # one example at a time
        self._writer = ThreadPoolExecutor(1, "anytimecl-checkpoint")
        self._written: Future[None] | None = None
        self._student = self._new_student()
        load = checkpoints.load_beside_owner if memory.read_only else checkpoints.load
        saved = None if folder is None else load(folder / CHECKPOINT)
        if saved is not None:
            self._student.restore(saved)
        self._unsaved = self._student.replay()  # entries of the journal since the checkpoint

    @classmethod
    def open(
        cls,
        folder: str | Path | None = None,
        *,
        model: str | Path | Backbone = "embedded",
        settings: Settings | None = None,
        device: str = "cpu",
        read_only: bool = False,
        **options: Any,
    ) -> Self:
        """Create the memory in `folder`, or resume it; without a folder it lives in RAM.

        Other `options` go to the memory: `durability`, `cache_bytes`, `cap`.
        """
        backbone = model if isinstance(model, Backbone) else load_backbone(model, device=device)
        meta = {
            "settings": (settings or Settings()).to_json(),
            "spec": json.dumps(backbone.spec.to_dict()),
            "fingerprint": backbone.spec.fingerprint,
        }
        if folder is None:
            return cls(backbone, RamMemory(meta, **options), settings or Settings())
        create = None if read_only else meta
        if not (Path(folder) / MEMORY_FILE).exists():
            # Before the memory is made: what it is made with, it keeps.
            make_codec((settings or Settings()).codec, backbone.spec, backbone.tail)
        memory = open_memory(Path(folder), create=create, read_only=read_only, **options)
        try:
            _check_same_model(memory, backbone, folder)
            agreed = Settings.from_json(memory.meta["settings"]).agreed(settings)
            return cls(backbone, memory, agreed, Path(folder))
        except BaseException:
            memory.close()
            raise

    def predict(
        self, images: Any, labels: Sequence[str] | None = None, *, threshold: float = 1.0
    ) -> Any:
        """A `Prediction` for one image, a list of them for a list.

        It chooses among `labels`; without them, among every label learned so far. An image whose
        mass on "none of these" exceeds `threshold` gets that as its label.
        """
        many = isinstance(images, list | tuple)
        found = self.predict_tokens(
            self.encode(images if many else [images]), labels, threshold=threshold
        )
        return found if many else found[0]

    def predict_tokens(
        self, tokens: Tensor, labels: Sequence[str] | None = None, *, threshold: float = 1.0
    ) -> list[Prediction]:
        """`predict` for images that `encode` has seen already."""
        asked = self._asked(labels)
        opinions = self._opinions(tokens, asked)
        alpha = weights(self.settings.blend, opinions)
        return predictions(asked, opinions, alpha, blend(self.settings.blend, opinions), threshold)

    def predict_proba(
        self, images: Any, labels: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Blended probabilities in the order of `labels`: [label], or [image, label] for many."""
        many = isinstance(images, list | tuple)
        opinions = self._opinions(self.encode(images if many else [images]), self._asked(labels))
        values: NDArray[np.float32] = blend(self.settings.blend, opinions).cpu().numpy()
        return values if many else values[0]

    def learn_one(
        self,
        image: ImageSource,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """Learn one labelled image; it is durable when this returns.

        `candidates` are the labels it is told apart from; without them, every label seen. A `key`
        makes a retry harmless: the same key teaches once.
        """
        label, chosen = _check(label, candidates)
        return self._learn(self._record(image), label, chosen, key)

    def learn_tokens(
        self,
        tokens: Tensor,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """`learn_one` for the tokens [token, width] of an image that `encode` has seen already."""
        label, chosen = _check(label, candidates)
        return self._learn(self._codec.encode(tokens), label, chosen, key)

    def encode(self, images: Sequence[ImageSource]) -> Tensor:
        """The frozen trunk's tokens [image, token, width]: the slow part, and no lock is held."""
        return self.backbone.encode([load_image(image) for image in images])

    def learn_many(
        self,
        pairs: Iterable[tuple[ImageSource, str]],
        *,
        report: Callable[[Learned | AnytimeError], None] | None = None,
    ) -> int:
        """Learn one by one, in order; the next image is encoded while this one is learned.

        With `report`, every result goes to it, and an image or label that cannot be used is
        reported and left out; without it, the first such one raises, and all before it are kept.
        """

        def ready(pair: tuple[ImageSource, str]) -> tuple[bytes, str]:
            return self._record(pair[0]), clean_label(pair[1])

        count = 0
        for result in _one_ahead(pairs, ready):
            try:
                record, label = result()
                learned = self._learn(record, label, None, None)
            except AnytimeError as error:
                if report is None or isinstance(error, StoreError):
                    raise
                report(error)
            else:
                count += 1
                if report is not None:
                    report(learned)
        return count

    def consolidate(self, epochs: int = 10, *, progress: Progress | None = None) -> None:
        """Train offline over the whole memory; for any idle moment."""
        if not isinstance(epochs, int) or epochs < 1:
            raise ValueError(f"epochs is a whole number from 1, not {epochs!r}.")
        with self._learning:
            self._catch_up()
            event = self.memory.record_event("consolidate", {"epochs": epochs})
            self._unsaved += 1
            self._student.consolidate(epochs, event, progress)
            self._save()

    def forget(self, *, example_id: int | None = None, label: str | None = None) -> int:
        """Remove an example, or every example of a label, for good; returns how many.

        What the weights took from them stays until `rebuild`; `consolidate` wears it down.
        """
        if (example_id is None) == (label is None):
            raise LabelError("Say what to forget: either example_id=... or label=...")
        with self._learning:
            self._catch_up()
            if label is not None:
                gone = [example for example, _ in self.memory.ids(clean_label(label))]
            else:
                assert example_id is not None
                gone = [example_id]
            count = self.memory.forget(gone)
            if example_id is not None and not count:
                raise StoreError(f"There is no example {example_id}: it may be forgotten already.")
            if count:
                self._catch_up()
                self._save()  # a later recovery must not look for what is gone
        return count

    def rebuild(self, *, progress: Progress | None = None) -> None:
        """Learn everything in the memory again from the start, as if the forgotten never were."""
        with self._learning:
            again = self._new_student()
            again.replay(progress)
            with self._lock.writing():
                self._student = again
            self._save()

    def __len__(self) -> int:
        """Examples stored."""
        return len(self.memory)

    @property
    def labels(self) -> list[str]:
        """Every label with a stored example, in order of first appearance."""
        return list(self.memory.labels())

    def stats(self) -> dict[str, LabelStats]:
        """Per label: examples, both models' estimated accuracies, and the tuned model's weight."""
        counts = self.memory.labels()
        if not counts:
            return {}
        even = torch.full((1, len(counts)), 1 / len(counts))
        with self._lock.reading():
            opinions = Opinions(even, even, torch.zeros(1), *self._evidence(list(counts)))
        alpha = weights(self.settings.blend, opinions).expand(1, -1)[0].tolist()
        return {
            label: LabelStats(count, record.tuned, record.original, weight)
            for (label, count), record, weight in zip(
                counts.items(), opinions.records, alpha, strict=True
            )
        }

    def save_pretrained(self, folder: str | Path) -> None:
        """Everything, memory included, as a folder that `from_pretrained` opens."""
        folder = Path(folder)
        if folder.exists() and any(folder.iterdir()):
            raise StoreError(f"{folder} is not empty: save into a new folder.")
        with self._learning:
            backup(self.memory, folder)
            checkpoints.save(self._student.checkpoint(), folder / CHECKPOINT)

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> Self:
        """What `save_pretrained` saved; it goes on learning in that folder."""
        if not (Path(folder) / MEMORY_FILE).exists():
            raise StoreError(f"There is no saved classifier in {folder}.")
        return cls.open(folder, **options)

    def close(self) -> None:
        """Write a checkpoint and let go of the memory; a second call does nothing."""
        with self._learning:
            try:
                if not self._settled() or self._unsaved:
                    self._save()
            finally:
                self._folder = None
                self._unsaved = 0
                self._writer.shutdown()
                self.memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _asked(self, labels: Sequence[str] | None) -> list[str]:
        asked = self.labels if labels is None else clean_labels(labels)
        if not asked:
            raise LabelError("Nothing is learned yet: say which labels to choose from.")
        return asked

    @torch.no_grad()
    def _opinions(self, tokens: Tensor, asked: list[str]) -> Opinions:
        """Both models on the images."""
        vectors = self._student.embed(asked)
        with self._lock.reading():
            student = self._student
            records, overall = self._evidence(asked)
            original = student.learner.original_logits(tokens, vectors).softmax(1)
            if not any(record.seen for record in records):
                # Nothing learned may change an answer over labels never seen.
                return Opinions(
                    original, original, original.new_zeros(len(original)), records, overall
                )
            rows = torch.tensor([student.rows.get(label, -1) for label in asked])
            logits = student.learner.tuned_logits(tokens, vectors, rows.to(tokens.device))
            other = student.learner.other_logit.expand(len(logits), 1)
            none_of_these = torch.cat([logits, other], 1).softmax(1)[:, -1]
        return Opinions(logits.softmax(1), original, none_of_these, records, overall)

    def _evidence(self, labels: Sequence[str]) -> Any:
        """Copies of the labels' records and of the overall one."""
        estimates = self._student.estimates
        records = [dataclasses.replace(estimates.of(label)) for label in labels]
        return records, dataclasses.replace(estimates.overall)

    def _record(self, image: ImageSource) -> bytes:
        return self._codec.encode(self.encode([image])[0])

    def _learn(
        self, record: bytes, label: str, candidates: tuple[str, ...] | None, key: str | None
    ) -> Learned:
        with self._learning:
            if key is not None and (known := self.memory.has_key(key)) is not None:
                return Learned(known, right=True, tuned=True, original=True)
            self._catch_up()
            student = self._student
            student.check(label, candidates or ())
            example = self.memory.append(label, record, candidates, key)
            evicted = self.memory.events(example) if self.memory.last > example else ()
            student.forget([event.data["example"] for event in evicted])
            learned = student.teach(example, label, record, candidates)
            student.event = self.memory.last
            self._unsaved += 1
            if self._unsaved >= CHECKPOINT_EVERY:
                self._save(wait=False)
            return learned

    def _new_student(self) -> Student:
        return Student(self.backbone, self._codec, self.memory, self.settings, self._lock)

    def _catch_up(self) -> None:
        """Live through what the journal has and the student has not: an interrupted lesson."""
        if self._student.event < self.memory.last:
            self._student.replay()

    def _save(self, wait: bool = True) -> None:
        """A checkpoint, written beside learning unless it must be there at once."""
        self._unsaved = 0
        if self._folder is None or self.memory.read_only:
            return
        self._settled()
        taken = self._student.checkpoint()
        self._written = self._writer.submit(checkpoints.save, taken, self._folder / CHECKPOINT)
        if wait:
            written, self._written = self._written, None
            written.result()

    def _settled(self) -> bool:
        """Wait for the checkpoint that is being written. If it fails, nothing learned is lost."""
        written, self._written = self._written, None
        error = None if written is None else written.exception()
        if error is not None:
            warnings.warn(str(error), StoreWarning, stacklevel=4)
        return error is None


def _check(label: str, candidates: Sequence[str] | None) -> tuple[str, tuple[str, ...] | None]:
    cleaned = clean_label(label)
    if candidates is None:
        return cleaned, None
    chosen = clean_labels(candidates)
    if cleaned not in chosen:
        raise LabelError(f"The label {cleaned!r} is not among its candidates.")
    return cleaned, tuple(chosen)


def _check_same_model(memory: Store, backbone: Backbone, folder: str | Path) -> None:
    if memory.meta["fingerprint"] != backbone.spec.fingerprint:
        made_with = Spec.from_dict(json.loads(memory.meta["spec"])).name
        raise StoreError(
            f"The memory in {folder} was made with the model {made_with!r}, whose features differ "
            f"from those of {backbone.spec.name!r}. Open it with that model, or start another."
        )


def _one_ahead(items: Iterable[Item], work: Callable[[Item], Made]) -> Iterator[Callable[[], Made]]:
    """Results in order, each worked out while the one before it is being used."""
    with ThreadPoolExecutor(1, "anytimecl-encode") as pool:
        waiting: Future[Made] | None = None
        try:
            for item in items:
                before, waiting = waiting, pool.submit(work, item)
                if before is not None:
                    yield before.result
        except Exception:  # of the items themselves: what they gave before it still counts
            if waiting is not None:
                yield waiting.result
            raise
        if waiting is not None:
            yield waiting.result
