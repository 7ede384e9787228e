"""Validation of tokens and models for codecs."""

from __future__ import annotations

import torch
from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.errors import ModelError


def checked(tokens: Tensor, shape: tuple[int, int]) -> Tensor:
    """Tokens of one image as float32 on the CPU; ModelError for wrong shapes or infinities."""
    if tuple(tokens.shape) != shape:
        raise ModelError(
            f"A codec takes the tokens of one image, {shape[0]} of width {shape[1]}, "
            f"not {list(tokens.shape)}."
        )
    tokens = tokens.detach().to("cpu", torch.float32)
    if not torch.stack(torch.aminmax(tokens)).isfinite().all():
        raise ModelError("The backbone gave tokens that are not finite; they are not stored.")
    return tokens.contiguous()


def require_one_block(name: str, spec: Spec) -> None:
    """Raise ModelError unless the tail has one block, read from the class token."""
    tail = spec.tail
    if tail.blocks != 1 or tail.pool != "cls":
        has = f"{tail.blocks} blocks" if tail.blocks != 1 else f"{tail.pool!r} pooling"
        raise ModelError(
            f"The codec {name!r} needs a tail of one block that is read from the class token; "
            f'{spec.name} has {has}. Use codec="tokens-fp16", which works with any tail.'
        )
