"""The online step on a GPU for a host that brings its batches: one captured graph, kept examples.

A hundred small kernels take longer to launch than to run, and records longer to decode than to
learn. So decoded examples stay on the device (`Shelf`), and forward and backward are captured once
for each size of label set (`CapturedStep`); batches are padded to sizes that come again, with
examples that weigh nothing and labels that are no candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anytimecl.codec import Codec
from anytimecl.learner import Batch, Learner, Update
from anytimecl.tail import Seen
from anytimecl.thin import Question, Step, supports, thin_step

KEPT_BYTES = 1 << 31  # of decoded examples
PARTS = 24  # of a compressed example: as many as our codec keeps, and a multiple of 8
_WARM_UP = 3  # steps before a capture, as CUDA wants them


class Shelf:
    """Decoded examples on the device. It grows; when it can grow no more, it is cleared."""

    def __init__(self, codec: Codec, device: torch.device, room: int = KEPT_BYTES) -> None:
        self._codec = codec
        self._device = device
        self._room = room  # bytes
        self._rows: dict[int, int] = {}  # of each example
        self._used = 0  # rows
        self._kept: Tensor | Seen | None = None

    def take(self, ids: Sequence[int], records: Sequence[bytes]) -> Tensor | Seen:
        """What `codec.decode(records)` gives; `ids` say which examples they are."""
        new = [n for n, example in enumerate(ids) if example not in self._rows]
        if new and not self._put([ids[n] for n in new], [records[n] for n in new]):
            self._rows, self._used, self._kept = {}, 0, None
            self._put(ids, records)
        rows = torch.tensor([self._rows[example] for example in ids]).to(self._device)
        return _each(lambda kept: kept.index_select(0, rows), self._kept)

    def drop(self, example: int) -> None:
        """Nothing of it may stay."""
        row = self._rows.pop(example, None)
        if row is not None and self._kept is not None:
            for tensor in _tensors(self._kept):
                tensor[row].zero_()

    def _put(self, ids: Sequence[int], records: Sequence[bytes]) -> bool:
        """Whether there was room, in number and in kind."""
        decoded = _even(self._codec.decode(records, self._device))
        if self._kept is None:
            self._kept = _each(lambda tensor: tensor[:0], decoded)
        if _shapes(self._kept) != _shapes(decoded) or not self._grow(self._used + len(ids)):
            return False
        for kept, found in zip(_tensors(self._kept), _tensors(decoded), strict=True):
            kept[self._used : self._used + len(ids)] = found
        self._rows |= {example: self._used + n for n, example in enumerate(ids)}
        self._used += len(ids)
        return True

    def _grow(self, needed: int) -> bool:
        """Rows for so many, twice as many as before at least; a shelf takes one batch always."""
        assert self._kept is not None
        rows = len(_tensors(self._kept)[0])
        if needed <= rows:
            return True
        most = self._room // sum(math.prod(shape) * 4 for shape in _shapes(self._kept))
        if rows and needed > most:
            return False
        spare = max(needed, min(2 * rows, most)) - rows
        self._kept = _each(
            lambda kept: torch.cat([kept, kept.new_zeros(spare, *kept.shape[1:])]), self._kept
        )
        return True


class CapturedStep:
    """`Learner.look_ahead`, padded and captured. What it returns holds until the next call."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._graphs: dict[tuple[tuple[int, ...], ...], _Graph] = {}

    @staticmethod
    def suits(learner: Learner) -> bool:
        """Whether this learner takes the step that is written out, and on a GPU."""
        plain = type(learner) is Learner and learner.config.tune == "block"
        return plain and learner.other.is_cuda and supports(learner.spec.tail)

    def look_ahead(self, batch: Batch) -> Update:
        """Forward and backward."""
        question = self._learner.question(batch)
        size = max(len(question.target), self._learner.config.batch)
        room = 1 << max(4, (len(question.labels) - 1).bit_length())  # labels
        key = ((size, room), *_shapes(question.seen))
        if key not in self._graphs:
            self._graphs[key] = _Graph(self._learner, question, size, room)
        step, original = self._graphs[key].run(question)
        labels = len(question.labels)
        logits = step.logits[: len(question.target), :labels]
        return Update(logits, {**step.matrices, **step.vectors}, original[:labels])


class _Graph:
    """A step of one size, with the places where it finds its question and leaves its answer."""

    def __init__(self, learner: Learner, like: Question, size: int, room: int) -> None:
        def empty(tensor: Tensor, *shape: int) -> Tensor:
            return tensor.new_zeros(*shape, *tensor.shape[len(shape) :])

        self._learner = learner
        self._question = like._replace(
            seen=like.seen.map(lambda tensor: empty(tensor, size)),
            target=empty(like.target, size),
            labels=empty(like.labels, room),
            mask=like.labels.new_zeros(size, room),
            weight=empty(like.weight, size),
        )
        self._found: tuple[Step, Tensor] | None = None
        self._replay: Callable[[], None] = self._eager

    def run(self, question: Question) -> tuple[Step, Tensor]:
        """Put the question in its places, and answer it."""
        mine, size, labels = self._question, len(question.target), len(question.labels)
        for place, tensor in zip(_tensors(mine.seen), _tensors(question.seen), strict=True):
            place[:size] = tensor
        mine.target[:size] = question.target
        mine.labels[:labels] = question.labels
        mine.mask[:, labels:] = -torch.inf
        mine.mask[:, :labels] = 0.0
        mine.mask[:size, :labels] += question.mask
        mine.weight.zero_()
        mine.weight[:size] = question.weight
        if self._found is None and mine.target.is_cuda:
            self._replay = self._captured()
        self._replay()
        assert self._found is not None
        return self._found

    def _eager(self) -> None:
        learner, question = self._learner, self._question
        step = thin_step(learner.params, learner.other, learner.spec.tail, question)
        first = question.seen.pick(slice(1))
        self._found = step, learner.original_logits(first, question.labels)[0]

    def _captured(self) -> Callable[[], None]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._eager()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Others may predict meanwhile: what their threads do is not captured, and may not disturb.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._eager()
        replay: Callable[[], None] = graph.replay
        return replay


def _even(decoded: Tensor | Seen) -> Tensor | Seen:
    """Compressed examples with as many parts as all others."""
    if isinstance(decoded, Tensor) or decoded.tokens.coefficients is None:
        return decoded
    count = decoded.tokens.parts.shape[1]
    return Seen(decoded.cls, decoded.tokens.filled(max(PARTS, count + -count % 8)))


def _tensors(examples: Tensor | Seen) -> list[Tensor]:
    if isinstance(examples, Tensor):
        return [examples]
    parts, shares = examples.tokens
    return [examples.cls, parts] if shares is None else [examples.cls, parts, shares]


def _shapes(examples: Tensor | Seen) -> tuple[tuple[int, ...], ...]:
    """Of one example."""
    return tuple(tuple(tensor.shape[1:]) for tensor in _tensors(examples))


def _each(change: Callable[[Tensor], Tensor], examples: Tensor | Seen | None) -> Tensor | Seen:
    assert examples is not None
    return change(examples) if isinstance(examples, Tensor) else examples.map(change)
