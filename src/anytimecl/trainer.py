"""Everything that learning changes, and the one way in which an example changes it."""

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
    """A learned example, and who had been right about it before.

    Attributes
    ----------
    id
        Number of the example, for `forget` and `relabel`.
    right
        Whether the blended prediction was right, before it was learned.
    tuned
        Whether the tuned model was.
    original
        Whether the original model was.
    replaced
        The label that this image had before, if it had another.

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
    """A model, and the memory, codec and sampler that it is taught with.

    One thread at a time may teach.
    """

    learner_type: type[Learner] = OnlineLearner

    def __init__(
        self, backbone: Backbone, codec: Codec, memory: Memory, settings: Settings, lock: TurnLock
    ) -> None:
        self.backbone = backbone
        self.codec = codec
        self.memory = memory
        self.settings = settings
        self.lock = lock  # held while writing, so that no reader sees half an update
        self.learner = self.learner_type(backbone.spec, backbone.tail, settings.learner)
        self.model = Model(backbone.spec, backbone.tail, settings, backbone.prior, self.learner)
        self.sampler = SAMPLERS.make(settings.sampler)
        self.examples = Examples(self.sampler)
        self.label_of = self.examples.label_of
        self.event = 0  # of the journal: how far this trainer has come
        # A text side rounds a label otherwise beside others, and the shared cache may hold such.
        self._alone = dataclasses.replace(backbone, label_cache=LabelCache())
        self._miscounted = False  # an example was taken back whose image is not there any more

    @property
    def labels(self) -> list[str]:
        """Seen, in order of first appearance."""
        return self.model.labels

    @property
    def rows(self) -> dict[str, int]:
        """Label -> its place in `labels`."""
        return self.model.rows

    def check(self, label: str, candidates: Sequence[str]) -> None:
        """An error if the text side refuses one of these: nothing is stored that cannot be taught.

        What it says of a new label is kept for teaching it.
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
        """The method, once: fill a batch, score the newcomer, update, remember.

        The newcomer is read back from its record, not from the image, so that it can be taught
        again in the same way. With the `number` of an event it is one that had another label,
        which it loses in the same moment.
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
                self.lock.torn = True  # to draw has changed it, and next time it draws others
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
        """Offline training over all that was stored before `event`, whose number is the seed.

        It is worked out on a copy and counts when all of it is there: nobody meets half of it, and
        whatever interrupts it leaves everything as it was. `done` is called just before it counts.
        """
        # As it knows them: what was taken back later is in the memory no more.
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
        """From the label that an example has to another, which it may just have been taught."""
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
        """As the original model sees it, [dim]: by itself, so that it always comes out the same."""
        return self.first_image(self.codec.decode([record], self.learner.other.device))

    def first_image(self, examples: Tensor | TailInput) -> Tensor:
        """The same, of the first of a batch: its record need not be decoded again."""
        tail, spec = self.backbone.tail, self.backbone.spec.tail
        return images_of(tail, spec, first(examples))[0].float().cpu()

    def _batch(self, stored: Sequence[Stored], label_of: Mapping[int, str]) -> Batch:
        """Records with their labels and candidate sets; without a set, every label seen."""
        ids, records, sets = zip(*stored, strict=True)
        names = [label_of[example] for example in ids]
        labels = self.model.table.subset(names, sets, self.embed)
        return Batch(self.learner.decode(self.codec, ids, records), *labels)

    def _offline_gradients(self, chosen: Sequence[int], learner: Learner) -> dict[str, Tensor]:
        """The mean over an offline batch, worked out in chunks."""
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
        """A label is about to have examples, if it has none."""
        if label not in self.rows:
            vector = self._embed_alone(label)
            with self.lock.writing():
                self.model.enter(label, vector)

    def _embed_alone(self, label: str) -> Tensor:
        with one_thread():
            return self._alone.embed_labels([label], self.settings.templates)[0]


class _Newcomer:
    """An example on its way into the model: scored before it is learned (`step.Steps`)."""

    count = None  # the learner counts

    def __init__(
        self,
        trainer: Trainer,
        example: int,
        label: str,
        batch: Batch,
        number: int | None = None,  # of the event that corrects its label
    ) -> None:
        self._trainer, self._model = trainer, trainer.model
        self._number = number
        self._example, self._label = example, label
        self._batch = batch
        self._image = trainer.first_image(batch.tokens)  # as the original model sees it, [dim]
        # A number a label: a GPU would take longer to be told than a CPU to do it.
        self._original = trainer.learner.named_by_original(self._image, batch.vectors.cpu())
        if trainer.learner.optimiser.steps == 0:
            trainer.learner.begin(float(self._original[batch.target[0]]))
        self._other = trainer.learner.other_logit

    def batch(self) -> Batch:
        """It and the stored examples that were drawn."""
        return self._batch

    def score(self, logits: Tensor, target: Tensor, images: Tensor) -> None:
        """Who was right about it."""
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
        """All at once, or somebody would see one part without the rest."""
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
        """What would have been answered, as a column of the logits [label]."""
        asked = (tuned > -torch.inf).nonzero().flatten()  # the candidates: the rest do not count
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
