"""The last blocks of a vision transformer, as pure functions of a parameter mapping.

Only the class token leaves the last block, so that block runs for one query: keys and values
fold into it, and the patches are read once, as the constants that they are:

    q . (W_k x) = (W_k^T q) . x          sum_n p_n (W_v x_n) = W_v (sum_n p_n x_n)

The first layer norm splits the same way. Its centring and scaling belong to the image
(`normalise`, done once); its affine belongs to the weights and folds into query and value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone.spec import TailSpec
from anytimecl.backbone.trunk import activate, block

Params = Mapping[str, Tensor]


class Dense(NamedTuple):
    """Normalised tokens, as they are."""

    tokens: Tensor  # [batch, token, width]

    def dot(self, query: Tensor) -> Tensor:
        """[batch, head, width] -> [batch, head, token]."""
        return query @ self.tokens.mT

    def mix(self, weights: Tensor) -> Tensor:
        """[batch, head, token] -> [batch, head, width]."""
        return weights @ self.tokens


class LowRank(NamedTuple):
    """Normalised tokens as `coefficients @ components + mean`, never multiplied out."""

    coefficients: Tensor  # [batch, token, rank]
    components: Tensor  # [batch, rank, width]
    mean: Tensor  # [batch, width]

    def dot(self, query: Tensor) -> Tensor:
        """[batch, head, width] -> [batch, head, token]."""
        from_mean = query @ self.mean.unsqueeze(-1)
        return (query @ self.components.mT) @ self.coefficients.mT + from_mean

    def mix(self, weights: Tensor) -> Tensor:
        """[batch, head, token] -> [batch, head, width]."""
        total = weights.sum(-1, keepdim=True)
        return (weights @ self.coefficients) @ self.components + total * self.mean.unsqueeze(1)


class Factored(NamedTuple):
    """`LowRank` with its mean as one more component, whose coefficients are ones."""

    coefficients: Tensor  # [batch, token, rank]
    components: Tensor  # [batch, rank, width]

    def dot(self, query: Tensor) -> Tensor:
        """[batch, head, width] -> [batch, head, token]."""
        return (query @ self.components.mT) @ self.coefficients.mT

    def mix(self, weights: Tensor) -> Tensor:
        """[batch, head, token] -> [batch, head, width]."""
        return (weights @ self.coefficients) @ self.components


Patches = Dense | LowRank | Factored


class Seen(NamedTuple):
    """All that a one-block tail sees of a batch of images."""

    cls: Tensor  # [batch, width], raw: it also feeds the residual
    patches: Patches  # normalised: the block meets them only through its first norm

    def pick(self, rows: slice) -> Seen:
        """Some of the images."""
        return Seen(self.cls[rows], type(self.patches)(*(part[rows] for part in self.patches)))


def embed(params: Params, spec: TailSpec, tokens: Tensor | Seen) -> Tensor:
    """Image features [batch, dim], not yet of unit length, from the tokens entering the tail."""
    for index in range(spec.first, spec.last + (spec.pool == "map")):
        assert isinstance(tokens, Tensor), "only the last block can read compressed tokens"
        tokens = block(params, spec, index, tokens)
    if spec.pool == "map":
        assert isinstance(tokens, Tensor)
        return attention_pool(params, spec, _norm(params, "post_layernorm", tokens, spec.norm_eps))
    seen = tokens if isinstance(tokens, Seen) else look(tokens, spec.norm_eps)
    features = _norm(
        params, "post_layernorm", single_query_block(params, spec, seen), spec.norm_eps
    )
    projection = params.get("visual_projection.weight")
    return features if projection is None else features @ projection.T


def look(tokens: Tensor, eps: float) -> Seen:
    """Tokens [batch, token, width] as the last block sees them."""
    return Seen(tokens[:, 0], Dense(normalise(tokens, eps)[:, 1:]))


def normalise(x: Tensor, eps: float) -> Tensor:
    """A layer norm without its affine."""
    return F.layer_norm(x, x.shape[-1:], eps=eps)


def single_query_block(params: Params, spec: TailSpec, seen: Seen) -> Tensor:
    """The last block for the class token alone: [batch, width]."""
    at = f"layers.{spec.last}."
    gain, shift = params[at + "layer_norm1.weight"], params[at + "layer_norm1.bias"]
    own = normalise(seen.cls, spec.norm_eps)  # [batch, width]
    query = _linear(params, at + "self_attn.q_proj", own * gain + shift)
    attended = _attend(params, at + "self_attn.", spec.heads, query, own, seen.patches, gain, shift)
    x = seen.cls + _layer_scale(params, at + "layer_scale1", attended)
    return x + _layer_scale(params, at + "layer_scale2", _mlp(params, spec, at, x))


def attention_pool(params: Params, spec: TailSpec, tokens: Tensor) -> Tensor:
    """SigLIP's head: a learned probe attends to every token [batch, token, width]."""
    query = _linear(params, "head.attention.q_proj", params["head.probe"])
    query = query.expand(len(tokens), -1)
    x = _attend(params, "head.attention.", spec.heads, query, None, Dense(tokens), None, None)
    return x + _mlp_of(params, spec, "head.mlp.", _norm(params, "head.layernorm", x, spec.norm_eps))


def _attend(
    params: Params,
    at: str,
    heads: int,
    query: Tensor,  # [batch, width]
    own: Tensor | None,  # [batch, width], the query's own normalised token, if it has one
    others: Patches,
    gain: Tensor | None,
    shift: Tensor | None,
) -> Tensor:
    """One query's attention, with keys, values and the norm's affine folded into it.

    The key bias and the shift add the same to every score of a head, so softmax drops them.
    """
    w_k, w_v = params[at + "k_proj.weight"], params[at + "v_proj.weight"]
    batch, width = query.shape
    depth = width // heads
    q = query.view(batch, heads, depth) * depth**-0.5
    folded = torch.einsum("bhd,hdw->bhw", q, w_k.view(heads, depth, width))
    if gain is not None:
        folded = folded * gain
    scores = others.dot(folded)  # [batch, head, token]
    if own is not None:
        scores = torch.cat([folded @ own.unsqueeze(-1), scores], dim=-1)
    weights = scores.softmax(-1)
    if own is None:
        mixed = others.mix(weights)  # [batch, head, width]
    else:
        mixed = weights[..., :1] * own.unsqueeze(1) + others.mix(weights[..., 1:])
    if gain is not None and shift is not None:
        mixed = mixed * gain + shift
    values = torch.einsum("bhw,hdw->bhd", mixed, w_v.view(heads, depth, width))
    values = values.reshape(batch, width) + params[at + "v_proj.bias"]
    return _linear(params, at + "out_proj", values)


def _mlp(params: Params, spec: TailSpec, at: str, x: Tensor) -> Tensor:
    return _mlp_of(params, spec, at + "mlp.", _norm(params, at + "layer_norm2", x, spec.norm_eps))


def _mlp_of(params: Params, spec: TailSpec, at: str, x: Tensor) -> Tensor:
    return _linear(params, at + "fc2", activate(spec, _linear(params, at + "fc1", x)))


def _norm(params: Params, name: str, x: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], params[name + ".weight"], params[name + ".bias"], eps)


def _linear(params: Params, name: str, x: Tensor) -> Tensor:
    return F.linear(x, params[name + ".weight"], params[name + ".bias"])


def _layer_scale(params: Params, name: str, x: Tensor) -> Tensor:
    scale = params.get(name + ".lambda1")
    return x if scale is None else x * scale
