"""A whole stream learned at once: one online step for each example, the host out of the way.

Which examples a batch holds depends on the seed and on what came before, never on the weights. So
all draws of a stretch of the stream are made first, on the host, and laid out in tables; the
step reads its row of them, and everything else stays on the device. On a GPU the step is one
captured graph. Elsewhere the same function runs as it is.

The examples are resident on the device, as full tokens or compressed.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from anytimecl.attention import STACKED
from anytimecl.backbone.spec import Spec
from anytimecl.blend import Estimates, Opinions
from anytimecl.captured import capture
from anytimecl.learner import Batch, Learner
from anytimecl.recall import Recall
from anytimecl.sampling import SAMPLERS
from anytimecl.settings import Settings
from anytimecl.tail import Params, Seen, Tokens, look, pick
from anytimecl.thin import Gradients, Half, Thin, early_step, late_step

STRETCH = 2048  # steps whose draws are made ahead; the device works on one stretch meanwhile
_CHUNK = 256  # examples that the original model looks at in one go


class _Tables(NamedTuple):
    """What the steps of a stretch read, one row each."""

    batch: Tensor  # [step, batch], examples: the newcomer first, then stored ones, then padding
    weight: Tensor  # [step, batch], of each in the loss; padding weighs nothing
    known: Tensor  # [step], labels seen, the newcomer's among them
    rate: Tensor  # [step], of learning the newcomer if it is a surprise


class StreamLearner:
    """The online method over examples that are known beforehand; the same steps as `Student`.

    `examples` are the tokens [example, token, width] of all of them, or what a one-block tail sees
    of them; `labels` their labels; `vectors` the embedding of each label. With `compiled` a GPU's
    step takes less time, after some seconds of compiling: for streams of tens of thousands. Then
    "auto" precision is bfloat16; otherwise a GPU's products are in TF32.
    """

    def __init__(
        self,
        spec: Spec,
        tail: Params,
        settings: Settings,
        examples: Tensor | Seen,
        labels: Sequence[str],
        vectors: Mapping[str, Tensor],
        *,
        compiled: bool = False,
    ) -> None:
        self._compiled = compiled and next(iter(tail.values())).is_cuda
        config = settings.learner
        if self._compiled and config.precision == "auto" and torch.cuda.is_bf16_supported(False):
            # Once a compiler has been over them, conversions cost nothing.
            config = dataclasses.replace(config, precision="bfloat16")
        self.learner = Learner(spec, tail, config)
        self.estimates = Estimates(settings.eta)
        self.recall = Recall(spec.dim)
        self.labels: list[str] = []  # seen, in order of first appearance
        self.rows: dict[str, int] = {}
        self._settings = settings
        self._sampler = SAMPLERS[settings.sampler]()
        self._examples = _resident(examples, spec)
        self._label_of = labels
        self._vector_of = vectors
        self._at: list[int] = []  # the examples learned; the sampler knows them by their turn
        self._learned: Counter[str] = Counter()  # how many of each label
        room = len(set(labels))
        device = self.learner.other.device
        self.learner.make_room(room)
        self._vectors = torch.zeros(room, spec.dim, device=device)
        self._columns = torch.arange(room, device=device)
        self._target = torch.zeros(len(labels), dtype=torch.long, device=device)
        self._step: Callable[[], None] | None = None
        self._params: Params = {}  # as the step in halves has them
        size = settings.learner.batch
        self._tables = _Tables(
            torch.zeros(STRETCH, size, dtype=torch.long, device=device),
            torch.zeros(STRETCH, size, device=device),
            torch.zeros(STRETCH, dtype=torch.long, device=device),
            torch.zeros(STRETCH, device=device),
        )
        self._rate = torch.zeros((), device=device)  # this turn's
        self._turn = torch.zeros(1, dtype=torch.long, device=device)
        self._right = torch.zeros(STRETCH, dtype=torch.bool, device=device)
        self._count = torch.zeros((), device=device)  # of optimiser steps

    def learn(self, indices: Sequence[int]) -> None:
        """One online step for each of these examples, in order."""
        parts = range(0, len(indices), STRETCH)
        told = [self._learn_stretch(indices[start : start + STRETCH]) for start in parts]
        if not told:
            return
        right = torch.cat([its_right for its_right, _ in told])
        # The device is waited for here alone.
        for index, (tuned, original) in zip(indices, right.tolist(), strict=True):
            self.estimates.add(self._label_of[index], tuned=tuned, original=original)
        for start, (_, images) in zip(parts, told, strict=True):
            self._recall(indices[start : start + STRETCH], images)

    def _recall(self, indices: Sequence[int], images: Tensor) -> None:
        """What the original model saw in these examples."""
        self.recall.add([self.rows[self._label_of[index]] for index in indices], images.cpu())

    def opinions(self, tokens: Tensor | Seen, names: Sequence[str], vectors: Tensor) -> Opinions:
        """What both models say now of a batch over these labels, whose `vectors` are given."""
        return opinions_of(
            self.learner, self.estimates, self.recall, self.rows, tokens, names, vectors
        )

    @torch.no_grad()
    def _learn_stretch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """[step, 2]: which newcomers the tuned, the original model had been right about.

        And how the original model sees them, [step, dim].
        """
        self._draw(indices)
        images = self._original_images(indices)
        original = self._original_right(indices, images)
        if not self.learner.optimiser.steps:
            first = self.learner.named(images[:1], self._vectors[:1])  # has the first row
            self.learner.begin(float(first))
        step = self._step = self._step or self._captured()
        self._turn.zero_()
        for _ in indices:
            step()
        self.learner.optimiser.steps += len(indices)
        return torch.stack([self._right[: len(indices)], original], dim=1), images

    def _laid_out(self) -> Params:
        """The weights; for a compiler, those of the attention in one piece.

        Kernel by kernel that form would take more of them, not fewer.
        """
        seen, spec = self._examples, self.learner.spec.tail
        if not self._compiled or not isinstance(seen, Seen) or seen.tokens.coefficients is None:
            return self.learner.working
        at = f"layers.{spec.last}."
        stacked = self.learner.stacked([f"{at}self_attn.{name}_proj.weight" for name in "qkv"])
        return self.learner.working | {at + STACKED: stacked}

    def _draw(self, indices: Sequence[int]) -> None:
        """Fill the tables."""
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
        rows = [self.rows[self._label_of[index]] for index in indices]
        self._target[torch.tensor(indices)] = torch.tensor(rows).to(self._target.device)
        for table, values in zip(self._tables, (batches, weights, known, rates), strict=True):
            table[: len(indices)] = torch.tensor(values).to(table.device)

    def _enter(self, label: str) -> None:
        if label not in self.rows:
            self._vectors[len(self.labels)] = self._vector_of[label]
            self.rows[label] = len(self.labels)
            self.labels.append(label)
            self.recall.make_room(len(self.labels))

    def _original_images(self, indices: Sequence[int]) -> Tensor:
        """[step, dim], as the original model sees them, which never changes."""
        chosen = torch.tensor(indices, device=self._target.device)
        parts = (pick(self._examples, some) for some in torch.split(chosen, _CHUNK))
        return torch.cat([self.learner.original_images(part) for part in parts])

    def _original_right(self, indices: Sequence[int], images: Tensor) -> Tensor:
        """Whether the original model was right about each newcomer."""
        logits = self.learner.named(images, self._vectors)
        known = self._tables.known[: len(indices), None]
        logits = logits.masked_fill(self._columns >= known, -torch.inf)
        return logits.argmax(1) == self._target[torch.tensor(indices, device=logits.device)]

    def _captured(self) -> Callable[[], None]:
        """The step as one graph, where there is a GPU."""
        if self._target.device.type != "cuda":
            return self._one
        one = self._one
        if self.learner.written_out:
            one = self._in_halves()
        kept = [t.clone() for t in self._changing()]
        with _tensor_cores(), _one_of_many():
            replay = capture(one)
        for tensor, before in zip(self._changing(), kept, strict=True):
            tensor.copy_(before)
        return replay

    def _changing(self) -> list[Tensor]:
        state = self.learner.state()
        state.pop("steps")
        return [*state.values(), *self.learner.light.values(), self._count, self._turn]

    def _one(self) -> None:
        """The method, once, from tables to weights, without a word to the host."""
        batch = self._batch()
        update = self.learner.look_ahead(batch)
        self._score(update.logits, batch.target)
        self._update(update.gradients)
        self._turn += 1

    def _in_halves(self) -> Callable[[], None]:
        """`_one`, but the MLP's weights change while the gradients of attention come."""
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._params = self._laid_out()
        late, early = self._late, self._early
        if self._compiled:
            late = torch.compile(late, dynamic=False)
            early = torch.compile(early, dynamic=False)

        def one() -> None:
            gradients, seen, half = late()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                self._update(gradients.matrices)
            rest = early(seen, half)
            self._update({**rest.matrices, **rest.vectors, **gradients.vectors})
            torch.cuda.current_stream().wait_stream(beside)
            self._turn += 1

        return one

    def _late(self) -> tuple[Gradients, Seen, Half]:
        question = self.learner.question(self._batch())
        logits, gradients, half = late_step(
            self._params, self.learner.other, self.learner.spec.tail, question
        )
        self._score(logits, question.target)
        return gradients, question.seen, half

    def _early(self, seen: Seen, half: Half) -> Gradients:
        return early_step(self._params, self.learner.spec.tail, seen, half)

    def _batch(self) -> Batch:
        """This turn's."""
        tables = self._tables
        chosen, weight = self._row(tables.batch), self._row(tables.weight)
        mask = torch.where(self._columns < self._row(tables.known), 0.0, -torch.inf)
        target = self._target.index_select(0, chosen)
        tokens = pick(self._examples, chosen)
        return Batch(tokens, target, self._vectors, self._columns, mask, weight)

    def _score(self, logits: Tensor, target: Tensor) -> None:
        """Whether the newcomer was known, before it is learned, and so how far the step goes."""
        right = logits[0].argmax() == target[0]
        self._right.index_copy_(0, self._turn, right.unsqueeze(0))
        rate = self._row(self._tables.rate)
        self._rate.copy_(torch.where(right, self._settings.learner.lr, rate))
        self._count += 1

    def _row(self, table: Tensor) -> Tensor:
        return table.index_select(0, self._turn)[0]

    def _update(self, gradients: Mapping[str, Tensor | Thin]) -> None:
        self.learner.update(gradients, self._rate, self._count)


