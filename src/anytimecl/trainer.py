"""The trainer: the online step for one example, over a stored memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from anytimecl.acceleration import OnlineLearner
from anytimecl.backbone import Backbone
from anytimecl.backbone.text import LabelCache
from anytimecl.blend import blend
from anytimecl.codec import Codec
from anytimecl.errors import StoreError
from anytimecl.evidence import Evidence
from anytimecl.examples import Examples
from anytimecl.learner import Learner
from anytimecl.lock import TurnLock
from anytimecl.memory import Memory
from anytimecl.memory.contract import Stored
from anytimecl.model import Model
from anytimecl.sampling import SAMPLERS, ClassBalanced, Uniform
from anytimecl.settings import Settings
from anytimecl.step import Batch
from anytimecl.tail import first_image
from anytimecl.threads import one_thread


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
        if new := [name for name in candidates if name not in rows]:
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
        try:
            drawn = self.sampler.draw(self.settings.learner.batch - 1, random)
            replayed = [each for each in self.memory.stored(drawn) if each.id != example]
            self.enter(label)
            batch = self._batch([Stored(example, record, candidates), *replayed], label)
            image = first_image(self.backbone.tail, self.backbone.spec.tail, batch.tokens)
            if not image.isfinite().all():  # of a forged record: no weight would be finite after it
                raise StoreError(
                    f"The record of example {example} is damaged: it holds numbers that are not "
                    "finite. Restore a backup."
                )
            # Few numbers: on the CPU, where launching a GPU kernel would take longer.
            original = self.learner.named_by_original(image, batch.vectors.cpu())
            if self.learner.optimiser.steps == 0:
                self.learner.begin(float(original[batch.target[0]]))
            other = self.learner.other_logit
            newcomer = _Newcomer(self, example, label, number, batch, image, original, other)
            self.learner.take(newcomer)
        except BaseException:
            if type(self.sampler) not in (ClassBalanced, Uniform):
                self.lock.torn = True  # the draw changed the sampler's state: replay is needed
            raise
        return newcomer.learned

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
                self.model.instances.add([example], [self.rows[label]], image[None])
        if self.examples.move(example, label):
            self.model.retire(before)

    def embed(self, labels: Sequence[str]) -> Tensor:
        """Label embeddings [label, dim]."""
        return self.backbone.embed_labels(labels, self.settings.templates)

    @torch.no_grad()
    def image(self, record: bytes) -> Tensor:
        """The original model's embedding [dim], computed without a batch: always the same bits."""
        decoded = self.codec.decode([record], self.learner.other.device)
        return first_image(self.backbone.tail, self.backbone.spec.tail, decoded)

    def _batch(self, stored: Sequence[Stored], label: str | None = None) -> Batch:
        """A batch from stored records; `label` is that of the first, if it is not learned yet.

        Examples without a candidate set get every seen label.
        """
        ids, records, sets = zip(*stored, strict=True)
        names = list(map(self.label_of, ids))
        if label is not None:
            names[0] = label
        labels = self.model.table.subset(names, sets, self.embed)
        return Batch(self.learner.decode(self.codec, ids, records), *labels)

    def enter(self, label: str) -> None:
        """Add a label, unless it is seen."""
        if label not in self.rows:
            vector = self._embed_alone(label)
            with self.lock.writing():
                self.model.enter(label, vector)

    def _embed_alone(self, label: str) -> Tensor:
        with one_thread():
            return self._alone.embed_labels([label], self.settings.templates)[0]


@dataclass
class _Newcomer:
    """A new example: scored, then learned (`step.Steps`)."""

    trainer: Trainer
    example: int
    label: str
    number: int | None  # of the event, if it is relabelled
    given: Batch
    image: Tensor  # [dim], the original model's embedding
    original: Tensor  # [label], the original model's logits
    other: Tensor  # [], the logit of "other"
    learned: Learned = field(init=False)
    rate: float | None = field(init=False)
    tuned_image: Tensor = field(init=False)  # [dim], before the step

    count = None  # the learner counts

    def batch(self) -> Batch:
        """The new example and the replayed ones."""
        return self.given

    def score(self, logits: Tensor, target: Tensor, images: Tensor) -> None:
        """Record which models predicted the example rightly; sets the learning rate."""
        tuned, own = logits[0].cpu(), int(target[0])
        original = self.original.masked_fill(tuned == -torch.inf, -torch.inf)
        model = self.trainer.model
        self.learned = Learned(
            id=self.example,
            right=self._answer(tuned, original, images[:1]) == own,
            tuned=int(tuned.argmax()) == own,
            original=model.spec.names and int(original.argmax()) == own,
        )
        seen = model.estimates.of(self.label).seen
        self.rate = None if self.learned.tuned else self.trainer.learner.rate(seen)
        self.tuned_image = images[0].float().cpu().clone()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock while weights, experts and sampler are updated together."""
        trainer, learned = self.trainer, self.learned
        with trainer.lock.writing():
            yield
            if self.number is not None:
                trainer.move(self.example, self.label, self.image, learned)
                trainer.event = self.number
                return
            seen = Evidence(self.example, self.label, self.tuned_image, self.image)
            trainer.model.learned(seen, tuned=learned.tuned, original=learned.original)
            trainer.examples.add(self.example, self.label)
            trainer.event = self.example

    def _answer(self, tuned: Tensor, original: Tensor, image: Tensor) -> int:
        """The blended prediction, as an index into the logits [label]."""
        trainer, model = self.trainer, self.trainer.model
        asked = (tuned > -torch.inf).nonzero().flatten()  # the candidates
        rows = self.given.rows.cpu()[asked].tolist()
        names = [model.labels[row] if row >= 0 else "" for row in rows]
        texts = model.by_text(image, self.given.vectors[asked.to(image.device)], names)
        opinions = model.of_logits(
            tuned[None, asked],
            original[None, asked],
            self.other.cpu(),
            self.image[None],
            names,
            None if texts is None else texts.cpu(),
        )
        return int(asked[blend(trainer.settings.blend, opinions)[0].argmax()])
