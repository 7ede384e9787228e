"""One leaf of a tree: a classifier of its own that speaks in records, and can become two."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anytimecl import checkpoint as checkpoints
from anytimecl.backbone import Backbone
from anytimecl.blend import Blend, Opinions, blend, none_of_these, speakers
from anytimecl.checkpoint import Checkpoint
from anytimecl.checkpointer import CHECKPOINT
from anytimecl.classifier import AnytimeClassifier
from anytimecl.codec import Codec
from anytimecl.errors import StoreError
from anytimecl.experts import GaussianExpert
from anytimecl.files import sync_all
from anytimecl.memory import Report, Store, open_memory, verify
from anytimecl.model import VECTORS
from anytimecl.predicting import AskedLabels, digest_of
from anytimecl.recording import Record, RecordError
from anytimecl.registry import Choice
from anytimecl.sampling import SAMPLERS
from anytimecl.scale.instances import instances_of
from anytimecl.scale.routes import two_means
from anytimecl.scale.shortlist import ManyLabels, named
from anytimecl.tail import TailInput, images_of
from anytimecl.trainer import Learned

CHUNK = 256  # examples that are looked at in one go
CLASSIFIER = ("weights.classifier", "first.classifier", "second.classifier")


class LeafLesson(NamedTuple):
    """An example on its way to a leaf."""

    record: bytes  # of the codec
    label: str
    candidates: tuple[str, ...] | None = None
    key: str | None = None
    content: int | None = None  # digest of its tokens, where they were seen


class Former(Learned):
    """What is said of a lesson whose image has been taught again under another key since."""

    now: LeafLesson | None = None  # as what it is known by now, unless that cannot be read


class Emptied(Learned):
    """What is said of a lesson that took the leaf's last example of another label."""

    __slots__ = ()


class LeafAnswer(NamedTuple):
    """What a leaf says of a batch of images."""

    opinions: Opinions
    values: Tensor  # [image, label], blended
    none: Tensor  # [image], probability of none of the labels
    spoke: list[str]  # [image], the expert whose word weighs most

    @classmethod
    def of(cls, opinions: Opinions, choice: Choice[Blend]) -> LeafAnswer:
        """By a blend; experts are heard now, and need not travel."""
        values = blend(choice, opinions)
        spoke = speakers(choice, opinions, values.argmax(1))
        bare = Opinions(opinions.tuned, opinions.original, opinions.other, opinions.records)
        return cls(bare, values, none_of_these(opinions), spoke)


