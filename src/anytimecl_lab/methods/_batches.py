"""Stage-wise training: shuffled batches, AdamW, and the paper's cosine schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from anytimecl.settings import LearnerConfig

_PLAIN = LearnerConfig()


@dataclass(frozen=True)
class Schedule:
    """AdamW as in the paper's offline training: 6e-4 at a batch of 2048, down to 1e-6 by cosine.

    Batches are smaller, for small data sets, with the learning rate scaled linearly. With 32 epochs
    each example is used as often as in online learning with batches of 32; chosen among 10, 32 and
    100 on held-out training images (recipes/paper/tuning.toml).
    """

    epochs: int = 32
    batch: int = 256
    lr: float = _PLAIN.offline_lr / _PLAIN.offline_batch  # per example in a batch ...
    per_example: bool = field(default=True, kw_only=True)  # ... or per batch
    least: float = _PLAIN.offline_least_lr
    weight_decay: float = _PLAIN.weight_decay


def train(
    leaves: Mapping[str, Tensor],  # changed in place
    loss: Callable[[Mapping[str, Tensor], list[int]], Tensor],  # of weights, for some examples
    examples: Sequence[int],
    schedule: Schedule,
    seed: int,
    after: Callable[[], None] = lambda: None,  # called after every step
) -> None:
    """Minimise the loss over the examples."""
    size = min(schedule.batch, len(examples))
    steps = schedule.epochs * math.ceil(len(examples) / size)
    top = max(schedule.lr * (size if schedule.per_example else 1), schedule.least)
    for value in leaves.values():
        value.requires_grad_()
    optimiser = torch.optim.AdamW(
        list(leaves.values()), lr=top, weight_decay=schedule.weight_decay, fused=True
    )
    for step, chosen in enumerate(batches(examples, size, schedule.epochs, seed)):
        down = (1 + math.cos(math.pi * step / steps)) / 2
        optimiser.param_groups[0]["lr"] = schedule.least + (top - schedule.least) * down
        optimiser.zero_grad(set_to_none=True)
        with torch.enable_grad():
            loss(leaves, chosen).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        after()
    for value in leaves.values():
        value.requires_grad_(False)
        value.grad = None


def batches(examples: Sequence[int], size: int, epochs: int, seed: int) -> Iterator[list[int]]:
    """Every example once per epoch, in random order.

    >>> sorted(sum(batches([7, 8, 9], size=2, epochs=1, seed=0), []))
    [7, 8, 9]
    """
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = [examples[i] for i in rng.permutation(len(examples))]
        for start in range(0, len(order), size):
            yield order[start : start + size]
