"""The trainer: the online step for one example, and consolidation, over a stored memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from anytimecl.acceleration import OnlineLearner
from anytimecl.backbone import Backbone
from anytimecl.backbone.text import LabelCache
from anytimecl.blend import blend
from anytimecl.codec import Codec
from anytimecl.learner import Learner
from anytimecl.lock import TurnLock
from anytimecl.memory import Memory
from anytimecl.memory.contract import Progress, Stored
from anytimecl.model import Evidence, Model
from anytimecl.sampling import SAMPLERS, ClassBalanced, Examples, Uniform
from anytimecl.settings import Settings
from anytimecl.step import Batch
from anytimecl.tail import TailInput, first, images_of
from anytimecl.threads import one_thread

OFFLINE_CHUNK = 256  # examples of an offline batch in RAM at once


class Learned(NamedTuple):
    """A learned example, and which models had predicted it rightly before.

    Attributes
    ----------
    id
        Number of the example, for `forget` and `relabel`.
    right
        Whether the blended prediction was right, before the example was learned.
    tuned
        Whether the tuned model was right.
    original
        Whether the original model was right.
    replaced
        The previous label of this image, if it had another one.

    Examples
    --------
    >>> Learned(7, right=True, tuned=True, original=False).replaced is None
    True
    """

    id: int
    right: bool
    tuned: bool
    original: bool
    replaced: str | None = None


class Trainer:
    """A model, and the memory, codec and sampler that it learns with.

    One thread at a time may call methods that learn.
    """

    learner_type: type[Learner] = OnlineLearner

    def __init__(
        self, backbone: Backbone, codec: Codec, memory: Memory, settings: Settings, lock: TurnLock
    ) -> None:
        self.backbone = backbone
        self.codec = codec
        self.memory = memory
        self.settings = settings
        self.lock = lock  # held during an update, so that predictions never see half of one
        self.learner = self.learner_type(backbone.spec, backbone.tail, settings.learner)
        self.model = Model(backbone.spec, backbone.tail, settings, backbone.prior, self.learner)
        self.sampler = SAMPLERS.make(settings.sampler)
        self.examples = Examples(self.sampler)
        self.label_of = self.examples.label_of
        self.event = 0  # number of the last journal entry that was applied
        # Embeddings computed in a batch round differently; the shared cache may hold such ones.
        self._alone = dataclasses.replace(backbone, label_cache=LabelCache())
        self._miscounted = False  # a removed example's image was missing: `recount` is needed

    @property
    def labels(self) -> list[str]:
        """Seen labels, in order of first appearance."""
        return self.model.labels

    @property
    def rows(self) -> dict[str, int]:
        """Label -> its place in `labels`."""
        return self.model.rows

    def check(self, label: str, candidates: Sequence[str]) -> None:
        """Raise if the text encoder refuses a label: what cannot be learned is not stored.

        Embeddings of new labels are cached.
        """
        rows = self.model.rows
        if label not in rows:
            self._embed_alone(label)
        new = [name for name in candidates if name not in rows]
        if new:
            self.embed(new)

    @torch.no_grad()
    def teach(
        self,
        example: int,
        label: str,
        record: bytes,
        candidates: Sequence[str] | None,
        number: int | None = None,
    ) -> Learned:
        """One online step: draw a batch, score the new example, update, add it.

        The example is decoded from its record, not taken from the image, so that replaying the
        journal repeats the step bit for bit. With `number`, the event of a relabelling, it is a
        stored example that gets this label instead of its old one.
        """
        random = Random(f"{self.settings.seed}:{number or example}")
        drawn = self.examples.draw(self.settings.learner.batch - 1, random)
        try:
            others = self.memory.stored(list(map(itemgetter(0), drawn)))
            self.enter(label)
            stored = [Stored(example, record, candidates)]
            stored += [each for each in others if each.id != example]
            batch = self._batch(stored, dict(drawn) | {example: label})
            newcomer = _Newcomer(self, example, label, batch, number)
            self.learner.take(newcomer)
        except BaseException:
            if not isinstance(self.sampler, ClassBalanced | Uniform):
                self.lock.torn = True  # the draw changed the sampler's state: replay is needed
            raise
        return newcomer.learned

    @torch.no_grad()
    def consolidate(
        self,
        epochs: int,
        event: int,
        progress: Progress | None = None,
        done: Callable[[], object] = lambda: None,
    ) -> None:
        """Offline training over all examples stored before `event`, whose number is the seed.

        Trains a copy and swaps it in at the end, so that an interrupt changes nothing. `done` is
        called just before the swap.
        """
        # From the trainer's state: in a replay, the memory lacks examples that were removed later.
        ids = self.examples.ids(before=event)
        config = self.settings.learner
        size = min(config.offline_batch, len(ids))
        steps = epochs * -(-len(ids) // size) if ids else 0
        copy = self.learner_type(self.backbone.spec, self.backbone.tail, config)
        copy.restore(self.learner.state())
        if self.model.imprint is not None:
            copy.shifts = self.learner.shifts  # no step changes them
        optimiser = copy.fresh_optimiser()
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

    def move(
        self, example: int, label: str, image: Tensor | None, learned: Learned | None = None
    ) -> None:
        """Relabel an example; `learned` if a step was just taken with the new label."""
        before = self.label_of(example)
        self._miscounted |= image is None
        kept = self.model.move(example, before, label, image)
        if learned is not None and image is not None:
            self.model.estimates.add(label, tuned=learned.tuned, original=learned.original)
            if not kept:
                self.model.instances.add(example, self.rows[label], image)
        if self.examples.move(example, label):
            self.model.retire(before)

    def embed(self, labels: Sequence[str]) -> Tensor:
        """Label embeddings [label, dim]."""
        return self.backbone.embed_labels(labels, self.settings.templates)

    @torch.no_grad()
    def image(self, record: bytes) -> Tensor:
        """The original model's embedding [dim], computed without a batch: always the same bits."""
        return self.first_image(self.codec.decode([record], self.learner.other.device))

    def first_image(self, examples: Tensor | TailInput) -> Tensor:
        """The same for the first example of a decoded batch."""
        tail, spec = self.backbone.tail, self.backbone.spec.tail
        return images_of(tail, spec, first(examples))[0].float().cpu()

    def _batch(self, stored: Sequence[Stored], label_of: Mapping[int, str]) -> Batch:
        """A batch from stored records; examples without a candidate set get every seen label."""
        ids, records, sets = zip(*stored, strict=True)
        names = [label_of[example] for example in ids]
        labels = self.model.table.subset(names, sets, self.embed)
        return Batch(self.learner.decode(self.codec, ids, records), *labels)

    def _offline_gradients(self, chosen: Sequence[int], learner: Learner) -> dict[str, Tensor]:
        """Mean gradient over an offline batch, in chunks."""
        total: dict[str, Tensor] = {}
        count = 0
        for start in range(0, len(chosen), OFFLINE_CHUNK):
            stored = self.memory.stored(chosen[start : start + OFFLINE_CHUNK])
            if not stored:
                continue
            batch = self._batch(stored, {each.id: self.label_of(each.id) for each in stored})
            for name, gradient in learner.look_ahead(batch).whole().items():
                total[name] = total.get(name, 0) + gradient * len(stored)
            count += len(stored)
        return {name: gradient / count for name, gradient in total.items()}

    def enter(self, label: str) -> None:
        """Add a label, unless it is seen."""
        if label not in self.rows:
            vector = self._embed_alone(label)
            with self.lock.writing():
                self.model.enter(label, vector)

    def _embed_alone(self, label: str) -> Tensor:
        with one_thread():
            return self._alone.embed_labels([label], self.settings.templates)[0]


