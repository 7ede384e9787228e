"""AnytimeClassifier: the one object that users meet."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anytimecl import checkpoint as checkpoints
from anytimecl.backbone import Backbone, Spec
from anytimecl.backbone import load as load_backbone
from anytimecl.blend import Opinions, blend, weights
from anytimecl.checkpoint import Checkpoint
from anytimecl.closing import Closing
from anytimecl.codec import Codec, FittedCodec, ImageBytes, make_codec
from anytimecl.codec.image import file_of
from anytimecl.errors import AnytimeError, LabelError, ModelError, StoreError
from anytimecl.images import ImageSource, load_image
from anytimecl.keeper import CHECKPOINT, Keeper
from anytimecl.labels import clean_label, clean_labels
from anytimecl.lane import Lane
from anytimecl.lock import TurnLock
from anytimecl.memory import RamMemory, Store, backup, open_memory
from anytimecl.memory.contract import Progress
from anytimecl.memory.database import FILE as MEMORY_FILE
from anytimecl.prediction import Prediction, predictions
from anytimecl.settings import Settings
from anytimecl.snapshot import Snapshot
from anytimecl.student import Learned, Student
from anytimecl.tail import embed

Item = TypeVar("Item")
Made = TypeVar("Made")
KEPT_BYTES = 1 << 28  # of label vectors that stay from one question to the next


class Forgotten(int):
    """How many examples were forgotten, and whether the model kept nothing of them.

    >>> gone = Forgotten(2, clean=True)
    >>> gone == 2, gone.clean
    (True, True)
    """

    clean: bool

    def __new__(cls, examples: int, *, clean: bool) -> Self:
        made = super().__new__(cls, examples)
        made.clean = clean
        return made


class RecordError(StoreError):
    """A record from elsewhere that is damaged, or of another model or codec."""


class _Asked(NamedTuple):
    """A question's labels, as given and as used, with their vectors [label, dim]."""

    given: tuple[str, ...]
    labels: list[str]
    vectors: Tensor


class _Guard(TurnLock):
    """Remembers that a change was interrupted halfway."""

    def __init__(self) -> None:
        super().__init__()
        self.torn = False

    @contextmanager
    def writing(self) -> Iterator[None]:
        with super().writing():
            try:
                yield
            except BaseException:
                self.torn = True
                raise


class LabelStats(NamedTuple):
    """What is known about one label."""

    examples: int
    tuned: float  # estimated accuracy, from examples scored before they were learned
    original: float
    weight: float  # of the tuned model in the blend


