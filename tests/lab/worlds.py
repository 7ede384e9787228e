"""A tiny world whose classes can be told apart, for the tests of methods."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from tests.codec import tiny_tail
from torch import Tensor

from anytimecl.tail import TailInput, look, pick
from anytimecl_lab.methods.zscl import WORDS
from anytimecl_lab.world import World

CLASSES = ("ant", "bee", "cat", "dog")
NOVEL = ("elk", "fox")


def tokens_of(numbers: list[int], seed: int) -> Tensor:
    """Tokens [image, token, width]: a pattern of the class, and noise."""
    patterns = torch.randn(
        len(CLASSES + NOVEL), 1, tiny_tail.WIDTH, generator=torch.Generator().manual_seed(5)
    )
    noise = torch.Generator().manual_seed(seed)
    shape = (len(numbers), tiny_tail.TOKENS, tiny_tail.WIDTH)
    return patterns[numbers] + 0.8 * torch.randn(shape, generator=noise)


def seen(tokens: Tensor) -> TailInput:
    """As a one-block tail sees them, in half precision."""
    return look(tokens, 1e-5).map(Tensor.half)


def world(each: int = 12, seed: int = 0) -> World:
    """So many examples of each class, class after class."""
    numbers = [number for number in range(len(CLASSES)) for _ in range(each)]
    generator = torch.Generator().manual_seed(9)
    names = (*CLASSES, *NOVEL, *WORDS)
    vectors = F.normalize(torch.randn(len(names), tiny_tail.DIM, generator=generator), dim=-1)
    labels = [CLASSES[number] for number in numbers]
    return World(
        spec=tiny_tail.spec(),
        tail=tiny_tail.params(),
        examples=seen(tokens_of(numbers, seed=1)),
        labels=labels,
        vectors=dict(zip(names, vectors, strict=True)),
        seed=seed,
        arriving=list(range(len(labels))),
    )


def asked(each: int = 5) -> tuple[Tensor | TailInput, Tensor]:
    """Other images of every class, and their classes."""
    numbers = [number for number in range(len(CLASSES)) for _ in range(each)]
    tokens = seen(tokens_of(numbers, seed=2))
    return pick(tokens, torch.arange(len(numbers))), torch.tensor(numbers)