def _tuple(candidates: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if candidates is None else tuple(candidates)


def keys_in(memory: Store, after: int = 0) -> list[str]:
    """The keys of examples stored after an event."""
    with memory.reading() as db:
        wanted = "SELECT key FROM example WHERE id > ? AND key IS NOT NULL"
        return [key for (key,) in db.execute(wanted, (after,))]


def image_vectors(backbone: Backbone, tokens: Tensor | TailInput) -> Tensor:
    """Unit vectors [image, dim] of the original model, by which images find their leaf."""
    with torch.no_grad():
        return images_of(backbone.tail, backbone.spec.tail, tokens)


def vector_of(backbone: Backbone, codec: Codec, record: bytes) -> Tensor:
    """Of a record [dim], as whoever divides a leaf will see it; RecordError if it is damaged."""
    try:
        tokens = codec.decode([record], backbone.device)
    except StoreError as error:
        raise RecordError(str(error)) from error
    except (ValueError, IndexError) as error:  # its checksum is right and what it holds is not
        raise RecordError(f"The record is damaged: {error}.") from error
    vector = image_vectors(backbone, tokens)[0].cpu()
    if not vector.isfinite().all():
        raise RecordError("The record is damaged: it holds numbers that are not finite.")
    return vector


class Leaf(AnytimeClassifier):
    """A classifier over its own share of the examples."""

    def learn_record(self, lesson: LeafLesson) -> Learned:
        """`learn_one` for an image that was encoded elsewhere; the record was checked there."""
        record = Record(lesson.record, lesson.content)
        learned = self._learn(record, lesson.label, lesson.candidates, lesson.key)
        if learned.replaced is None or learned.replaced in self.labels:
            return learned
        return Emptied(*learned)

    def extent(self) -> tuple[int, int]:
        """How many examples there are, and the last event: whatever is newer has a higher id."""
        with self.memory.reading():
            return len(self.memory), self.memory.last

    def answer(self, tokens: Tensor, labels: Sequence[str], vectors: Tensor) -> LeafAnswer:
        """What this leaf says of images [image, token, width] over labels [label, dim]."""
        opinions = self._opinions(tokens, AskedLabels(tuple(labels), list(labels), vectors))
        return LeafAnswer.of(opinions, self.settings.blend)

    def shortlist(self, tokens: Tensor, many: ManyLabels) -> list[list[int]]:
        """The places of labels that images [image, token, width] could have, of very many."""
        with self._lock.reading():
            model = self._trainer.model
            found = named(model, tokens, many)
        for own, places in zip(tokens, found, strict=True):
            known = self.memory.find_content(digest_of(own))
            if known is not None and known[1] in many.place:
                places.add(many.place[known[1]])
        return [sorted(places) for places in found]

    def known_labels(self) -> list[str]:
        """Every label with an example here."""
        return self.labels

    def forget_label(self, label: str) -> int:
        """Remove every example of a label, for good."""
        return int(self.forget(label=label))

    def known(self, lesson: LeafLesson) -> Learned | None:
        """What to say of a lesson whose key taught here; an error if that was something else."""
        if lesson.key is None:
            return None
        with self._learning:
            self._catch_up()
            record = Record(lesson.record, lesson.content)
            return self._known(lesson.key, lesson.label, record)

    def _known(self, key: str, label: str, record: Record) -> Learned | None:
        known = super()._known(key, label, record)
        if known is None or self.memory.has_key(key) is not None:
            return known
        former = Former(*known)
        former.now = next(iter(self._lessons([known.id])), None)
        return former

    def checked(self) -> tuple[Report, list[str]]:
        """Whether everything stored can be read, and every key."""
        return verify(self.memory), keys_in(self.memory)

    def keys_after(self, event: int) -> tuple[list[str], int]:
        """The keys of examples stored after an event, and the last event."""
        with self.memory.reading():
            return keys_in(self.memory, event), self.memory.last

    def lessons_after(self, event: int) -> tuple[list[LeafLesson], int]:
        """Some examples stored after an event, as they were taught, and the last of these."""
        with self.memory.reading() as db:
            after = "SELECT id FROM example WHERE id > ? ORDER BY id LIMIT ?"
            ids = [example for (example,) in db.execute(after, (event, CHUNK))]
        return self._lessons(ids), ids[-1] if ids else event

    def _lessons(self, ids: Sequence[int]) -> list[LeafLesson]:
        """Examples as they would be taught now; the damaged are left out."""
        return [
            LeafLesson(row.record, row.label, _tuple(row.candidates), row.key, row.content)
            for _, row in self.memory.rows(ids)
        ]

    def vectors(self) -> tuple[list[int], Tensor]:
        """Every example that can be read, and its vector [example, dim]."""
        return self._trainer.images([example for example, _ in self.memory.ids()])

    def divide(self, folders: tuple[Path, Path]) -> Tensor | None:
        """Make two leaves of this one, each with the half of the examples nearer to its centre.

        Gives their centres [2, dim]; None, and nothing is made, where all examples are alike. This
        leaf stays as it is, for whoever asks it meanwhile.
        """
        with self._learning:
            self._catch_up()
            ids, vectors = self.vectors()
            halves = two_means(vectors) if len(ids) > 1 else None
            if halves is None:
                return None
            saved = self._trainer.checkpoint()
            for part, folder in enumerate(folders):
                own = (halves.side == part).nonzero().flatten().tolist()
                self._found(folder, [ids[i] for i in own], vectors[own], saved)
                sync_all(folder)  # before anybody relies on it
            return halves.centres

    def _found(self, folder: Path, ids: Sequence[int], vectors: Tensor, saved: Checkpoint) -> None:
        """A leaf with some of the examples, starting from the weights of this one.

        It has the estimates and weights of this one, but statistics, evidence and remembered
        images of its own examples alone.
        """
        shutil.rmtree(folder, ignore_errors=True)  # of an attempt that was cut short
        with open_memory(folder, create=dict(self.memory.meta)) as memory:
            sampler = SAMPLERS.make(self.settings.sampler)
            named: list[str] = []
            added: list[int] = []
            for start in range(0, len(ids), CHUNK):
                rows = [row for _, row in self.memory.rows(ids[start : start + CHUNK])]
                for example, row in zip(memory.append_many(rows), rows, strict=True):
                    sampler.add(example, row.label)
                    named.append(row.label)
                    added.append(example)
            numbers = dict(zip(ids, added, strict=True))
            with self.memory.reading(), memory.writing():  # a late retry comes to the child
                for key, used in self.memory.keys.rows():
                    if used.example in numbers:
                        memory.keys.copy(key, used._replace(example=numbers[used.example]))
            labels = list(memory.labels())
            estimates = saved.state["estimates"]
            known = {name: e for name, e in estimates["labels"].items() if name in labels}
            rows_kept = torch.tensor([saved.state["labels"].index(name) for name in labels])
            evidence, tensors = _evidence(saved, numbers)
            state = {
                **saved.state,
                "labels": labels,
                "sampler": sampler.state(),
                "evidence": evidence,
                "experts": [],  # those from outside count their own when it is opened
                "estimates": {**estimates, "labels": known},
            }
            tensors = {
                name: value[rows_kept] if name in (VECTORS, *CLASSIFIER) else value
                for name, value in {**saved.tensors, **tensors}.items()
                if not name.startswith("expert.")
            }
            tensors |= instances_of(self._trainer.model, numbers, labels)
            expert = GaussianExpert(vectors.shape[1], self.backbone.prior)
            place = {label: row for row, label in enumerate(labels)}
            expert.count(added, [place[label] for label in named], vectors, len(labels))
            tensors |= expert.state()
            child = dataclasses.replace(saved, event=memory.last, tensors=tensors, state=state)
            checkpoints.save(child, folder / CHECKPOINT)


def _evidence(
    saved: Checkpoint, numbers: Mapping[int, int]
) -> tuple[list[list[Any]], dict[str, Tensor]]:
    """The evidence that is of some examples, under their numbers there."""
    told = saved.state.get("evidence", [])
    own = [at for at, (example, _) in enumerate(told) if example in numbers]
    kept = {
        name: value[own] for name, value in saved.tensors.items() if name.startswith("evidence.")
    }
    return [[numbers[told[at][0]], told[at][1]] for at in own], kept
