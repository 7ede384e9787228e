"""A leaf of a tree: a classifier that learns from records, and can be split in two."""

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

CHUNK = 256  # examples decoded at once
CLASSIFIER = ("weights.classifier", "first.classifier", "second.classifier")


class LeafLesson(NamedTuple):
    """An example to be learned by a leaf: record, label, candidates and key."""

    record: bytes  # of the codec
    label: str
    candidates: tuple[str, ...] | None = None
    key: str | None = None
    content: int | None = None  # digest of its tokens, if known


class Former(Learned):
    """Result for a retry whose image was learned again with another key since."""

    now: LeafLesson | None = None  # its current lesson, if readable


class Emptied(Learned):
    """Result for a lesson that relabelled the leaf's last example of a label."""

    __slots__ = ()


class LeafAnswer(NamedTuple):
    """A leaf's answer for a batch of images."""

    opinions: Opinions
    values: Tensor  # [image, label], blended
    none: Tensor  # [image], probability of none of the labels
    spoke: list[str]  # [image], the expert that contributed most

    @classmethod
    def of(cls, opinions: Opinions, choice: Choice[Blend]) -> LeafAnswer:
        """Blend the scores, so that only the result is sent."""
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
    """Unit embeddings [image, dim] of the original model, for routing."""
    with torch.no_grad():
        return images_of(backbone.tail, backbone.spec.tail, tokens)


def vector_of(backbone: Backbone, codec: Codec, record: bytes) -> Tensor:
    """Embedding of a record [dim], for routing; RecordError if it is damaged."""
    try:
        tokens = codec.decode([record], backbone.device)
    except StoreError as error:
        raise RecordError(str(error)) from error
    except (ValueError, IndexError) as error:  # right checksum, wrong content
        raise RecordError(f"The record is damaged: {error}.") from error
    vector = image_vectors(backbone, tokens)[0].cpu()
    if not vector.isfinite().all():
        raise RecordError("The record is damaged: it holds numbers that are not finite.")
    return vector


class Leaf(AnytimeClassifier):
    """A classifier over a part of the examples."""

    def learn_record(self, lesson: LeafLesson) -> Learned:
        """`learn_one` for an image that was encoded elsewhere, with a record that was checked."""
        record = Record(lesson.record, lesson.content)
        learned = self._learn(record, lesson.label, lesson.candidates, lesson.key)
        if learned.replaced is None or learned.replaced in self.labels:
            return learned
        return Emptied(*learned)

    def extent(self) -> tuple[int, int]:
        """Number of examples, and number of the last event."""
        with self.memory.reading():
            return len(self.memory), self.memory.last

    def answer(self, tokens: Tensor, labels: Sequence[str], vectors: Tensor) -> LeafAnswer:
        """Answer for images [image, token, width] over labels [label, dim]."""
        opinions = self._opinions(tokens, AskedLabels(tuple(labels), list(labels), vectors))
        return LeafAnswer.of(opinions, self.settings.blend)

    def shortlist(self, tokens: Tensor, many: ManyLabels) -> list[list[int]]:
        """Indices of the most probable of very many labels, for images [image, token, width]."""
        with self._lock.reading():
            model = self._trainer.model
            found = named(model, tokens, many)
        for own, places in zip(tokens, found, strict=True):
            try:
                known = self.memory.find_content(digest_of(own))
            except StoreError:  # closed, as its leaf splits, or damaged: choose without it
                break
            if known is not None and known[1] in many.place:
                places.add(many.place[known[1]])
        return [sorted(places) for places in found]

    def known_labels(self) -> list[str]:
        """Every label with an example here."""
        return self.labels

    def forget_label(self, label: str) -> int:
        """Delete every example of a label, permanently."""
        return int(self.forget(label=label))

    def known(self, lesson: LeafLesson) -> Learned | None:
        """The result for a key that was used here; None if it is new; raises KeyUsedError."""
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
        """Report of `verify`, and all keys."""
        return verify(self.memory), keys_in(self.memory)

    def keys_after(self, event: int) -> tuple[list[str], int]:
        """The keys of examples stored after an event, and the last event."""
        with self.memory.reading():
            return keys_in(self.memory, event), self.memory.last

    def lessons_after(self, event: int) -> tuple[list[LeafLesson], int]:
        """Some examples stored after an event, and the event of the last of them."""
        with self.memory.reading() as db:
            after = "SELECT id FROM example WHERE id > ? ORDER BY id LIMIT ?"
            ids = [example for (example,) in db.execute(after, (event, CHUNK))]
        return self._lessons(ids), ids[-1] if ids else event

    def _lessons(self, ids: Sequence[int]) -> list[LeafLesson]:
        """Examples with their current labels, without damaged ones."""
        return [
            LeafLesson(row.record, row.label, _tuple(row.candidates), row.key, row.content)
            for _, row in self.memory.rows(ids)
        ]

    def vectors(self) -> tuple[list[int], Tensor]:
        """Every readable example, and its embedding [example, dim]."""
        return self._trainer.images([example for example, _ in self.memory.ids()])

    def divide(self, folders: tuple[Path, Path]) -> Tensor | None:
        """Create two leaves in `folders`, each with the examples nearer to its centre.

        Returns the centres [2, dim]; None if all examples are equal. This leaf is not changed, and
        can be used meanwhile.
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
                sync_all(folder)  # before it is used
            return halves.centres

    def _found(self, folder: Path, ids: Sequence[int], vectors: Tensor, saved: Checkpoint) -> None:
        """Create a leaf with some of the examples.

        It gets this leaf's weights and accuracies; statistics, evidence and instances of its own
        examples only.
        """
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted attempt
        with open_memory(folder, create=dict(self.memory.meta)) as memory:
            numbers, named = self._copied(ids, memory)
            sampler = SAMPLERS.make(self.settings.sampler)
            for example, label in zip(numbers.values(), named, strict=True):
                sampler.add(example, label)
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
                "experts": [],  # custom experts are recomputed when it is opened
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
            rows = [place[label] for label in named]
            expert.count(list(numbers.values()), rows, vectors, len(labels))
            tensors |= expert.state()
            child = dataclasses.replace(saved, event=memory.last, tensors=tensors, state=state)
            checkpoints.save(child, folder / CHECKPOINT)

    def _copied(self, ids: Sequence[int], memory: Store) -> tuple[dict[int, int], list[str]]:
        """Copy examples and their keys to a memory; their numbers there, and their labels."""
        added: list[int] = []
        named: list[str] = []
        for start in range(0, len(ids), CHUNK):
            rows = [row for _, row in self.memory.rows(ids[start : start + CHUNK])]
            added += memory.append_many(rows)
            named += [row.label for row in rows]
        numbers = dict(zip(ids, added, strict=True))
        with self.memory.reading(), memory.writing():  # a late retry comes to the child
            for key, used in self.memory.keys.rows():
                if used.example in numbers:
                    memory.keys.copy(key, used._replace(example=numbers[used.example]))
        return numbers, named


def _evidence(
    saved: Checkpoint, numbers: Mapping[int, int]
) -> tuple[list[list[Any]], dict[str, Tensor]]:
    """The evidence of some examples, with their new numbers."""
    told = saved.state.get("evidence", [])
    own = [at for at, (example, _) in enumerate(told) if example in numbers]
    kept = {
        name: value[own] for name, value in saved.tensors.items() if name.startswith("evidence.")
    }
    return [[numbers[told[at][0]], told[at][1]] for at in own], kept
