"""The layers of a block and the loss, forward and backward, each way written out.

Weights may be in bfloat16: then a product is, too, and what comes of it is in float32 again.

The attention of one query has three forms, equal up to rounding:

    whole     full tokens; key and value projections and the norm's affine are folded in,
              q . (W_k (g x + s)) = (g W_k^T q) . x + a constant for every x
              sum p_n W_v (g x_n + s) = W_v (g (sum p_n x_n) + s)
    parts     low-rank tokens (`tail.Tokens`); the norm's affine is applied to the few parts
    stacked   low-rank tokens (`stacked.py`); queries, keys and values of all parts in one product

The first two need the fewest operations. The third needs the fewest kernels once compiled: it is
used on a GPU, where the three weights were concatenated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone.spec import TailSpec
from anytimecl.tail import CENTRES, Tokens
from anytimecl.threads import one_thread

Weights = Mapping[str, Tensor]  # of the block, by their names in it
_FEW = 64  # examples at most for `back_across` to multiply in halves
# oneDNN's linear layer, if this torch has it.
_ONEDNN: Callable[..., Tensor] | None = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    else None
)


def linear(p: Weights, name: str, x: Tensor) -> Tensor:
    """Linear layer with named weight and bias."""
    return across(x, p[name + ".weight"], p[name + ".bias"])


def across(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`; on a CPU by oneDNN, which is half as fast again for a batch this small."""
    if weight.dtype == torch.bfloat16:
        light = F.linear(x.to(weight.dtype), weight)
        return light.float() if bias is None else light + bias  # which is in float32
    if x.device.type != "cpu" or x.dtype != torch.float32 or _ONEDNN is None:
        return F.linear(x, weight, bias)
    return _ONEDNN(x, weight, bias, "none", [], "")


def back_across(d: Tensor, weight: Tensor) -> Tensor:
    """`d @ weight`: backward through a linear layer.

    On a CPU as the sum of two products, over half of the weight's rows each: so each thread reads
    the rows that it will update, and updating a weight that every core has read takes much longer
    where cores are far apart. There are always two halves, so that rounding is the same.
    """
    if d.is_cuda or len(d) > _FEW or len(weight) % 2:
        return across(d, weight.T)
    halves = d.to(weight.dtype).reshape(len(d), 2, -1).transpose(0, 1)
    found = torch.bmm(halves, weight.view(2, -1, weight.shape[1]))
    return found[0].float().add_(found[1]) if found.dtype == torch.bfloat16 else found.sum(0)


def each_head(x: Tensor, matrices: Tensor) -> Tensor:
    """[batch, head, a] and [head, a, b] to [batch, head, b]."""
    return torch.bmm(x.transpose(0, 1), matrices).transpose(0, 1)


def heavy(x: Tensor) -> Tensor:
    """Convert bfloat16 to float32."""
    return x.float() if x.dtype == torch.bfloat16 else x


def total(x: Tensor) -> Tensor:
    """[batch, head, width] over images and heads: [width].

    In bfloat16 as a product, which adds up in float32 what a sum would convert first. The total is
    rounded to bfloat16, as the gradients of weights are.
    """
    if x.is_cuda or x.dtype != torch.bfloat16:
        return heavy(x).sum((0, 1))
    rows = x.transpose(0, 1).flatten(0, 1)
    return heavy(rows.new_ones(1, len(rows)) @ rows)[0]


