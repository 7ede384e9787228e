"""Over parts, of which there are few: the norm's affine is put on them.

Keys and values fold into the query, as in `whole.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from anytimecl.attention import _common as c
from anytimecl.attention._common import Attended, Returned
from anytimecl.backbone.spec import TailSpec
from anytimecl.tail import Tokens


def attend(p: Mapping[str, Tensor], spec: TailSpec, tokens: Tokens) -> Attended:
    """The way forward."""
    w_k, w_v = c.heads_of(p, spec)
    affine = c.with_affine(tokens, p["layer_norm1.weight"], p["layer_norm1.bias"]).to(w_k.dtype)
    own = affine[:, 0]
    query = c.query_of(p, spec, own)
    met = c.each_head(query, w_k)  # [batch, head, width], the query as the parts meet it
    weights = tokens.of_parts(c.heavy(met @ affine.mT)).softmax(-1)
    shares = tokens.to_parts(weights).to(affine.dtype)  # [batch, head, part]
    read = shares @ affine
    values = c.values_of(p, read, w_v)
    return Attended(values, query, own, weights, (affine, met, shares, read))


def come_back(
    p: Mapping[str, Tensor], spec: TailSpec, tokens: Tokens, was: Attended, d_values: Tensor
) -> Returned:
    """The way back."""
    w_k, w_v = c.heads_of(p, spec)
    affine, met, shares, read = was.kept
    d_read = c.each_head(d_values, w_v)
    d_weights = tokens.of_parts(c.heavy(d_read @ affine.mT))
    d_shares = tokens.to_parts(c.softmax_gradient(was.weights, d_weights)).to(affine.dtype)
    d_met = d_shares @ affine
    d_query = c.each_head(d_met, w_k.mT).flatten(1) * c.scale(spec)
    d_affine = c.heavy(torch.baddbmm(shares.mT @ d_read, d_shares.mT, met))
    d_affine[:, 0] += c.back_across(d_query, p["self_attn.q_proj.weight"])
    return Returned(d_query, d_met, read, *c.affine_gradients(tokens, d_affine))