@torch.no_grad()
def opinions_of(
    learner: Learner,
    estimates: Estimates,
    recall: Recall,
    rows: Mapping[str, int],  # the place of each label seen
    tokens: Tensor | Seen,
    names: Sequence[str],
    vectors: Tensor,  # [label, dim], of these names
) -> Opinions:
    """What both models say of a batch over these labels, and what is known about each."""
    places = [rows.get(name, -1) for name in names]
    images, means = learner.original_images(tokens), recall.means(places)
    return Opinions.of(
        learner.tuned_logits(tokens, vectors, torch.tensor(places, device=vectors.device)),
        learner.named(images, vectors),
        learner.other_logit,
        [estimates.of(name) for name in names],
        estimates.overall,
        None if means is None else means.votes(images),
    )


@contextmanager
def _tensor_cores() -> Iterator[None]:
    """Products in TF32, whose ten bits are as many as the tokens are stored with."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _one_of_many() -> Iterator[None]:
    """Every stream has sizes of its own, and a compiler gives up on what it met in too many."""
    from torch import _dynamo  # takes a second to import

    with _dynamo.config.patch(recompile_limit=1 << 16, accumulated_recompile_limit=1 << 16):
        yield


def _resident(examples: Tensor | Seen, spec: Spec) -> Tensor | Seen:
    """As the step wants them: what can be done once is done ahead."""
    if isinstance(examples, Seen):
        return examples.even()
    if spec.tail.blocks > 1 or spec.tail.pool != "cls":
        return examples
    tokens = torch.empty_like(examples)
    for start in range(0, len(examples), _CHUNK):
        part = look(examples[start : start + _CHUNK].float(), spec.tail.norm_eps)
        tokens[start : start + _CHUNK] = part.tokens.parts.to(examples.dtype)
    return Seen(examples[:, 0].clone(), Tokens(tokens))
