"""The attention of a pooling head, with a hand-written backward pass.

The learned probe gives one query for the whole batch, so the gradients of the query's and the keys'
weights have rank one for each head. Keys and values are folded in as in `layers.py`. The norm
before it is frozen: its affine has been applied to the tokens.
"""

from __future__ import annotations

from torch import Tensor

from anytimecl.backbone.spec import TailSpec
from anytimecl.fast import layers as c
from anytimecl.fast.layers import Attended, Returned, Weights, heads_of, query_of, scale, values_of
from anytimecl.tail import Tokens

PROBE = "probe"  # [1, width], among the weights of the head


def attend(p: Weights, spec: TailSpec, tokens: Tokens) -> Attended:
    """Forward pass, up to the values; `query` and `asked` have a batch of one."""
    w_k, w_v = heads_of(p, spec)
    asked, parts = p[PROBE].to(w_k.dtype), tokens.parts.to(w_k.dtype)
    query = query_of(p, spec, asked)
    met = c.each_head(query, w_k)[0]  # [head, width], the query as the parts meet it
    weights = tokens.of_parts(c.heavy(parts @ met.mT).mT).softmax(-1)
    read = tokens.to_parts(weights).to(parts.dtype) @ parts
    return Attended(values_of(p, read, w_v), query, asked, weights, (parts, read))


def backward(
    p: Weights, spec: TailSpec, tokens: Tokens, was: Attended, d_values: Tensor
) -> Returned:
    """Backward pass, from the gradient of the values, [batch, head, depth]."""
    w_k, w_v = heads_of(p, spec)
    parts, read = was.kept
    d_weights = tokens.of_parts(c.heavy(c.each_head(d_values, w_v) @ parts.mT))
    d_shares = tokens.to_parts(c.softmax_gradient(was.weights, d_weights)).to(parts.dtype)
    # [1, head, width]: over all images and parts at once.
    d_met = (d_shares.transpose(0, 1).flatten(1) @ parts.flatten(0, 1)).unsqueeze(0)
    d_query = c.each_head(d_met, w_k.mT).flatten(1) * scale(spec)
    return Returned(d_query, d_met, read, None, None)