def norm(p: Weights, name: str, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """A layer norm, and the mean and one over the spread [batch, 1] that it met."""
    gain, shift = p[name + ".weight"], p[name + ".bias"]
    return torch.native_layer_norm(x, x.shape[-1:], gain, shift, eps)


def norm_gradient(
    p: Weights, name: str, d: Tensor, x: Tensor, met: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """By `x` [batch, width], by the gain and by the shift [width] each."""
    gain, shift = p[name + ".weight"], p[name + ".bias"]
    with nullcontext() if d.is_cuda else one_thread():
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(
            d, x, x.shape[-1:], *met, gain, shift, [True, True, True]
        )
    return found


def norm_input_gradient(
    p: Weights, name: str, d: Tensor, x: Tensor, met: Sequence[Tensor]
) -> Tensor:
    """`norm_gradient` by `x` alone: each row by itself, alike with any number of threads."""
    gain, shift = p[name + ".weight"], p[name + ".bias"]
    found: Tensor = torch.ops.aten.native_layer_norm_backward(
        d, x, x.shape[-1:], *met, gain, shift, [True, False, False]
    )[0]
    return found


def activation_gradient(spec: TailSpec, x: Tensor, d: Tensor) -> Tensor:
    """Of the MLP's activation."""
    aten = torch.ops.aten
    found: Tensor
    if spec.activation in ("quick_gelu", "silu"):  # the one is the other, of a stretched argument
        found = aten.silu_backward(d, 1.702 * x if spec.activation == "quick_gelu" else x)
    else:
        approximate = "tanh" if spec.activation == "gelu_tanh" else "none"
        found = aten.gelu_backward(d, x, approximate=approximate)
    return found


def softmax_gradient(weights: Tensor, d: Tensor) -> Tensor:
    """By the scores, from the gradient by the weights."""
    return weights * (d - (weights * d).sum(-1, keepdim=True))


def loss_gradient(
    logits: Tensor,  # [batch, label], at the scale of the loss
    other: Tensor,  # [], likewise
    target: Tensor,  # [batch]
    beta: float,
    weight: Tensor,  # [batch], sum 1
) -> tuple[Tensor, Tensor]:
    """Of `loss.anytime_loss` by the logits [batch, label], and by "other" []."""
    everything = torch.cat([logits, other.expand(len(logits), 1)], 1)  # [batch, label + 1]
    columns = torch.arange(everything.shape[1], device=logits.device)
    is_target = columns == target[:, None]
    is_other = columns == everything.shape[1] - 1
    right = everything.softmax(1) - is_target.to(logits.dtype)
    absent = everything.masked_fill(is_target, -torch.inf).softmax(1) - is_other.to(logits.dtype)
    found = weight[:, None] * (right + beta * absent)
    return found[:, :-1], found[:, -1].sum()


class Attended(NamedTuple):
    """Result of the attention of one query, and what its backward pass needs.

    In the first two forms, factors of products with weights are in the weights' precision.
    """

    values: Tensor  # [batch, width]
    query: Tensor  # [batch, head, depth], scaled
    asked: Tensor  # [batch, width], the class token, input of the query projection
    weights: Tensor  # [batch, head, token]
    kept: tuple[Tensor, ...]  # what this form's backward needs


class Returned(NamedTuple):
    """Gradients. Those of weights are products of two factors, of which one is here."""

    d_query: Tensor  # [batch, width], before the scale
    d_met: Tensor  # [batch, head, width]; with `query`, gradient of the keys' weight
    read: Tensor  # [batch, head, width]; with `d_values`, gradient of the values' weight
    d_gain: Tensor | None  # [width], of the first norm; None if frozen
    d_shift: Tensor | None  # [width]


def attend(p: Weights, spec: TailSpec, tokens: Tokens) -> Attended:
    """Forward pass, up to the values."""
    if tokens.coefficients is None:
        return _attend_whole(p, spec, tokens)
    return _attend_parts(p, spec, tokens)


def backward(
    p: Weights, spec: TailSpec, tokens: Tokens, was: Attended, d_values: Tensor
) -> Returned:
    """Backward pass, from the gradient of the values, [batch, head, depth]."""
    if tokens.coefficients is None:
        return _whole_backward(p, spec, tokens, was, d_values)
    return _parts_backward(p, spec, tokens, was, d_values)


def scale(spec: TailSpec) -> float:
    """Of the scores."""
    return float((spec.width // spec.heads) ** -0.5)


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


def _attend_whole(p: Weights, spec: TailSpec, tokens: Tokens) -> Attended:
    gain, shift = p["layer_norm1.weight"], p["layer_norm1.bias"]
    w_k, w_v = heads_of(p, spec)
    own = torch.addcmul(shift, tokens.parts[:, 0], gain).to(w_k.dtype)
    query = query_of(p, spec, own)
    light, gain, shift = (x.to(w_k.dtype) for x in (tokens.parts, gain, shift))
    met = each_head(query, w_k)  # [batch, head, width], the query as the tokens meet it
    weights = heavy(met * gain @ light.mT).softmax(-1)
    mixed = weights.to(light.dtype) @ light
    read = torch.addcmul(shift, mixed, gain)
    values = values_of(p, read, w_v)
    return Attended(values, query, own, weights, (light, gain, met, mixed, read))


def _whole_backward(
    p: Weights, spec: TailSpec, tokens: Tokens, was: Attended, d_values: Tensor
) -> Returned:
    w_k, w_v = heads_of(p, spec)
    light, gain, met, mixed, read = was.kept
    d_read = each_head(d_values, w_v)
    d_weights = heavy(d_read * gain @ light.mT)
    d_asked = softmax_gradient(was.weights, d_weights).to(light.dtype) @ light
    d_met = d_asked * gain
    d_query = each_head(d_met, w_k.mT).flatten(1) * scale(spec)
    d_own = back_across(d_query, p["self_attn.q_proj.weight"])
    d_gain = total((d_read * mixed).addcmul_(d_asked, met))
    d_gain += (d_own * tokens.parts[:, 0]).sum(0)
    d_shift = total(d_read) + d_own.sum(0)
    return Returned(d_query, d_met, read, d_gain, d_shift)


def _attend_parts(p: Weights, spec: TailSpec, tokens: Tokens) -> Attended:
    w_k, w_v = heads_of(p, spec)
    affine = with_affine(tokens, p["layer_norm1.weight"], p["layer_norm1.bias"]).to(w_k.dtype)
    own = affine[:, 0]
    query = query_of(p, spec, own)
    met = each_head(query, w_k)  # [batch, head, width], the query as the parts meet it
    assert tokens.coefficients is not None, "a form for tokens as sums of parts"
    coefficients = tokens.coefficients
    weights = (heavy(met @ affine.mT) @ coefficients.mT).softmax(-1)
    shares = (weights @ coefficients).to(affine.dtype)  # [batch, head, part]
    read = shares @ affine
    values = values_of(p, read, w_v)
    return Attended(values, query, own, weights, (affine, met, shares, read))


def _parts_backward(
    p: Weights, spec: TailSpec, tokens: Tokens, was: Attended, d_values: Tensor
) -> Returned:
    w_k, w_v = heads_of(p, spec)
    affine, met, shares, read = was.kept
    d_read = each_head(d_values, w_v)
    assert tokens.coefficients is not None, "a form for tokens as sums of parts"
    coefficients = tokens.coefficients
    d_weights = heavy(d_read @ affine.mT) @ coefficients.mT
    d_shares = (softmax_gradient(was.weights, d_weights) @ coefficients).to(affine.dtype)
    d_met = d_shares @ affine
    d_query = each_head(d_met, w_k.mT).flatten(1) * scale(spec)
    d_affine = heavy(torch.baddbmm(shares.mT @ d_read, d_shares.mT, met))
    d_affine[:, 0] += back_across(d_query, p["self_attn.q_proj.weight"])
    return Returned(d_query, d_met, read, *affine_gradients(tokens, d_affine))


def query_of(p: Weights, spec: TailSpec, own: Tensor) -> Tensor:
    """[batch, head, depth], scaled, of the class token [batch, width]."""
    query = linear(p, "self_attn.q_proj", own) * scale(spec)
    return query.to(own.dtype).view(len(query), spec.heads, -1)


def heads_of(p: Weights, spec: TailSpec) -> tuple[Tensor, Tensor]:
    """Weights of keys and values, [head, depth, width] each."""
    w_k, w_v = (p[f"self_attn.{name}_proj.weight"] for name in "kv")
    shape = (spec.heads, -1, spec.width)
    return w_k.view(shape), w_v.view(shape)


def values_of(p: Weights, read: Tensor, w_v: Tensor) -> Tensor:
    """[batch, width], of what the heads have read, [batch, head, width]."""
    values = each_head(read, w_v.mT).flatten(1) + p["self_attn.v_proj.bias"]
    return values.to(w_v.dtype)
