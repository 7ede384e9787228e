"""The last blocks of a vision transformer, as pure functions of a parameter mapping.

Only the class token of the last block is used, so that block computes one query. The key and value
projections are applied to the query and to the weighted sum, never to every token:

    q . (W_k x) = (W_k^T q) . x          sum_n p_n (W_v x_n) = W_v (sum_n p_n x_n)

The first layer norm is split: centring and scaling depend on the image alone (`normalise`, computed
once per image), and its trainable affine is folded into query and value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone.spec import TailSpec
from anytimecl.backbone.trunk import after_attention, block, mlp, norm, turned

Params = Mapping[str, Tensor]
CENTRES = 2  # compressed form: the class token and the mean of the patches


class Tokens(NamedTuple):
    """Normalised tokens of a batch of images, the class token first, optionally in low-rank form.

    In low-rank form, tokens are `coefficients @ parts`, which is never computed. The first two
    parts (`CENTRES`) are the class token and the mean of the patches: each token has coefficient 1
    for one and 0 for the other. The rest are components, to which a norm's shift does not apply.
    """

    parts: Tensor  # [batch, part, width], the class token first
    coefficients: Tensor | None = None  # [batch, token, part]; None: each part is a token

    @classmethod
    def low_rank(cls, own: Tensor, mean: Tensor, components: Tensor, coefficients: Tensor) -> Self:
        """Class token [batch, width]; patches as `coefficients @ components + mean`."""
        parts = torch.cat([own.unsqueeze(1), mean.unsqueeze(1), components], 1)
        shares = F.pad(coefficients, (2, 0, 1, 0))
        shares[:, 0, 0] = 1
        shares[:, 1:, 1] = 1
        return cls(parts, shares)

    def of_parts(self, found: Tensor) -> Tensor:
        """Scores of parts, [batch, head, part], as scores of tokens, [.., token]."""
        return found if self.coefficients is None else found @ self.coefficients.mT

    def to_parts(self, weights: Tensor) -> Tensor:
        """Attention weights of tokens, [batch, head, token], as weights of parts, [.., part]."""
        return weights if self.coefficients is None else weights @ self.coefficients

    def filled(self, parts: int) -> Self:
        """Low-rank form, padded with zeros to this number of parts."""
        assert self.coefficients is not None, "tokens as they are cannot be more"
        spare = parts - self.parts.shape[1]
        return type(self)(F.pad(self.parts, (0, 0, 0, spare)), F.pad(self.coefficients, (0, spare)))

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Apply a function to each tensor."""
        shares = self.coefficients
        return type(self)(change(self.parts), None if shares is None else change(shares))


class TailInput(NamedTuple):
    """Input of a one-block tail for a batch of images."""

    cls: Tensor  # [batch, width], before the norm, for the residual; [batch, 0] for a pooling head
    tokens: Tokens  # after the first norm

    def map(self, change: Callable[[Tensor], Tensor]) -> TailInput:
        """Apply a function to each tensor."""
        return TailInput(change(self.cls), self.tokens.map(change))

    def pick(self, rows: slice) -> TailInput:
        """A slice of the batch."""
        return self.map(lambda tensor: tensor[rows])

    def even(self, least: int = 0) -> TailInput:
        """Low-rank form padded to a multiple of 8 parts, for tensor cores; else unchanged."""
        if self.tokens.coefficients is None:
            return self
        count = max(least, self.tokens.parts.shape[1])
        return TailInput(self.cls, self.tokens.filled(count + -count % 8))


def pick(examples: Tensor | TailInput, chosen: Tensor) -> Tensor | TailInput:
    """The chosen examples, in float32."""
    if isinstance(examples, Tensor):
        return examples.index_select(0, chosen).float()
    return examples.map(lambda tensor: tensor.index_select(0, chosen).float())


def first(examples: Tensor | TailInput) -> Tensor | TailInput:
    """The first example of a batch, bit for bit as if decoded alone: without padded parts."""
    if isinstance(examples, Tensor):
        return examples[:1]
    one = examples.pick(slice(1))
    parts, shares = one.tokens
    if shares is None:
        return one
    own = int(shares.any(1).nonzero()[-1, 1]) + 1
    return TailInput(one.cls, Tokens(parts[:, :own], shares[..., :own].clone()))


def embed(params: Params, spec: TailSpec, tokens: Tensor | TailInput) -> Tensor:
    """Image features [batch, dim], not normalised, from the tokens entering the tail."""
    for index in range(spec.first, spec.last + (spec.pool == "map")):
        assert isinstance(tokens, Tensor), "only the last block can read compressed tokens"
        tokens = block(params, spec, index, tokens)
    if spec.pool == "map":
        return attention_pool(params, spec, tail_input(params, spec, tokens).tokens)
    if spec.pool == "cls-rotary":
        assert isinstance(tokens, Tensor), "compressed tokens have no order"
        own = placed_query_block(params, spec, tokens)
    else:
        own = single_query_block(params, spec, tail_input(params, spec, tokens))
    features = norm(params, "post_layernorm", own, spec.norm_eps)
    projection = params.get("visual_projection.weight")
    return features if projection is None else features @ projection.T


def images_of(params: Params, spec: TailSpec, tokens: Tensor | TailInput) -> Tensor:
    """Image embeddings [batch, dim] of unit length, from the tokens entering the tail."""
    return F.normalize(embed(params, spec, tokens), dim=-1)


