"""Test whether a step is bit-identical with one torch thread and with all.

Libraries split a matrix product among threads by rows or columns of the result, which keeps the
order of summation, or along the inner dimension, as with a processor's matrix units, which does
not. No API says which, so it is tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.fast.step import StepInput, written_out_step
from anytimecl.tail import tail_input
from anytimecl.threads import one_thread

if TYPE_CHECKING:
    from anytimecl.fast.learner import FastLearner

LABELS = 10


@torch.no_grad()
def alike_with_one_thread(learner: FastLearner) -> bool:
    """Tried on batches of noise of several sizes, up to the largest."""
    largest = learner.config.batch
    sizes = {2**power for power in range(largest.bit_length())} | {largest, max(largest - 1, 1)}
    return all(_alike(learner, size) for size in sorted(sizes, reverse=True))


def _alike(learner: FastLearner, size: int) -> bool:
    with one_thread():
        alone = list(_products(learner, size))
    return all(map(torch.equal, alone, _products(learner, size)))


def _products(learner: FastLearner, size: int) -> Iterator[Tensor]:
    """Every result of a step, from the original weights, which no thread changes meanwhile."""
    spec, random = learner.spec, torch.Generator().manual_seed(size)
    tokens = torch.randn(size, spec.tokens, spec.tail.width, generator=random)
    labels = F.normalize(torch.randn(LABELS, spec.dim, generator=random), dim=-1)
    kinds = {name: copy.dtype for name, copy in learner.copies.items()}
    params = {n: p.to(kinds.get(n, p.dtype)) for n, p in learner.original.items()}
    asked = StepInput(
        tail_input(learner.original, spec.tail, tokens),
        torch.arange(size) % LABELS,
        labels,
        torch.zeros(()),
        torch.full((size,), 1 / size),
        spec.logit_scale,
        learner.config.scale or spec.logit_scale,
        learner.config.beta,
    )
    found = written_out_step(params, torch.zeros(()), spec.tail, asked)
    yield from (found.logits, found.images, learner.original_images(tokens[:1]))
    yield from (matrix.whole() for matrix in found.matrices.values())
    yield from found.vectors.values()
