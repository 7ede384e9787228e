"""Everything that learning changes, and the one way in which an example changes it.

A student depends on nothing but the backbone, the settings and the memory's journal. The same
journal gives the same student, bit for bit, whether it is lived through or repeated after a crash,
on one machine: another may round otherwise.
(Candidates that were never seen make an exception: their vectors may have been worked out beside
others, which a text side rounds otherwise.)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.backbone.text import LabelCache
from anytimecl.blend import Estimates, Opinions, blend
from anytimecl.captured import CapturedStep, Shelf
from anytimecl.checkpoint import Checkpoint
from anytimecl.codec import Codec
from anytimecl.errors import CheckpointError
from anytimecl.learner import AdamW, Batch, Learner
from anytimecl.lock import TurnLock
from anytimecl.memory import Memory
from anytimecl.memory.contract import Progress
from anytimecl.recall import COUNTS, SUMS, Means, Recall
from anytimecl.sampling import SAMPLERS
from anytimecl.settings import Settings
from anytimecl.tail import Seen

OFFLINE_CHUNK = 256  # examples of an offline batch in RAM at once
VECTORS = "vectors"  # of the labels, in a checkpoint


class Learned(NamedTuple):
    """A learned example, and who had been right about it before."""

    id: int
    right: bool  # the blended prediction
    tuned: bool
    original: bool


class Student:
    """The learner, its estimates, what it recalls, its sampler and its labels.

    One thread at a time may teach.
    """

    learner_type: type[Learner] = Learner

    def __init__(
        self, backbone: Backbone, codec: Codec, memory: Memory, settings: Settings, lock: TurnLock
    ) -> None:
        self.backbone = backbone
        self.codec = codec
        self.memory = memory
        self.settings = settings
        self.lock = lock  # held while writing, so that no reader sees half an update
        self.learner = self.learner_type(backbone.spec, backbone.tail, settings.learner)
        self.estimates = Estimates(settings.eta)
        self.recall = Recall(backbone.spec.dim)
        self.sampler = SAMPLERS[settings.sampler]()
        self.labels: list[str] = []  # seen, in order of first appearance
        self.rows: dict[str, int] = {}  # label -> its place in `labels`
        self.event = 0  # of the journal: how far this student has come
        self._vectors = torch.empty(0, backbone.spec.dim, device=backbone.device)
        # A text side rounds a label otherwise beside others, and the shared cache may hold such.
        self._alone = dataclasses.replace(backbone, label_cache=LabelCache())
        self._label_of: list[str] = []  # by example, "" for none: ids are dense enough for that
        self._examples: dict[str, int] = {}  # how many of each label
        on_gpu = CapturedStep.suits(self.learner)
        self._captured = CapturedStep(self.learner) if on_gpu else None
        self._shelf = Shelf(codec, backbone.device) if on_gpu else None

    def check(self, label: str, candidates: Sequence[str]) -> None:
        """An error if the text side refuses one of these: nothing is stored that cannot be taught.

        What it says of a new label is kept for teaching it.
        """
        if label not in self.rows:
            self._alone.embed_labels([label], self.settings.templates)
        new = [name for name in candidates if name not in self.rows]
        if new:
            self.embed(new)

    @torch.no_grad()
    def teach(
        self, example: int, label: str, record: bytes, candidates: Sequence[str] | None
    ) -> Learned:
        """The method, once: fill a batch, score the newcomer, update, remember.

        The newcomer is read back from its record, not from the image, so that it can be taught
        again in the same way.
        """
        random = Random(f"{self.settings.seed}:{example}")
        drawn = self.sampler.draw(self.settings.learner.batch - 1, random)
        stored = self.memory.read_ok(drawn)
        self._register(label)
        names = [label, *(self._label_of[i] for i, _ in stored)]
        sets = [candidates, *self.memory.candidates([i for i, _ in stored])]
        batch = self._batch([(example, record), *stored], names, sets)
        target = int(batch.target[0])

        if self.learner.optimiser.steps == 0:
            first = self.learner.named(self._image(batch), batch.vectors)[target]
            self.learner.begin(float(first))
        update = (self._captured or self.learner).look_ahead(batch)
        image = self._image(batch) if update.image is None else update.image
        original = self.learner.named(image, batch.vectors)
        # A number a label: a GPU would take longer to be told than a CPU to do it.
        tuned, original = torch.stack([update.logits[0], original]).cpu()
        original = original.masked_fill(tuned == -torch.inf, -torch.inf)
        image = image.cpu()
        learned = Learned(
            id=example,
            right=self._answer(tuned, original, image, batch.rows) == target,
            tuned=int(tuned.argmax()) == target,
            original=int(original.argmax()) == target,
        )
        rate = None if learned.tuned else self.learner.rate(self.estimates.of(label).seen)
        with self.lock.writing():
            self.learner.apply(update, rate)
            self.estimates.add(label, tuned=learned.tuned, original=learned.original)
            self.recall.add([self.rows[label]], image.unsqueeze(0))
            self._remember(example, label)
            self.event = example
        return learned

    @torch.no_grad()
    def consolidate(
        self,
        epochs: int,
        event: int,
        progress: Progress | None = None,
        done: Callable[[], object] = lambda: None,
    ) -> None:
        """Offline training over all that was stored before `event`, whose number is the seed.

        It is worked out on a copy and counts when all of it is there: nobody meets half of it, and
        whatever interrupts it leaves everything as it was. `done` is called just before it counts.
        """
        ids = [i for i, _ in self.memory.ids() if i < event]
        config = self.settings.learner
        size = min(config.offline_batch, len(ids))
        steps = epochs * -(-len(ids) // size) if ids else 0
        copy = self.learner_type(self.backbone.spec, self.backbone.tail, config)
        copy.restore(self.learner.state())
        optimiser = AdamW(copy.trainable(), config.weight_decay)
        for number, chosen in enumerate(_epochs(ids, size, epochs, Random(event))):
            gradients = self._offline_gradients(chosen, copy)
            if not gradients:
                continue  # every record of the batch is damaged
            copy.apply_offline(gradients, optimiser, number / steps, size)
            if progress is not None:
                progress(number + 1, steps)
        done()
        with self.lock.writing():
            self.learner.restore(copy.state())
            self.event = event

    def forget(self, examples: Sequence[int]) -> None:
        """Examples are gone; a label that has none left was never seen."""
        if not examples:
            return
        with self.lock.writing():
            if self._captured is not None:
                self._captured.clear()
            for example in examples:
                if self._shelf is not None:
                    self._shelf.drop(example)
                label = self._label_of[example] if example < len(self._label_of) else ""
                if not label:
                    continue  # never learned, or gone before
                self._label_of[example] = ""
                self.sampler.remove(example, label)
                self._examples[label] -= 1
                if not self._examples[label]:
                    self._retire(label)

    def replay(self, progress: Progress | None = None) -> int:
        """Live through what the journal holds after `event`; returns how many entries."""
        count = 0
        for event in self.memory.events(self.event):
            if event.kind == "learn":
                self._repeat(int(event.data["example"]))
            elif event.kind == "consolidate":
                self.consolidate(int(event.data["epochs"]), event.number)
            elif event.kind == "forget":
                self.forget(event.data["examples"])
                self._recall_again()
            elif event.kind == "evict":
                self.forget([event.data["example"]])
            self.event = event.number
            count += 1
            if progress is not None:
                progress(count, len(self.memory))
        return count

    def checkpoint(self) -> Checkpoint:
        """All of it, as of now."""
        with self.lock.reading():
            plain = {
                "estimates": self.estimates.state(),
                "sampler": self.sampler.state(),
                "labels": self.labels,
            }
            return Checkpoint(
                event=self.event,
                fingerprint=self.backbone.spec.fingerprint,
                config=json.loads(self.settings.to_json()),
                tensors={name: t.cpu().clone() for name, t in self._tensors().items()},
                state=json.loads(json.dumps(plain)),
            )

    def restore(self, saved: Checkpoint) -> None:
        """Continue from a checkpoint."""
        if saved.fingerprint != self.backbone.spec.fingerprint:
            raise CheckpointError("The checkpoint belongs to another model than its memory.")
        tensors = dict(saved.tensors)
        vectors = tensors.pop(VECTORS)
        for label, vector in zip(saved.state["labels"], vectors, strict=True):
            self._enter(label, vector)
        self.recall.restore({n: tensors.pop(n) for n in (SUMS, COUNTS) if n in tensors})
        self.learner.restore(tensors)
        self.estimates = Estimates.restored(saved.state["estimates"])
        for example, label in self.memory.ids():
            if example > saved.event:
                break
            if label not in self.rows:
                raise CheckpointError(
                    "The checkpoint belongs to another memory. Delete it: learning is repeated "
                    "from the memory."
                )
            self._remember(example, label)
        self.sampler.restore(saved.state["sampler"])
        for label in saved.state["labels"]:
            if label not in self._examples:  # forgotten since
                self._retire(label)
        self.event = saved.event

    def embed(self, labels: Sequence[str]) -> Tensor:
        """Label embeddings [label, dim]."""
        return self.backbone.embed_labels(labels, self.settings.templates)

    def means(self, rows: Sequence[int]) -> Means | None:
        """Of the images of these labels, if the blend listens to them."""
        listens = self.recall.whole and self.settings.blend == "recalled"
        return self.recall.means(rows) if listens else None

    @torch.no_grad()
    def images(self, examples: Sequence[int]) -> tuple[list[int], Tensor]:
        """Of these, every one that can be read, as the original model sees it: [example, dim]."""
        found, images = [], [torch.empty(0, self.backbone.spec.dim)]
        for start in range(0, len(examples), OFFLINE_CHUNK):
            stored = self.memory.read_ok(examples[start : start + OFFLINE_CHUNK])
            if stored:
                tokens = self.codec.decode([r for _, r in stored], self.backbone.device)
                images.append(self.learner.original_images(tokens).cpu())
                found += [example for example, _ in stored]
        return found, torch.cat(images)

    def _recall_again(self) -> None:
        """Nothing of a forgotten image may stay in a mean: who has the other images could tell it.

        (A label whose examples had to make room loses what it had of these, too.)
        """
        for label, row in self.rows.items():
            if not self.recall.whole or self.recall.counts[row] == self._examples[label]:
                continue
            _, images = self.images([i for i, its in enumerate(self._label_of) if its == label])
            with self.lock.writing():
                self.recall.replace(row, images)

    def _repeat(self, example: int) -> None:
        for _, record in self.memory.read_ok([example]):  # none, if it was forgotten since
            stored = self.memory.example(example)
            self.teach(example, stored.label, record, stored.candidates)

    def _image(self, batch: Batch) -> Tensor:
        """The newcomer as the original model sees it, [dim]."""
        tokens = batch.tokens
        newcomer = tokens.pick(slice(1)) if isinstance(tokens, Seen) else tokens[:1]
        return self.learner.original_images(newcomer)[0]

    def _answer(self, tuned: Tensor, original: Tensor, image: Tensor, rows: Tensor) -> int:
        """What would have been answered, as a column of the logits [label]."""
        asked = (tuned > -torch.inf).nonzero().flatten()  # the candidates: the rest do not count
        places = rows[asked.to(rows.device)].tolist()
        names = [self.labels[row] if row >= 0 else "" for row in places]
        means = self.means(places)
        opinions = Opinions.of(
            tuned[None, asked],
            original[None, asked],
            self.learner.other_logit.cpu(),
            [self.estimates.of(name) for name in names],
            self.estimates.overall,
            None if means is None else means.votes(image[None]),
        )
        return int(asked[blend(self.settings.blend, opinions)[0].argmax()])

    def _batch(
        self,
        stored: Sequence[tuple[int, bytes]],
        names: Sequence[str],
        sets: Sequence[Sequence[str] | None],
    ) -> Batch:
        """Records with their labels and candidate sets; without a set, every label seen."""
        device = self.backbone.device
        ids, records = zip(*stored, strict=True)
        decode = self.codec.decode
        tokens = self._shelf.take(ids, records) if self._shelf else decode(records, device)
        target = torch.tensor([self.rows[name] for name in names], device=device)
        known = len(self.labels)
        vectors, rows = self._vectors[:known], torch.arange(known, device=device)
        if all(some is None for some in sets):
            return Batch(tokens, target, vectors, rows)
        extra = sorted({y for some in sets if some is not None for y in some} - self.rows.keys())
        if extra:
            vectors = torch.cat([vectors, self.embed(extra)])
            rows = torch.cat([rows, rows.new_full((len(extra),), -1)])
        column = self.rows | {name: known + i for i, name in enumerate(extra)}
        mask = torch.full((len(names), len(vectors)), -torch.inf)
        for i, (name, some) in enumerate(zip(names, sets, strict=True)):
            if some is None:
                mask[i, :known] = 0
            else:
                mask[i, [column[y] for y in (*some, name)]] = 0
        return Batch(tokens, target, vectors, rows, mask.to(device))

    def _offline_gradients(self, chosen: Sequence[int], learner: Learner) -> dict[str, Tensor]:
        """The mean over an offline batch, worked out in chunks."""
        total: dict[str, Tensor] = {}
        count = 0
        for start in range(0, len(chosen), OFFLINE_CHUNK):
            stored = self.memory.read_ok(chosen[start : start + OFFLINE_CHUNK])
            if not stored:
                continue
            names = [self._label_of[i] for i, _ in stored]
            sets = self.memory.candidates([i for i, _ in stored])
            batch = self._batch(stored, names, sets)
            for name, gradient in learner.look_ahead(batch).whole().items():
                total[name] = total.get(name, 0) + gradient * len(stored)
            count += len(stored)
        return {name: gradient / count for name, gradient in total.items()}

    def _tensors(self) -> dict[str, Tensor]:
        vectors = {VECTORS: self._vectors[: len(self.labels)]}
        return self.learner.state() | vectors | self.recall.state()

    def _register(self, label: str) -> None:
        if label not in self.rows:
            vector = self._alone.embed_labels([label], self.settings.templates)[0]
            with self.lock.writing():
                self._enter(label, vector)

    def _enter(self, label: str, vector: Tensor) -> None:
        """Give a label its row."""
        row = len(self.labels)
        if row == len(self._vectors):  # double the room, so that a new label costs O(1)
            room = self._vectors.new_empty(max(16, row), vector.shape[0])
            self._vectors = torch.cat([self._vectors, room])
        self._vectors[row] = vector
        self.labels.append(label)
        self.rows[label] = row
        self.learner.make_room(row + 1)
        self.recall.make_room(row + 1)

    def _retire(self, label: str) -> None:
        """Nothing may keep the text of a forgotten label, or tell others apart from it."""
        self._examples.pop(label, None)
        self.estimates.forget(label)
        row = self.rows.pop(label)
        del self.labels[row]
        for later in self.labels[row:]:
            self.rows[later] -= 1
        self._vectors = torch.cat([self._vectors[:row], self._vectors[row + 1 :]])
        self.learner.drop_row(row)
        self.recall.drop(row)

    def _remember(self, example: int, label: str) -> None:
        self.sampler.add(example, label)
        self._label_of.extend([""] * (example + 1 - len(self._label_of)))
        self._label_of[example] = label
        self._examples[label] = self._examples.get(label, 0) + 1


def _epochs(ids: list[int], size: int, epochs: int, random: Random) -> Iterator[list[int]]:
    for _ in range(epochs if ids else 0):
        order = random.sample(ids, len(ids))
        for start in range(0, len(order), size):
            yield order[start : start + size]
