"""On a GPU: the whole step of a stream as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anytimecl.fast.cuda_graph import capture
from anytimecl.fast.stacked import STACKED
from anytimecl.fast.step import Gradients, Half, early_step, late_step
from anytimecl.step import DeviceSteps
from anytimecl.tail import Params, TailInput

if TYPE_CHECKING:
    from anytimecl.fast.learner import FastLearner


def repeated(learner: FastLearner, steps: DeviceSteps) -> Callable[[], None]:
    """`learner.take(steps)` as a CUDA graph; in two halves, if hand-written."""
    one = _in_halves(learner, steps) if learner.written_out else partial(learner.take, steps)
    changing = [*steps.tensors(), *learner.copies.values()]
    kept = [tensor.clone() for tensor in changing]
    with _tensor_cores(), _one_of_many():
        replay = capture(one)
    for tensor, before in zip(changing, kept, strict=True):
        tensor.copy_(before)
    return replay


def _in_halves(learner: FastLearner, steps: DeviceSteps) -> Callable[[], None]:
    """Update the MLP's weights while the gradients of the attention are computed."""
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    params, spec = _laid_out(learner, steps), learner.spec.tail
    rate, count = steps.rate, steps.count
    assert isinstance(rate, Tensor)
    assert isinstance(count, Tensor)

    def late() -> tuple[Gradients, TailInput, Half]:
        asked = learner.step_input(steps.batch())
        logits, gradients, half = late_step(params, learner.other, spec, asked)
        steps.score(logits, asked.target, half.images)
        return gradients, asked.seen, half

    def early(seen: TailInput, half: Half) -> Gradients:
        return early_step(params, spec, seen, half)

    if steps.compiled:
        late = torch.compile(late, dynamic=False)
        early = torch.compile(early, dynamic=False)

    def one() -> None:
        gradients, seen, half = late()
        beside.wait_stream(torch.cuda.current_stream())
        with steps.changing():
            with torch.cuda.stream(beside):
                learner.update(gradients.matrices, rate, count)
            rest = early(seen, half)
            learner.update({**rest.matrices, **rest.vectors, **gradients.vectors}, rate, count)
            torch.cuda.current_stream().wait_stream(beside)

    return one


def _laid_out(learner: FastLearner, steps: DeviceSteps) -> Params:
    """The weights; if compiled, with those of the attention concatenated.

    Uncompiled, that form would need more kernels, not fewer.
    """
    seen = steps.batch().tokens if steps.compiled else None
    if not isinstance(seen, TailInput) or seen.tokens.coefficients is None:
        return learner.working
    at = f"layers.{learner.spec.tail.last}."
    stacked = learner.stacked([f"{at}self_attn.{name}_proj.weight" for name in "qkv"])
    return learner.working | {at + STACKED: stacked}


@contextmanager
def _tensor_cores() -> Iterator[None]:
    """Products in TF32, whose mantissa is as long as that of the stored fp16 tokens."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _one_of_many() -> Iterator[None]:
    """Raise the compiler's recompilation limits: every stream has other sizes."""
    try:
        from torch import _dynamo  # takes a second to import
    except ImportError:  # it is private, and may move: then some streams are compiled in vain
        yield
        return
    limits = {
        name: 1 << 16
        for name in ("recompile_limit", "accumulated_recompile_limit")
        if hasattr(_dynamo.config, name)
    }
    with ExitStack() as stack:
        if limits:
            stack.enter_context(_dynamo.config.patch(limits))
        yield
