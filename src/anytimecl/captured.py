"""The online step on a GPU for a host that brings its batches: one captured graph, kept examples.

A hundred small kernels take longer to launch than to run, and records longer to decode than to
learn. So decoded examples stay on the device (`Shelf`), and forward and backward are captured once
for each size of label set (`CapturedStep`); batches are padded to sizes that come again, with
examples that weigh nothing and labels that are no candidates.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anytimecl.codec import Codec
from anytimecl.learner import Batch, Learner, Update
from anytimecl.tail import Seen, pick
from anytimecl.thin import Question, Step, thin_step

KEPT_BYTES = 1 << 31  # of decoded examples, and never more than a quarter of what is free
PARTS = 18  # of a compressed example: as many as our codec keeps
_WARM_UP = 3  # steps before a capture, as CUDA wants them
_CAPTURING = threading.Lock()  # CUDA wants one at a time in a process


def capture(step: Callable[[], object]) -> Callable[[], None]:
    """The kernels of a step as one graph, to be launched again and again."""
    with _CAPTURING:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may predict meanwhile: what they do is not captured, and may not disturb.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            step()
    replay: Callable[[], None] = graph.replay
    return replay


class Shelf:
    """Decoded examples on the device. It grows; when it can grow no more, it is cleared."""

    def __init__(self, codec: Codec, device: torch.device, room: int | None = None) -> None:
        self._codec = codec
        self._device = device
        self._room = room  # bytes
        self._clear()

    def take(self, ids: Sequence[int], records: Sequence[bytes]) -> Tensor | Seen:
        """What `codec.decode(records)` gives; `ids` say which examples they are."""
        given = dict(zip(ids, records, strict=True))  # a batch may hold one example twice
        new = {example: record for example, record in given.items() if example not in self._rows}
        if new and not self._put(new):
            self._clear()
            self._put(given)
        rows = torch.tensor([self._rows[example] for example in ids]).to(self._device)
        assert self._kept is not None
        return pick(self._kept, rows)

    def drop(self, example: int) -> None:
        """Nothing of it may stay."""
        row = self._rows.pop(example, None)
        if row is not None and self._kept is not None:
            self._free.append(row)
            for tensor in _tensors(self._kept):
                tensor[row].zero_()

    def _clear(self) -> None:
        self._rows: dict[int, int] = {}  # of each example
        self._free: list[int] = []  # rows, the next one last
        self._kept: Tensor | Seen | None = None

    def _put(self, given: dict[int, bytes]) -> bool:
        """Whether there was room, in number and in kind."""
        decoded = self._codec.decode(list(given.values()), self._device)
        decoded = decoded.even(PARTS) if isinstance(decoded, Seen) else decoded
        if self._kept is not None and _shapes(self._kept) != _shapes(decoded):
            return False
        if len(given) > len(self._free) and not self._grow(decoded, len(given)):
            return False
        assert self._kept is not None
        rows = [self._free.pop() for _ in given]
        places = torch.tensor(rows).to(self._device)
        for kept, found in zip(_tensors(self._kept), _tensors(decoded), strict=True):
            kept.index_copy_(0, places, found)
        self._rows |= zip(given, rows, strict=True)
        return True

    def _grow(self, like: Tensor | Seen, needed: int) -> bool:
        """At least twice as many rows as before; a batch finds room on an empty shelf always."""
        before = 0 if self._kept is None else len(_tensors(self._kept)[0])
        most = self._most() // sum(4 * math.prod(shape) for shape in _shapes(like))
        after = max(before + needed, min(2 * before, most))
        if before and after > most:
            return False

        def larger(old: Tensor) -> Tensor:
            return torch.cat([old, old.new_zeros(after - before, *old.shape[1:])])

        if self._kept is None:
            self._kept = _each(lambda tensor: tensor[:0], like)
        self._kept = _each(larger, self._kept)
        self._free = [*range(after - 1, before - 1, -1), *self._free]
        return True

    def _most(self) -> int:
        """Bytes."""
        if self._room is not None or self._device.type != "cuda":
            return self._room or KEPT_BYTES
        kept = 0 if self._kept is None else sum(tensor.nbytes for tensor in _tensors(self._kept))
        return min(KEPT_BYTES, (torch.cuda.mem_get_info(self._device)[0] + kept) // 4)


class CapturedStep:
    """`Learner.look_ahead`, padded and captured. What it returns holds until the next call."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._graphs: dict[tuple[tuple[int, ...], ...], _Graph] = {}

    @staticmethod
    def suits(learner: Learner) -> bool:
        """Whether this learner takes the step that is written out, and on the GPU in use."""
        if not learner.written_out or not learner.other.is_cuda:
            return False
        return learner.other.device.index == torch.cuda.current_device()

    def look_ahead(self, batch: Batch) -> Update:
        """Forward and backward."""
        question = self._learner.question(batch)
        size = max(len(question.target), self._learner.config.batch)
        room = 1 << max(4, (len(question.labels) - 1).bit_length())  # labels
        key = ((size, room), *_shapes(question.seen))
        if key not in self._graphs:
            self._graphs[key] = _Graph(self._learner, question, size, room)
        step, image = self._graphs[key].run(question)
        labels = len(question.labels)
        logits = step.logits[: len(question.target), :labels]
        return Update(logits, {**step.matrices, **step.vectors}, image)

    def clear(self) -> None:
        """Nothing of the last batches may stay."""
        for graph in self._graphs.values():
            graph.clear()


class _Graph:
    """A step of one size, with the places where it finds its question and leaves its answer."""

    def __init__(self, learner: Learner, like: Question, size: int, room: int) -> None:
        def empty(tensor: Tensor, count: int) -> Tensor:
            return tensor.new_zeros(count, *tensor.shape[1:])

        self._learner = learner
        self._question = like._replace(
            seen=like.seen.map(lambda tensor: empty(tensor, size)),
            target=empty(like.target, size),
            labels=empty(like.labels, room),
            mask=like.labels.new_zeros(size, room),
            weight=empty(like.weight, size),
        )
        self._found: tuple[Step, Tensor] | None = None
        self._replay: Callable[[], None] | None = None

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
        if self._replay is None:
            self._replay = capture(self._eager) if mine.target.is_cuda else self._eager
        self._replay()
        assert self._found is not None
        return self._found

    def clear(self) -> None:
        found = [] if self._found is None else [self._found[1]]
        for place in (*_tensors(self._question.seen), self._question.labels, *found):
            place.zero_()

    def _eager(self) -> None:
        learner, question = self._learner, self._question
        step = thin_step(learner.working, learner.other, learner.spec.tail, question)
        first = question.seen.pick(slice(1))
        self._found = step, learner.original_images(first)[0]


def _tensors(examples: Tensor | Seen) -> list[Tensor]:
    if isinstance(examples, Tensor):
        return [examples]
    parts, shares = examples.tokens
    return [examples.cls, parts] if shares is None else [examples.cls, parts, shares]


def _shapes(examples: Tensor | Seen) -> tuple[tuple[int, ...], ...]:
    """Of one example."""
    return tuple(tuple(tensor.shape[1:]) for tensor in _tensors(examples))


def _each(change: Callable[[Tensor], Tensor], examples: Tensor | Seen) -> Tensor | Seen:
    return change(examples) if isinstance(examples, Tensor) else examples.map(change)
