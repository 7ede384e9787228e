"""Over tokens as they are: one query is less than the tokens, so it bears everything.

q . (W_k (g x + s)) = (g W_k^T q) . x + the same for every x;
sum p_n W_v (g x_n + s) = W_v (g (sum p_n x_n) + s).
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
    gain, shift = p["layer_norm1.weight"], p["layer_norm1.bias"]
    w_k, w_v = c.heads_of(p, spec)
    own = torch.addcmul(shift, tokens.parts[:, 0], gain)
    query = c.query_of(p, spec, own)
    met = c.each_head(query, w_k)  # [batch, head, width], the query as the tokens meet it
    weights = (met * gain @ tokens.parts.mT).softmax(-1)
    mixed = weights @ tokens.parts
    read = torch.addcmul(shift, mixed, gain)
    values = c.each_head(read, w_v.mT).flatten(1) + p["self_attn.v_proj.bias"]
    return Attended(values, query, own, weights, (met, mixed, read))


def come_back(
    p: Mapping[str, Tensor], spec: TailSpec, tokens: Tokens, was: Attended, d_values: Tensor
) -> Returned:
    """The way back."""
    gain, (w_k, w_v) = p["layer_norm1.weight"], c.heads_of(p, spec)
    met, mixed, read = was.kept
    d_read = c.each_head(d_values, w_v)
    d_scores = c.softmax_gradient(was.weights, d_read * gain @ tokens.parts.mT)
    d_asked = d_scores @ tokens.parts
    d_met = d_asked * gain
    d_query = c.each_head(d_met, w_k.mT).flatten(1) * c.scale(spec)
    d_own = c.back_across(d_query, p["self_attn.q_proj.weight"])
    d_gain = (d_read * mixed).addcmul_(d_asked, met).sum((0, 1))
    d_gain += (d_own * tokens.parts[:, 0]).sum(0)
    return Returned(d_query, d_met, read, d_gain, d_read.sum((0, 1)) + d_own.sum(0))