class _Newcomer:
    """A new example: scored, then learned (`step.Steps`)."""

    count = None  # the learner counts

    def __init__(
        self,
        trainer: Trainer,
        example: int,
        label: str,
        batch: Batch,
        number: int | None = None,  # event of the relabelling
    ) -> None:
        self._trainer, self._model = trainer, trainer.model
        self._number = number
        self._example, self._label = example, label
        self._batch = batch
        self._image = trainer.first_image(batch.tokens)  # the original model's embedding, [dim]
        # Few numbers: on the CPU, where launching a GPU kernel would take longer.
        self._original = trainer.learner.named_by_original(self._image, batch.vectors.cpu())
        if trainer.learner.optimiser.steps == 0:
            trainer.learner.begin(float(self._original[batch.target[0]]))
        self._other = trainer.learner.other_logit

    def batch(self) -> Batch:
        """The new example and the replayed ones."""
        return self._batch

    def score(self, logits: Tensor, target: Tensor, images: Tensor) -> None:
        """Record which models predicted the example rightly; sets the learning rate."""
        tuned, own = logits[0].cpu(), int(target[0])
        original = self._original.masked_fill(tuned == -torch.inf, -torch.inf)
        self.learned = Learned(
            id=self._example,
            right=self._answer(tuned, original, images[:1]) == own,
            tuned=int(tuned.argmax()) == own,
            original=self._model.spec.names and int(original.argmax()) == own,
        )
        seen = self._model.estimates.of(self._label).seen
        self.rate = None if self.learned.tuned else self._trainer.learner.rate(seen)
        unit = images[0].float().cpu().clone()
        self._evidence = Evidence(self._example, self._label, unit, self._image)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock while weights, experts and sampler are updated together."""
        with self._trainer.lock.writing():
            if self._number is not None:
                yield
                self._trainer.move(self._example, self._label, self._image, self.learned)
                self._trainer.event = self._number
                return
            self._model.advance(self._example)
            yield
            self._model.learned(
                self._evidence, tuned=self.learned.tuned, original=self.learned.original
            )
            self._trainer.examples.add(self._example, self._label)
            self._trainer.event = self._example

    def _answer(self, tuned: Tensor, original: Tensor, image: Tensor) -> int:
        """The blended prediction, as an index into the logits [label]."""
        asked = (tuned > -torch.inf).nonzero().flatten()  # the candidates
        places = self._batch.rows.cpu()[asked].tolist()
        names = [self._model.labels[row] if row >= 0 else "" for row in places]
        texts = self._model.by_text(image, self._batch.vectors[asked.to(image.device)], names)
        opinions = self._model.of_logits(
            tuned[None, asked],
            original[None, asked],
            self._other.cpu(),
            self._image[None],
            names,
            None if texts is None else texts.cpu(),
        )
        return int(asked[blend(self._trainer.settings.blend, opinions)[0].argmax()])


def _epochs(ids: list[int], size: int, epochs: int, random: Random) -> Iterator[list[int]]:
    for _ in range(epochs if ids else 0):
        order = random.sample(ids, len(ids))
        for start in range(0, len(order), size):
            yield order[start : start + size]