def first_image(params: Params, spec: TailSpec, tokens: Tensor | TailInput) -> Tensor:
    """Embedding [dim] of a batch's first image, as if it were alone: always the same bits."""
    return images_of(params, spec, first(tokens))[0].float().cpu()


def look(tokens: Tensor, eps: float) -> TailInput:
    """Tokens [batch, token, width] as input of a tail of one block."""
    return TailInput(tokens[:, 0], Tokens(normalise(tokens, eps)))


def tail_input(params: Params, spec: TailSpec, tokens: Tensor | TailInput) -> TailInput:
    """Input of the last block, or of the pooling head."""
    if isinstance(tokens, TailInput):
        return tokens
    if spec.pool != "map":
        return look(tokens, spec.norm_eps)
    # A head has no class token, and the norm before it is frozen.
    normed = norm(params, "post_layernorm", tokens, spec.norm_eps)
    return TailInput(normed[:, 0, :0], Tokens(normed))


def normalise(x: Tensor, eps: float) -> Tensor:
    """A layer norm without its affine.

    On a CPU by `group_norm` with one group: the same result in less than half the time.
    """
    if x.is_cuda:
        return F.layer_norm(x, x.shape[-1:], eps=eps)
    return F.group_norm(x.reshape(-1, x.shape[-1], 1), 1, eps=eps).view(x.shape)


def single_query_block(params: Params, spec: TailSpec, seen: TailInput) -> Tensor:
    """The last block's output for the class token: [batch, width]."""
    at = f"layers.{spec.last}."
    gain, shift = params[at + "layer_norm1.weight"], params[at + "layer_norm1.bias"]
    own = seen.tokens.parts[:, 0]
    query = _linear(params, at + "self_attn.q_proj", own * gain + shift)
    attended = _attend(params, at + "self_attn.", spec.heads, query, seen.tokens, (gain, shift))
    return after_attention(params, spec, at, seen.cls, attended)


def placed_query_block(params: Params, spec: TailSpec, tokens: Tensor) -> Tensor:
    """The last block's output for the class token, [batch, width], with rotary embeddings.

    The class token has no position, so its query is not rotated, and values fold as elsewhere.
    Each key has its own rotation, so keys are computed for every token.
    """
    assert spec.rotary is not None
    at = f"layers.{spec.last}."
    normed = norm(params, at + "layer_norm1", tokens, spec.norm_eps)
    query = _linear(params, at + "self_attn.q_proj", normed[:, 0])
    weight, bias = (params.get(f"{at}self_attn.k_proj.{part}") for part in ("weight", "bias"))
    assert weight is not None
    batch, count, width = normed.shape
    keys = F.linear(normed, weight, bias).view(batch, count, spec.heads, -1).transpose(1, 2)
    query = query.view(batch, spec.heads, 1, -1) * (width // spec.heads) ** -0.5
    scores = query @ turned(keys, spec.rotary).mT  # [batch, head, 1, token]
    mixed = scores.squeeze(2).softmax(-1) @ normed  # [batch, head, width]
    attended = _values(params, at + "self_attn.", spec.heads, mixed)
    return after_attention(params, spec, at, tokens[:, 0], attended)


def attention_pool(params: Params, spec: TailSpec, tokens: Tokens) -> Tensor:
    """SigLIP's attention pooling: a learned query attends to every token."""
    query = _linear(params, "head.attention.q_proj", params["head.probe"])
    query = query.expand(len(tokens.parts), -1)
    x = _attend(params, "head.attention.", spec.heads, query, tokens)
    return x + mlp(params, spec, "head.mlp.", norm(params, "head.layernorm", x, spec.norm_eps))


def _attend(
    params: Params,
    at: str,
    heads: int,
    query: Tensor,  # [batch, width]
    tokens: Tokens,
    affine: tuple[Tensor, Tensor] | None = None,  # gain and shift of the norm, [width] each
) -> Tensor:
    """Attention of one query per image; key and value projections and the affine are folded in.

    The key bias and the shift add a constant to all scores of a head, so softmax cancels them.
    """
    w_k = params[at + "k_proj.weight"]
    batch, width = query.shape
    depth = width // heads
    q = query.view(batch, heads, depth) * depth**-0.5
    folded = torch.einsum("bhd,hdw->bhw", q, w_k.view(heads, depth, width))
    if affine is not None:
        folded = folded * affine[0]
    weights = tokens.of_parts(folded @ tokens.parts.mT).softmax(-1)  # [batch, head, token]
    mixed = tokens.to_parts(weights) @ tokens.parts  # [batch, head, width]
    if affine is not None:
        mixed = mixed * affine[0] + affine[1]
    return _values(params, at, heads, mixed)


def _values(params: Params, at: str, heads: int, mixed: Tensor) -> Tensor:
    """Value and output projections of each head's weighted sum of tokens [batch, head, width]."""
    batch, _, width = mixed.shape
    weight = params[at + "v_proj.weight"].view(heads, -1, width)
    values = torch.einsum("bhw,hdw->bhd", mixed, weight)
    values = values.reshape(batch, width) + params[at + "v_proj.bias"]
    return _linear(params, at + "out_proj", values)


def _linear(params: Params, name: str, x: Tensor) -> Tensor:
    return F.linear(x, params[name + ".weight"], params[name + ".bias"])
