"""Attention over low-rank tokens with concatenated weights of query, key and value.

One product computes all three for every part, though only one query is needed: on a GPU that costs
less than a second kernel. The rest is small, and written as sums of products, which a compiler
fuses into few kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anytimecl.backbone.spec import TailSpec
from anytimecl.fast import layers as c
from anytimecl.fast.layers import Attended, Returned, Weights
from anytimecl.tail import Tokens

STACKED = "self_attn.qkv.weight"  # [3 * width, width]


def attend(p: Weights, spec: TailSpec, tokens: Tokens) -> Attended:
    """Forward pass."""
    affine = c.with_affine(tokens, p["layer_norm1.weight"], p["layer_norm1.bias"])
    made = c.across(affine, p[STACKED])  # [batch, part, 3 * width]
    shape = (*made.shape[:2], 3, spec.heads, -1)
    first, keys, values = made.view(shape).unbind(2)
    query = first[:, 0].flatten(1) + p["self_attn.q_proj.bias"]
    query = query.view(len(query), spec.heads, -1) * c.scale(spec)
    weights = _of_parts(tokens, _dot(query, keys)).softmax(-1)
    shares = _to_parts(tokens, weights)
    mixed = _mix(shares, values).flatten(1) + p["self_attn.v_proj.bias"]
    return Attended(mixed, query, affine[:, 0], weights, (affine, keys, values, shares))


def backward(
    p: Weights, spec: TailSpec, tokens: Tokens, was: Attended, d_values: Tensor
) -> Returned:
    """Backward pass."""
    affine, keys, values, shares = was.kept
    d_scores = c.softmax_gradient(was.weights, _of_parts(tokens, _dot(d_values, values)))
    d_shares = _to_parts(tokens, d_scores)
    d_query = _mix(d_shares, keys) * c.scale(spec)
    is_first = torch.arange(keys.shape[1], device=keys.device) == 0
    d_made = torch.stack(
        [
            is_first[:, None, None] * d_query.unsqueeze(1),
            d_shares.mT.unsqueeze(3) * was.query.unsqueeze(1),
            shares.mT.unsqueeze(3) * d_values.unsqueeze(1),
        ],
        2,
    )  # [batch, part, 3, head, depth]
    d_affine = c.across(d_made.flatten(2), p[STACKED].T)
    d_met, read = (_mix(its, affine.unsqueeze(2)) for its in (d_shares, shares))
    return Returned(d_query.flatten(1), d_met, read, *c.affine_gradients(tokens, d_affine))


def _dot(x: Tensor, of_parts: Tensor) -> Tensor:
    """[batch, head, depth] with [batch, part, head, depth]: [batch, head, part]."""
    return (x.unsqueeze(1) * of_parts).sum(3).mT


def _mix(shares: Tensor, of_parts: Tensor) -> Tensor:
    """[batch, head, part] of [batch, part, head, depth]: [batch, head, depth]."""
    shares = shares.mT.unsqueeze(3)
    total = shares[:, 0] * of_parts[:, 0]
    for part in range(1, of_parts.shape[1]):  # fuses into one kernel, unlike a reduction
        total = total + shares[:, part] * of_parts[:, part]
    return total


def _of_parts(tokens: Tokens, found: Tensor) -> Tensor:
    assert tokens.coefficients is not None
    return (found.unsqueeze(2) * tokens.coefficients.unsqueeze(1)).sum(3)


def _to_parts(tokens: Tokens, weights: Tensor) -> Tensor:
    assert tokens.coefficients is not None
    return (weights.unsqueeze(3) * tokens.coefficients.unsqueeze(1)).sum(2)