class AnytimeClassifier(Closing):
    """Open-vocabulary image classification that learns from every single labelled image.

    Threads: any number may predict while others learn. Learning happens one example at a time, in
    the order of arrival; a prediction waits for at most one update and never sees half of one.
    One process at a time owns a memory.
    """

    student_type: type[Student] = Student

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
        self._lane = Lane(backbone.device)  # for encoding
        self._snapshot = Snapshot(backbone.device)
        self._codec = _usable_codec(settings.codec, backbone)
        if isinstance(self._codec, ImageBytes):
            self._codec.attach(self.encode)
        self._lock = _Guard()  # guards the student
        self._learning = threading.Lock()  # one example at a time
        self._keeper = Keeper(folder, read_only=memory.read_only)
        self._last_asked: _Asked | None = None
        try:
            self._student = self._recovered(self._keeper.load(), progress, keep=True)
        except BaseException:
            self._keeper.close()  # or it might still write when the next owner does
            raise

    @classmethod
    def open(
        cls,
        folder: str | Path | None = None,
        *,
        model: str | Path | Backbone = "embedded",
        settings: Settings | None = None,
        device: str = "cpu",
        read_only: bool = False,
        progress: Progress | None = None,
        **options: Any,
    ) -> Self:
        """Create the memory in `folder`, or resume it; without a folder it lives in RAM.

        `progress` is told how far the journal is repeated, where there is no checkpoint of it all.
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
            _usable_codec((settings or Settings()).codec, backbone)
        memory = open_memory(Path(folder), create=create, read_only=read_only, **options)
        try:
            _check_same_model(memory, backbone, folder)
            agreed = Settings.from_json(memory.meta["settings"]).agreed(settings)
            return cls(backbone, memory, agreed, Path(folder), progress)
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
        asked = self._asked(labels)
        with self._snapshot.predicting():
            found = self._answers(self.encode(images if many else [images]), asked, threshold)
        return found if many else found[0]

    def predict_tokens(
        self, tokens: Tensor, labels: Sequence[str] | None = None, *, threshold: float = 1.0
    ) -> list[Prediction]:
        """`predict` for images that `encode` has seen already."""
        asked = self._asked(labels)
        with self._snapshot.predicting():
            return self._answers(tokens, asked, threshold)

    def predict_proba(
        self, images: Any, labels: Sequence[str] | None = None
    ) -> NDArray[np.float32]:
        """Blended probabilities in the order of `labels`: [label], or [image, label] for many.

        Each label is weighed by itself, so they need not sum to one.
        """
        many = isinstance(images, list | tuple)
        asked = self._asked(labels)
        with self._snapshot.predicting():
            opinions = self._opinions(self.encode(images if many else [images]), asked)
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
        return self._known(key) or self._learn(self._record(image), label, chosen, key)

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

    def learn_compressed(
        self,
        record: bytes,
        label: str,
        *,
        fingerprint: str,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> Learned:
        """`learn_one` for an image that was encoded and compressed elsewhere.

        `record` is what this memory's codec made of it, and `fingerprint` that of the model it was
        encoded with (`backbone.spec.fingerprint`): a record does not say that itself.
        """
        label, chosen = _check(label, candidates)
        self._check_record(record, fingerprint)
        return self._learn(bytes(record), label, chosen, key)

    def encode(self, images: Sequence[ImageSource]) -> Tensor:
        """The frozen trunk's tokens [image, token, width]: the slow part, and no lock is held."""
        loaded = [load_image(image) for image in images]
        with self._lane.taken():
            tokens = self.backbone.encode(loaded)
        if tokens.is_cuda:
            tokens.record_stream(torch.cuda.current_stream(tokens.device))  # it is read there
        return tokens

    def learn_many(
        self,
        examples: Iterable[tuple[ImageSource, str] | tuple[ImageSource, str, str | None]],
        *,
        report: Callable[[Learned | AnytimeError], None] | None = None,
    ) -> int:
        """`learn_one` for each (image, label) or (image, label, key); returns how many.

        The next image is encoded while this one is learned. With `report`, every result goes to it,
        and an image or label that cannot be used is reported and left out; without it, the first
        such one raises, and all before it are kept.
        """

        def ready(example: tuple[Any, ...]) -> Callable[[], Learned]:
            image, label, *rest = example
            label, key = clean_label(label), rest[0] if rest else None
            if (known := self._known(key)) is not None:
                return lambda: known
            record = self._record(image)
            return lambda: self._learn(record, label, None, key)

        count = 0
        for result in _one_ahead(examples, ready):
            try:
                learned = result()()
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
        """Train offline over the whole memory; for any idle moment.

        All of it counts or, if it is interrupted, nothing. Predictions go on meanwhile, from what
        was known before.
        """
        if not isinstance(epochs, int) or epochs < 1:
            raise ValueError(f"epochs is a whole number from 1, not {epochs!r}.")
        with self._learning:
            self.memory.check_writable()
            self._catch_up()

            def note() -> None:
                self.memory.record_event("consolidate", {"epochs": epochs})
                self._keeper.unsaved += 1

            self._student.consolidate(epochs, self.memory.last + 1, progress, note)
            self._save()

    def forget(self, *, example_id: int | None = None, label: str | None = None) -> Forgotten:
        """Remove an example, or every example of a label, for good; returns how many.

        What was learned since the last checkpoint is learned again without them, so the answer is
        `clean` if that checkpoint is older than they are: then weights and estimates kept nothing.
        Otherwise, and always without a folder, what they had taken stays until `rebuild`;
        `consolidate` wears it down.
        """
        if (example_id is None) == (label is None):
            raise LabelError("Say what to forget: either example_id=... or label=...")
        with self._learning:
            self._catch_up()
            saved = self._keeper.load()  # first, since it may be damaged
            if label is not None:
                gone = [example for example, _ in self.memory.ids(clean_label(label))]
            else:
                assert example_id is not None
                gone = [example_id]
            count = self.memory.forget(gone)
            if example_id is not None and not count:
                raise StoreError(f"There is no example {example_id}: it may be forgotten already.")
            if not count:
                return Forgotten(0, clean=True)
            self._last_asked = None
            self._snapshot.clear()
            if isinstance(self._codec, ImageBytes):
                self._codec.clear()
            if not self._keeper.keeps:
                self._catch_up()
                return Forgotten(count, clean=False)
            self._lock.torn = True  # an interrupt leaves it to the next call
            # As after a crash: so the model is the same whether there is one here or not.
            self._replace(self._recovered(saved))
            self._keeper.replace(self._student.checkpoint)
            return Forgotten(count, clean=saved is None or saved.event < min(gone))

    def rebuild(self, *, progress: Progress | None = None) -> None:
        """Learn everything in the memory again from the start, as if the forgotten never were."""
        with self._learning:
            self._replace(self._recovered(None, progress))
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
            self._catch_up()
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
                self._keeper.settle()
                if self._keeper.unsaved and not self._lock.torn:
                    self._save()
            finally:
                self._keeper.close()
                self.memory.close()

    def _asked(self, labels: Sequence[str] | None) -> _Asked:
        """The labels to choose from. A long list is often asked again, so the last one is kept."""
        if labels is None:
            given = tuple(self.labels)
            if not given:
                raise LabelError("Nothing is learned yet: say which labels to choose from.")
        else:
            given = tuple(labels if isinstance(labels, list | tuple) else clean_labels(labels))
        last = self._last_asked
        if last is not None and last.given == given:
            return last
        cleaned = clean_labels(given)
        asked = _Asked(given, cleaned, self._student.embed(cleaned))
        self._last_asked = asked if asked.vectors.nbytes <= KEPT_BYTES else None
        return asked

    def _answers(self, tokens: Tensor, asked: _Asked, threshold: float) -> list[Prediction]:
        opinions = self._opinions(tokens, asked)
        alpha = weights(self.settings.blend, opinions)
        values = blend(self.settings.blend, opinions)
        return predictions(asked.labels, opinions, alpha, values, threshold)

    @torch.no_grad()
    def _opinions(self, tokens: Tensor, asked: _Asked) -> Opinions:
        """Both models on the images."""
        with self._lock.reading():
            student = self._student
            records, overall = self._evidence(asked.labels)
            images = student.learner.original_images(tokens)
            original = student.learner.named(images, asked.vectors)
            if not any(record.seen for record in records):
                # Nothing learned may change an answer over labels never seen.
                alone, nothing = original.softmax(1), original.new_zeros(len(original))
                return Opinions(alone, alone, nothing, records, overall)
            rows = [student.rows.get(label, -1) for label in asked.labels]
            learner = self._snapshot.of(student.learner, self._lock.turn)
            places = torch.tensor(rows, device=tokens.device)
            tuned = learner.tuned_logits(tokens, asked.vectors, places)
            other = learner.other_logit  # a product, and so no longer what the next step changes
            means = student.means(rows)
        votes = None if means is None else means.votes(images)
        return Opinions.of(tuned, original, other, records, overall, votes)

    def _evidence(self, labels: Sequence[str]) -> Any:
        """Copies of the labels' records and of the overall one."""
        estimates = self._student.estimates
        found = [estimates.of(label) for label in labels]
        records = [dataclasses.replace(record) if record.seen else record for record in found]
        return records, dataclasses.replace(estimates.overall)

    def _record(self, image: ImageSource) -> bytes:
        if not isinstance(self._codec, ImageBytes):
            with self._lane.taken():  # a GPU's step goes on meanwhile
                return self._codec.encode(self.encode([image])[0])
        load_image(image)  # says best what is wrong with it
        record = self._codec.encode_image(file_of(image))
        self._codec.decode([record])  # kept for the lesson, and no lock is held now
        return record

    @torch.no_grad()
    def _check_record(self, record: bytes, fingerprint: str) -> None:
        """A record from elsewhere may be anything: what the frozen tail makes sense of may stay."""
        backbone = self.backbone
        if fingerprint != backbone.spec.fingerprint:
            raise RecordError(
                f"The record was made with another model ({fingerprint[:60]}) than this memory, "
                f"which is of {backbone.spec.name} ({backbone.spec.fingerprint}), and features of "
                "one cannot be turned into those of another: encode the image with that model."
            )
        try:
            tokens = self._codec.decode([record], backbone.device)
        except AnytimeError as error:
            raise RecordError(str(error)) from error
        except (ValueError, IndexError) as error:  # its checksum is right and what it holds is not
            raise RecordError(f"The record is damaged: {error}.") from error
        if not embed(backbone.tail, backbone.spec.tail, tokens).isfinite().all():
            raise RecordError("The record is damaged: it holds numbers that are not finite.")

    def _known(self, key: str | None) -> Learned | None:
        """What to say of a key that taught before."""
        known = None if key is None else self.memory.has_key(key)
        return None if known is None else Learned(known, right=True, tuned=True, original=True)

    def _learn(
        self, record: bytes, label: str, candidates: tuple[str, ...] | None, key: str | None
    ) -> Learned:
        with self._learning:
            if (known := self._known(key)) is not None:
                return known
            self._catch_up()
            student = self._student
            student.check(label, candidates or ())
            example = self.memory.append(label, record, candidates, key)
            evicted = self.memory.events(example) if self.memory.last > example else ()
            student.forget([event.data["example"] for event in evicted])
            learned = student.teach(example, label, record, candidates)
            student.event = self.memory.last
            self._keeper.unsaved += 1
            if self._keeper.due:
                self._save(wait=False)
            return learned

    def _recovered(
        self, saved: Checkpoint | None, progress: Progress | None = None, *, keep: bool = False
    ) -> Student:
        """A student who has lived through the whole journal, the first part by a checkpoint.

        With `keep`, checkpoints are written on the way: whoever stops it has not to start again.
        """
        student = self.student_type(
            self.backbone, self._codec, self.memory, self.settings, self._lock
        )
        if saved is not None:
            self.memory.admit_loss(saved.event)
            student.restore(saved)
        self._keeper.unsaved = 0
        ahead = self.memory.last - student.event

        def step(done: int, _: int) -> None:
            self._keeper.unsaved += 1
            if keep and self._keeper.due:
                self._keeper.save(student.checkpoint, wait=False)
            if progress is not None:
                progress(done, ahead)

        student.replay(step)
        return student

    def _replace(self, student: Student) -> None:
        with self._lock.writing():
            self._student = student
            self._snapshot.clear()
        self._lock.torn = False

    def _catch_up(self) -> None:
        """Live through what the journal has and the student has not: an interrupted lesson."""
        if self._lock.torn:
            self._replace(self._recovered(self._keeper.load()))
        elif self._student.event < self.memory.last:
            self._student.replay()

    def _save(self, *, wait: bool = True) -> None:
        self._keeper.save(self._student.checkpoint, wait=wait)


