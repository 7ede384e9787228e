"""Products with weights whose gradients land in room that is kept for them.

The gradients of a block are as large as the block. Fresh memory for them at every step costs a CPU
more than the products themselves: the system hands it out page by page, each one cleared first.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function


def linear(x: Tensor, weight: Tensor, bias: Tensor, room: Tensor | None) -> Tensor:
    """`F.linear`; x is [batch, in]."""
    if room is None:
        return F.linear(x, weight, bias)
    y: Tensor = _Linear.apply(x, weight, bias, room)  # type: ignore[no-untyped-call]
    return y


def fold(q: Tensor, weight: Tensor, room: Tensor | None) -> Tensor:
    """Queries [batch, head, depth] seen from the input, [batch, head, width]."""
    if room is None:
        return torch.einsum("bhd,hdw->bhw", q, weight.view(*q.shape[1:], -1))
    y: Tensor = _Fold.apply(q, weight, room)  # type: ignore[no-untyped-call]
    return y


def unfold(x: Tensor, weight: Tensor, room: Tensor | None) -> Tensor:
    """Mixed inputs [batch, head, width] as values [batch, head, depth]."""
    heads, width = x.shape[1:]
    if room is None:
        return torch.einsum("bhw,hdw->bhd", x, weight.view(heads, -1, width))
    y: Tensor = _Unfold.apply(x, weight, room)  # type: ignore[no-untyped-call]
    return y


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, room: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.room = room
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        (g,) = outputs
        x, weight = ctx.saved_tensors
        x_gradient = g @ weight if ctx.needs_input_grad[0] else None
        return x_gradient, torch.mm(g.T, x, out=ctx.room), g.sum(0), None


class _Fold(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, weight: Tensor, room: Tensor) -> Tensor:
        ctx.save_for_backward(q, weight)
        ctx.room = room
        return _by_head(q, weight.view(*q.shape[1:], -1))

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        (g,) = outputs
        q, weight = ctx.saved_tensors
        shaped = weight.view(*q.shape[1:], -1)  # [head, depth, width]
        torch.bmm(q.permute(1, 2, 0), g.transpose(0, 1), out=ctx.room.view(shaped.shape))
        return _by_head(g, shaped.mT), ctx.room, None


class _Unfold(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, room: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.room = room
        return _by_head(x, weight.view(x.shape[1], -1, x.shape[2]).mT)

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> Any:
        (g,) = outputs
        x, weight = ctx.saved_tensors
        shaped = weight.view(x.shape[1], -1, x.shape[2])  # [head, depth, width]
        torch.bmm(g.permute(1, 2, 0), x.transpose(0, 1), out=ctx.room.view(shaped.shape))
        return _by_head(g, shaped), ctx.room, None


def _by_head(x: Tensor, matrices: Tensor) -> Tensor:
    """[batch, head, a] and [head, a, b] to [batch, head, b]."""
    return torch.bmm(x.transpose(0, 1), matrices).transpose(0, 1)
