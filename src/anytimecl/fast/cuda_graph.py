"""The online step as a CUDA graph: a hundred small kernels take longer to launch than to run.

For batches from the host, forward and backward are captured once for each size of the label set
(`CapturedStep`); batches are padded to a few sizes, with examples of weight 0 and masked labels.
For a stream the whole step is captured (`repeated.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anytimecl.fast.example_cache import shapes_of, tensors_of
from anytimecl.fast.step import StepInput, StepOutput, written_out_step
from anytimecl.step import Batch, Update

if TYPE_CHECKING:
    from anytimecl.fast.learner import FastLearner

_WARM_UP = 3  # steps before a capture, as CUDA wants them
_CAPTURING = threading.Lock()  # CUDA wants one at a time in a process


def capture(step: Callable[[], object]) -> Callable[[], None]:
    """Capture the kernels of a step; returns a function that replays them."""
    with _CAPTURING:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may predict meanwhile: their kernels are neither captured nor an error.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            step()
    replay: Callable[[], None] = graph.replay
    return replay


class CapturedStep:
    """`Learner.look_ahead`, padded and captured. What it returns holds until the next call."""

    def __init__(self, learner: FastLearner) -> None:
        self._learner = learner
        self._graphs: dict[tuple[tuple[int, ...], ...], _Graph] = {}

    def look_ahead(self, batch: Batch) -> Update:
        """Forward and backward."""
        question = self._learner.step_input(batch)
        size = max(len(question.target), self._learner.config.batch)
        room = 1 << max(4, (len(question.labels) - 1).bit_length())  # labels
        key = ((size, room), *shapes_of(question.seen))
        if key not in self._graphs:
            self._graphs[key] = _Graph(self._learner, question, size, room)
        step = self._graphs[key].run(question)
        labels = len(question.labels)
        logits = step.logits[: len(question.target), :labels]
        images = step.images[: len(question.target)]
        return Update(logits, images, {**step.matrices, **step.vectors})

    def clear(self) -> None:
        """Zero the buffers, which hold the last batches."""
        for graph in self._graphs.values():
            graph.clear()


class _Graph:
    """A captured step of one size, with its input and output buffers."""

    def __init__(self, learner: FastLearner, like: StepInput, size: int, room: int) -> None:
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
        self._found: StepOutput | None = None
        self._replay: Callable[[], None] | None = None

    def run(self, question: StepInput) -> StepOutput:
        """Copy the input into the buffers and replay."""
        mine, size, labels = self._question, len(question.target), len(question.labels)
        for place, tensor in zip(tensors_of(mine.seen), tensors_of(question.seen), strict=True):
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
        found = [] if self._found is None else [self._found.images]
        for place in (*tensors_of(self._question.seen), self._question.labels, *found):
            place.zero_()

    def _eager(self) -> None:
        learner, question = self._learner, self._question
        self._found = written_out_step(learner.working, learner.other, learner.spec.tail, question)
