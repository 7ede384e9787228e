"""What the forms of attention share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone.spec import TailSpec
from anytimecl.tail import CENTRES, Tokens

_THIN = 64  # examples at most, for the way back in halves to pay
_ONEDNN = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


class Attended(NamedTuple):
    """What one query read, and what the way back needs of the way forward.

    In `whole` and `parts`, what will be multiplied with weights is in their precision already.
    """

    values: Tensor  # [batch, width]
    query: Tensor  # [batch, head, depth], scaled
    asked: Tensor  # [batch, width], the class token, from which the query was made
    weights: Tensor  # [batch, head, token]
    kept: tuple[Tensor, ...]  # what this form alone needs


class Returned(NamedTuple):
    """What comes back. The weights' gradients are products of two factors, of which one is here."""

    d_query: Tensor  # [batch, width], before the scale
    d_met: Tensor  # [batch, head, width]; with `query` it makes the gradient of the keys' weight
    read: Tensor  # [batch, head, width]; with `d_values`, that of the values' weight
    d_gain: Tensor  # [width], of the first norm
    d_shift: Tensor  # [width]


def scale(spec: TailSpec) -> float:
    """Of the scores."""
    return float((spec.width // spec.heads) ** -0.5)


def query_of(p: Mapping[str, Tensor], spec: TailSpec, own: Tensor) -> Tensor:
    """[batch, head, depth], scaled, of the class token [batch, width]."""
    query = linear(p, "self_attn.q_proj", own) * scale(spec)
    return query.to(own.dtype).view(len(query), spec.heads, -1)


def heads_of(p: Mapping[str, Tensor], spec: TailSpec) -> tuple[Tensor, Tensor]:
    """Weights of keys and values, [head, depth, width] each."""
    w_k, w_v = (p[f"self_attn.{name}_proj.weight"] for name in "kv")
    shape = (spec.heads, -1, spec.width)
    return w_k.view(shape), w_v.view(shape)


def values_of(p: Mapping[str, Tensor], read: Tensor, w_v: Tensor) -> Tensor:
    """[batch, width], of what the heads have read, [batch, head, width]."""
    values = each_head(read, w_v.mT).flatten(1) + p["self_attn.v_proj.bias"]
    return values.to(w_v.dtype)


def each_head(x: Tensor, matrices: Tensor) -> Tensor:
    """[batch, head, a] and [head, a, b] to [batch, head, b]."""
    return torch.bmm(x.transpose(0, 1), matrices).transpose(0, 1)


def softmax_gradient(weights: Tensor, d: Tensor) -> Tensor:
    """By the scores, from the gradient by the weights."""
    return weights * (d - (weights * d).sum(-1, keepdim=True))


def total(x: Tensor) -> Tensor:
    """[batch, head, width] over images and heads: [width].

    In bfloat16 as a product, which adds up in float32 what a sum would convert first. The total is
    rounded to bfloat16, as the gradients of weights are.
    """
    if x.is_cuda or x.dtype != torch.bfloat16:
        return heavy(x).sum((0, 1))
    rows = x.transpose(0, 1).flatten(0, 1)
    return heavy(rows.new_ones(1, len(rows)) @ rows)[0]


def heavy(x: Tensor) -> Tensor:
    """Out of bfloat16."""
    return x.float() if x.dtype == torch.bfloat16 else x


def with_affine(tokens: Tokens, gain: Tensor, shift: Tensor) -> Tensor:
    """The parts [batch, part, width] of the tokens after the norm's affine.

    Components are differences of tokens: the shift is not in them. It adds the same to every
    score of a head, and softmax drops that.
    """
    moved = torch.arange(tokens.parts.shape[1], device=shift.device) < CENTRES
    return torch.addcmul(moved.unsqueeze(1) * shift, tokens.parts, gain)


def affine_gradients(tokens: Tokens, d_affine: Tensor) -> tuple[Tensor, Tensor]:
    """Of gain and shift, [width] each, from that of the parts."""
    return (d_affine * tokens.parts).sum((0, 1)), d_affine[:, :CENTRES].sum((0, 1))


def linear(p: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    """With weight and bias by name."""
    return across(x, p[name + ".weight"], p[name + ".bias"])


def across(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`; with a weight in bfloat16 the product is, too, but not what comes of it.

    On a CPU always by oneDNN, which is half as fast again where the batch is this thin.
    """
    if weight.dtype == torch.bfloat16:
        light = F.linear(x.to(weight.dtype), weight)
        return light.float() if bias is None else light + bias  # which is in float32
    if x.device.type != "cpu" or x.dtype != torch.float32 or not _ONEDNN:
        return F.linear(x, weight, bias)
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


def back_across(d: Tensor, weight: Tensor) -> Tensor:
    """`d @ weight`: the way back through a linear layer.

    On a CPU by rows of the weight, in two halves that are added: so each thread reads the rows that
    it will update. Where cores are far apart, a weight that all had to read takes much longer to
    change. There are always two halves, and so the rounding is always the same.
    """
    if d.is_cuda or len(d) > _THIN or len(weight) % 2:
        return across(d, weight.T)
    halves = d.to(weight.dtype).reshape(len(d), 2, -1).transpose(0, 1)
    found = torch.bmm(halves, weight.view(2, -1, weight.shape[1]))
    return found[0].float().add_(found[1]) if found.dtype == torch.bfloat16 else found.sum(0)
