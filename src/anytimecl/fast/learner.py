"""The learner's step by the fastest way that its tail and its device know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.codec import Codec
from anytimecl.fast.alike import alike_with_one_thread
from anytimecl.fast.bf16 import copies_of
from anytimecl.fast.cuda_graph import CapturedStep
from anytimecl.fast.example_cache import ExampleCache
from anytimecl.fast.low_rank import FusedAdamW
from anytimecl.fast.repeated import repeated
from anytimecl.fast.step import StepInput, supports, written_out_step
from anytimecl.learner import Learner
from anytimecl.optimiser import AdamW
from anytimecl.settings import LearnerConfig
from anytimecl.step import Batch, DeviceSteps, Update
from anytimecl.tail import TailInput, tail_input


class FastLearner(Learner):
    """`Learner` with a hand-written step for a one-block tail, as a CUDA graph on a GPU."""

    def __init__(self, spec: Spec, tail: Mapping[str, Tensor], config: LearnerConfig) -> None:
        # bfloat16 copies of some weights, for products.
        self.copies: dict[str, Tensor] = {}
        super().__init__(spec, tail, config)
        self.written_out = self.can_be_written_out()  # once: every step asks
        if self.written_out:
            self.copies |= copies_of(self.params, config.precision)
        self._captured: CapturedStep | None = None
        self._cache: ExampleCache | None = None
        self._alike: dict[int, bool] = {}  # by number of threads

    def can_be_written_out(self) -> bool:
        """Whether a step of this learner is the one in `step.py`; autograd takes the others."""
        # A pooling head on a GPU is left to autograd: it is not tested as a CUDA graph.
        here = bool(self.spec.tail.blocks) or not self.other.is_cuda
        return self.config.tune == "block" and supports(self.spec.tail) and here

    @property
    def alike(self) -> bool:
        """Whether steps are bit-identical with one torch thread and with all.

        Products in bfloat16 may be, depending on the processor; those of a GPU always are.
        """
        threads = torch.get_num_threads()
        if self.copies and threads > 1 and threads not in self._alike:
            self._alike[threads] = alike_with_one_thread(self)
        return super().alike or self.other.is_cuda or self._alike.get(threads, False)

    @property
    def on_gpu(self) -> bool:
        """Whether steps are captured: where they are written out, and on the GPU in use."""
        if not self.written_out or not self.other.is_cuda:
            return False
        return self.other.device.index == torch.cuda.current_device()

    @property
    def working(self) -> dict[str, Tensor]:
        """The weights as a step multiplies with them."""
        return self.params | self.copies

    def fresh_optimiser(self) -> AdamW:
        """AdamW over the trainable tensors, with zero moments."""
        return FusedAdamW(self.trainable(), self.config.weight_decay, self.copies)

    def look_ahead(self, batch: Batch) -> Update:
        """Forward and backward; on a GPU, what it returns holds until the next call."""
        if not self.written_out:
            return super().look_ahead(batch)
        if self.on_gpu and len(batch.target) <= self.config.batch:
            self._captured = self._captured or CapturedStep(self)
            return self._captured.look_ahead(batch)
        step = written_out_step(self.working, self.other, self.spec.tail, self.step_input(batch))
        return Update(step.logits, step.images, {**step.matrices, **step.vectors})

    def stepper(self, steps: DeviceSteps) -> Callable[[], None]:
        """On a GPU as one graph; elsewhere the same function as it is."""
        return repeated(self, steps) if self.other.is_cuda else super().stepper(steps)

    def decode(
        self, codec: Codec, examples: Sequence[int], records: Sequence[bytes]
    ) -> Tensor | TailInput:
        """Decode records to input of the tail; a GPU caches the result."""
        if not self.on_gpu:
            return codec.decode(records, self.other.device)
        self._cache = self._cache or ExampleCache(codec, self.other.device)
        return self._cache.take(examples, records)

    def let_go(self, examples: Sequence[int]) -> None:
        """Drop every cached copy of these examples."""
        if self._captured is not None:
            self._captured.clear()
        if self._cache is not None:
            for example in examples:
                self._cache.drop(example)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state` exactly."""
        super().restore(state)
        for name, light in self.copies.items():
            light.copy_(self.params[name])

    def step_input(self, batch: Batch) -> StepInput:
        """The batch as the step that is written out wants it."""
        size, scale, seen = len(batch.target), self.spec.logit_scale, batch.tokens
        labels = batch.vectors
        if len(self.shifts):
            labels = self.moved(labels, self.shifts, batch.rows)
        if isinstance(seen, Tensor):
            seen = tail_input(self.params, self.spec.tail, seen)
        return StepInput(
            seen,
            batch.target,
            labels,
            self.other.new_zeros(()) if batch.mask is None else batch.mask,
            self.other.new_full((size,), 1 / size) if batch.weight is None else batch.weight,
            scale,
            self.config.scale or scale,
            self.config.beta,
        )

    def stacked(self, names: Sequence[str]) -> Tensor:
        """Concatenate these weights, or their copies; each becomes a view of its part."""
        weights = self.copies or self.params
        whole = torch.cat([weights[name] for name in names])
        weights |= dict(zip(names, whole.chunk(len(names)), strict=True))
        return whole