def _check(label: str, candidates: Sequence[str] | None) -> tuple[str, tuple[str, ...] | None]:
    cleaned = clean_label(label)
    if candidates is None:
        return cleaned, None
    chosen = clean_labels(candidates)
    if cleaned not in chosen:
        raise LabelError(f"The label {cleaned!r} is not among its candidates.")
    return cleaned, tuple(chosen)


def _usable_codec(name: str, backbone: Backbone) -> Codec:
    """The codec of that name, if a memory can be kept with it."""
    codec = make_codec(name, backbone.spec, backbone.tail)
    if isinstance(codec, FittedCodec):
        raise ModelError(
            f"The codec {name!r} must learn from a whole data set before it can store anything, "
            "and a memory begins with nothing: it is for comparisons (`anytimecl bench codecs`). "
            'Use "attention-pca", which stores more in as little.'
        )
    return codec


def _check_same_model(memory: Store, backbone: Backbone, folder: str | Path) -> None:
    if memory.meta["fingerprint"] != backbone.spec.fingerprint:
        made_with = Spec.from_dict(json.loads(memory.meta["spec"])).name
        codec = Settings.from_json(memory.meta["settings"]).codec
        if made_with == backbone.spec.name:
            raise StoreError(
                f"The memory in {folder} was made with another version of the model {made_with!r}, "
                f"whose features are others. {way_out(codec, folder)}"
            )
        raise StoreError(
            f"The memory in {folder} was made with the model {made_with!r}, whose features differ "
            f"from those of {backbone.spec.name!r}. Open it with that model "
            f'(model="{made_with}"; "embedded" is on a CPU, "embedded-float" anywhere), '
            "or start another. " + way_out(codec, folder)
        )


def way_out(codec: str, folder: str | Path) -> str:
    """What to do with a memory whose model is not the one that is wanted."""
    if codec == ImageBytes.name:
        return (
            f"It keeps the images: `anytimecl memory reencode {folder} --to NEW --model NAME` "
            "makes a memory for another model of them."
        )
    return (
        "Its features cannot be turned into those of another model; a memory made with "
        "`--codec image` could be."
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
