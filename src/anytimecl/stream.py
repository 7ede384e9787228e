"""Online learning over a stream known in advance, without synchronising with the host.

The batches depend on the seed and the examples before, not on the weights. So the host draws the
batches of a stretch of steps in advance and writes them to tables on the device, from which each
step reads its row.

Examples are resident on the device, as tokens or in low-rank form; if they do not fit, an
`ExampleSource` transfers those that the next steps read.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from anytimecl.acceleration import OnlineLearner
from anytimecl.backbone.prior import Prior
from anytimecl.backbone.spec import Spec
from anytimecl.blend import Estimates, Opinions
from anytimecl.evidence import Evidence
from anytimecl.learner import Learner
from anytimecl.model import Model
from anytimecl.sampling import SAMPLERS
from anytimecl.settings import Settings
from anytimecl.step import Batch
from anytimecl.tail import Params, TailInput, Tokens, look, pick

STRETCH = 2048  # steps whose batches are drawn in advance, while the device runs a stretch
_CHUNK = 256  # batch size of the original model's forward pass


class _Tables(NamedTuple):
    """Inputs of the steps of a stretch, a row each."""

    batch: Tensor  # [step, batch], example indices: the new one, replayed ones, padding
    weight: Tensor  # [step, batch], weights in the loss; 0 for padding
    known: Tensor  # [step], number of seen labels, including the new example's
    rate: Tensor  # [step], learning rate if the new example is predicted wrongly
    shift: Tensor  # [step, dim], imprint of the new example's label after this step


class ExampleSource(Protocol):
    """Examples that are not resident on the device."""

    def take(self, indices: Sequence[int]) -> Tensor | TailInput:
        """Some examples, on the device, in float32."""
        ...

    def bring(self, batches: Sequence[Sequence[int]], turn: int) -> None:
        """Called before each step: transfer the batch that `brought` returns at this turn.

        `batches` [step][example] are those of the whole stretch, all of one size.
        """
        ...

    def brought(self, turn: Tensor, size: int) -> Tensor | TailInput:
        """The batch of this turn [1], in float32; may be captured in a CUDA graph."""
        ...


class StreamLearner:
    """The online method over examples known in advance; the same steps as `Trainer`.

    `examples` are tokens [example, token, width], input of a one-block tail, or a source of either;
    `labels` their labels; `vectors` the embedding of each label. With `compiled` a GPU's step takes
    less time, after some seconds of compilation: for streams of tens of thousands of examples. Then
    "auto" precision means bfloat16; otherwise a GPU multiplies in TF32.
    """

    learner_type: Callable[..., Learner] = OnlineLearner

    def __init__(
        self,
        spec: Spec,
        tail: Params,
        settings: Settings,
        examples: Tensor | TailInput | ExampleSource,
        labels: Sequence[str],
        vectors: Mapping[str, Tensor],
        *,
        prior: Prior | None = None,
        compiled: bool = False,
    ) -> None:
        self.compiled = compiled and next(iter(tail.values())).is_cuda
        config = settings.learner
        if self.compiled and config.precision == "auto" and torch.cuda.is_bf16_supported(False):
            # Compiled, conversions are fused and cost nothing.
            config = dataclasses.replace(config, precision="bfloat16")
        self.learner = self.learner_type(spec, tail, config)
        self.model = Model(spec, tail, settings, prior, self.learner)
        self._settings = settings
        self._sampler = SAMPLERS.make(settings.sampler)
        self._examples = _resident(examples, spec)
        self._label_of = labels
        self._vector_of = vectors
        self._coming: Sequence[Sequence[int]] = ()  # example indices of the stretch's batches
        self._at: list[int] = []  # indices of learned examples; the sampler's id is position + 1
        self._learned: Counter[str] = Counter()  # examples by label
        room = len(set(labels))
        device = self.learner.other.device
        self.learner.make_room(room)
        self._vectors = torch.zeros(room, spec.dim, device=device)
        self._columns = torch.arange(room, device=device)
        self._target = torch.zeros(len(labels), dtype=torch.long, device=device)
        self._step: Callable[[], None] | None = None
        size = settings.learner.batch
        self._tables = _Tables(
            torch.zeros(STRETCH, size, dtype=torch.long, device=device),
            torch.zeros(STRETCH, size, device=device),
            torch.zeros(STRETCH, dtype=torch.long, device=device),
            torch.zeros(STRETCH, device=device),
            torch.zeros(STRETCH, 0 if self.model.imprint is None else spec.dim, device=device),
        )
        if self.model.imprint is not None:  # allocated once: a captured step keeps the address
            self.learner.shifts = self.learner.shifts.new_zeros(room, spec.dim)
        self.rate = torch.zeros((), device=device)  # of this turn
        self._turn = torch.zeros(1, dtype=torch.long, device=device)
        self._right = torch.zeros(STRETCH, dtype=torch.bool, device=device)
        self._images = torch.zeros(STRETCH, spec.dim, device=device)  # tuned embeddings
        self.count = torch.zeros((), device=device)  # of optimiser steps

    def learn(self, indices: Sequence[int]) -> None:
        """One online step for each of these examples, in order."""
        told = []
        for start in range(0, len(indices), STRETCH):
            part = indices[start : start + STRETCH]
            told.append((len(self._at), part, self._learn_stretch(part)))
            if self.model.imprint is not None:  # the next stretch's imprints need these images
                self._remember(*told.pop())
        for stretch in told:
            self._remember(*stretch)

    def _remember(
        self, turn: int, indices: Sequence[int], found: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        """Update the model with a stretch that followed example number `turn`."""
        right, images, units = (each.cpu() for each in found)  # the only synchronisation
        seen = [
            Evidence(turn + number, self._label_of[index], unit, image)
            for number, (index, unit, image) in enumerate(
                zip(indices, units, images, strict=True), start=1
            )
        ]
        self.model.learned_many(seen, right.tolist())

    @property
    def estimates(self) -> Estimates:
        """Running accuracies of both models by label."""
        return self.model.estimates

    @property
    def labels(self) -> list[str]:
        """Seen labels, in order of first appearance."""
        return self.model.labels

    @property
    def rows(self) -> dict[str, int]:
        """Index of each label in `labels`."""
        return self.model.rows

    def opinions(
        self, tokens: Tensor | TailInput, names: Sequence[str], vectors: Tensor
    ) -> Opinions:
        """Scores of every expert for a batch over these labels, with embeddings `vectors`."""
        return self.model.opinions(tokens, names, vectors)

    @torch.no_grad()
    def _learn_stretch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Whether the tuned and the original model predicted each example rightly, [step, 2].

        Also the original and the tuned model's embeddings of the new examples, [step, dim] each.
        """
        self._draw(indices)
        images = self._original_images(indices)
        original = self._original_right(indices, images)
        if self.model.imprint is not None:
            rows = [self.rows[self._label_of[index]] for index in indices]
            shifts = self.model.imprint.ahead(self.model.gaussian.now, rows, images.cpu())
            self._tables.shift[: len(indices)] = shifts.to(self._target.device)
        if not self.learner.optimiser.steps:
            first = self.learner.named(images[:1], self._vectors[:1])  # has the first row
            self.learner.begin(float(first))
        step = self._step = self._step or self.learner.stepper(self)
        self._turn.zero_()
        for turn in range(len(indices)):
            if not isinstance(self._examples, Tensor | TailInput):
                self._examples.bring(self._coming, turn)
            step()
        self.learner.optimiser.steps += len(indices)
        right = torch.stack([self._right[: len(indices)], original], dim=1)
        return right, images, self._images[: len(indices)].clone()

    def _draw(self, indices: Sequence[int]) -> None:
        """Draw the batches of a stretch and fill the tables."""
        size = self._settings.learner.batch
        batches, weights, known, rates = [], [], [], []
        for index in indices:
            turn = len(self._at) + 1
            drawn = self._sampler.draw(size - 1, Random(f"{self._settings.seed}:{turn}"))
            chosen = [index, *(self._at[i - 1] for i in drawn)]
            padding = size - len(chosen)
            batches.append(chosen + [index] * padding)
            weights.append([1 / len(chosen)] * len(chosen) + [0.0] * padding)
            label = self._label_of[index]
            self._enter(label)
            known.append(len(self.labels))
            rates.append(self.learner.rate(self._learned[label]))
            self._learned[label] += 1
            self._at.append(index)
            self._sampler.add(turn, label)
        self._coming = batches
        rows = [self.rows[self._label_of[index]] for index in indices]
        self._target[torch.tensor(indices)] = torch.tensor(rows).to(self._target.device)
        for table, values in zip(self._tables[:4], (batches, weights, known, rates), strict=True):
            table[: len(indices)] = torch.tensor(values).to(table.device)

    def _enter(self, label: str) -> None:
        if label not in self.rows:
            self._vectors[len(self.labels)] = self._vector_of[label]
            self.model.enter(label, self._vector_of[label])

    def _original_images(self, indices: Sequence[int]) -> Tensor:
        """The original model's embeddings, [step, dim]."""
        parts = (indices[start : start + _CHUNK] for start in range(0, len(indices), _CHUNK))
        return torch.cat([self.learner.original_images(self._some(part)) for part in parts])

    def _some(self, indices: Sequence[int]) -> Tensor | TailInput:
        if isinstance(self._examples, Tensor | TailInput):
            return pick(self._examples, torch.tensor(indices, device=self._target.device))
        return self._examples.take(indices)

    def _original_right(self, indices: Sequence[int], images: Tensor) -> Tensor:
        """Whether the original model predicts each new example rightly, [step]."""
        logits = self.learner.named_by_original(images, self._vectors)
        known = self._tables.known[: len(indices), None]
        logits = logits.masked_fill(self._columns >= known, -torch.inf)
        return logits.argmax(1) == self._target[torch.tensor(indices, device=logits.device)]

    def tensors(self) -> list[Tensor]:
        """Every tensor that steps change."""
        learned = [t for n, t in self.learner.state().items() if n != "steps"]
        imprinted = [] if self.model.imprint is None else [self.learner.shifts]
        return [*learned, *imprinted, self.count, self._turn]

    def batch(self) -> Batch:
        """The batch of this turn."""
        tables = self._tables
        chosen, weight = self._row(tables.batch), self._row(tables.weight)
        mask = torch.where(self._columns < self._row(tables.known), 0.0, -torch.inf)
        target = self._target.index_select(0, chosen)
        if isinstance(self._examples, Tensor | TailInput):
            tokens = pick(self._examples, chosen)
        else:
            tokens = self._examples.brought(self._turn, len(chosen))
        return Batch(tokens, target, self._vectors, self._columns, mask, weight)

    def score(self, logits: Tensor, target: Tensor, images: Tensor) -> None:
        """Record whether the new example was predicted rightly, and set the learning rate."""
        right = logits[0].argmax() == target[0]
        self._right.index_copy_(0, self._turn, right.unsqueeze(0))
        self._images.index_copy_(0, self._turn, images[:1].float())
        rate = self._row(self._tables.rate)
        self.rate.copy_(torch.where(right, self._settings.learner.lr, rate))
        self.count += 1

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A context around the update of the weights; afterwards the turn is advanced."""
        yield
        if self.model.imprint is not None:
            newcomer = self._target.index_select(0, self._row(self._tables.batch)[:1])
            self.learner.shifts.index_copy_(0, newcomer, self._row(self._tables.shift)[None])
        self._turn += 1

    def _row(self, table: Tensor) -> Tensor:
        return table.index_select(0, self._turn)[0]


def _resident(
    examples: Tensor | TailInput | ExampleSource, spec: Spec
) -> Tensor | TailInput | ExampleSource:
    """Examples as input of the step, with everything precomputed that can be."""
    if not isinstance(examples, Tensor | TailInput):
        return examples
    if isinstance(examples, TailInput):
        return examples.even()
    if spec.tail.blocks > 1 or spec.tail.pool != "cls":
        return examples
    tokens = torch.empty_like(examples)
    for start in range(0, len(examples), _CHUNK):
        part = look(examples[start : start + _CHUNK].float(), spec.tail.norm_eps)
        tokens[start : start + _CHUNK] = part.tokens.parts.to(examples.dtype)
    return TailInput(examples[:, 0].clone(), Tokens(tokens))
