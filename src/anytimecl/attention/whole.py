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
    own = torch.addcmul(shift, tokens.parts[:, 0], gain).to(w_k.dtype)
    query = c.query_of(p, spec, own)
    light, gain, shift = (x.to(w_k.dtype) for x in (tokens.parts, gain, shift))
    met = c.each_head(query, w_k)  # [batch, head, width], the query as the tokens meet it
    weights = c.heavy(met * gain @ light.mT).softmax(-1)
    mixed = weights.to(light.dtype) @ light
    read = torch.addcmul(shift, mixed, gain)
    values = c.values_of(p, read, w_v)
    return Attended(values, query, own, weights, (light, gain, met, mixed, read))


def come_back(
    p: Mapping[str, Tensor], spec: TailSpec, tokens: Tokens, was: Attended, d_values: Tensor
) -> Returned:
    """The way back."""
    w_k, w_v = c.heads_of(p, spec)
    light, gain, met, mixed, read = was.kept
    d_read = c.each_head(d_values, w_v)
    d_weights = c.heavy(d_read * gain @ light.mT)
    d_asked = c.softmax_gradient(was.weights, d_weights).to(light.dtype) @ light
    d_met = d_asked * gain
    d_query = c.each_head(d_met, w_k.mT).flatten(1) * c.scale(spec)
    d_own = c.back_across(d_query, p["self_attn.q_proj.weight"])
    d_gain = c.total((d_read * mixed).addcmul_(d_asked, met))
    d_gain += (d_own * tokens.parts[:, 0]).sum(0)
    d_shift = c.total(d_read) + d_own.sum(0)
    return Returned(d_query, d_met, read, d_gain, d_shift)
