"""Hand-written forward and backward pass of one step, with gradients of weights as two factors.

With a batch of 32 a weight's gradient has rank 32 at most: a product of two matrices of 32 rows.
Autograd computes the product, writes it to memory and has the optimiser read it back; here the
update of the weight multiplies the factors. The functions are plain enough for a compiler to fuse.
The tests compare them with autograd through `tail.embed` and `loss.anytime_loss`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple

from torch import Tensor

from anytimecl.backbone.spec import TailSpec
from anytimecl.backbone.trunk import activate
from anytimecl.fast import layers, pooled, stacked
from anytimecl.fast.layers import Attended, Returned, across, back_across, heavy, linear
from anytimecl.fast.low_rank import LowRank
from anytimecl.tail import Params, TailInput, Tokens


class StepOutput(NamedTuple):
    """Logits, embeddings and gradients of a batch."""

    logits: Tensor  # [batch, label], from before the update
    matrices: dict[str, LowRank]
    vectors: dict[str, Tensor]  # gradients of everything else, "other" among them
    images: Tensor  # [batch, dim], unit, of the tuned model


class StepInput(NamedTuple):
    """A batch of examples, and the parameters of its loss."""

    seen: TailInput
    target: Tensor  # [batch]
    labels: Tensor  # [label, dim], unit
    mask: Tensor  # [label] or [batch, label]; 0, or -inf where a label is no candidate
    weight: Tensor  # [batch], sum 1
    scale: float  # logit scale of the model
    loss_scale: float  # logit scale in the loss
    beta: float


def supports(spec: TailSpec) -> bool:
    """Whether this tail has a hand-written step."""
    return spec.mlp == "plain" and (spec.blocks, spec.pool) in ((1, "cls"), (0, "map"))


def written_out_step(params: Params, other: Tensor, spec: TailSpec, asked: StepInput) -> StepOutput:
    """Forward and backward pass of one block's class token, or of a pooling head."""
    logits, late, half = _late(params, other, spec, asked)
    early = _early(params, spec, asked.seen, half)
    both = Gradients(late.matrices | early.matrices, late.vectors | early.vectors)
    matrices, vectors = _full_names(spec, both)
    return StepOutput(logits, matrices, vectors, half.images)


class Gradients(NamedTuple):
    """Gradients of a part of the block."""

    matrices: dict[str, LowRank]
    vectors: dict[str, Tensor]


class Half(NamedTuple):
    """What the second half of the backward pass needs of the first."""

    attended: Attended
    out: Tensor  # [batch, width], of the attention, before the layer scale
    d_x1: Tensor  # [batch, width], gradient of the residual stream after it
    images: Tensor  # [batch, dim], unit, of the tuned model


def late_step(
    params: Params, other: Tensor, spec: TailSpec, asked: StepInput
) -> tuple[Tensor, Gradients, Half]:
    """Forward pass, and backward pass as far as the attention's output."""
    logits, found, half = _late(params, other, spec, asked)
    return logits, _full_names(spec, found), half


def early_step(params: Params, spec: TailSpec, seen: TailInput, half: Half) -> Gradients:
    """The rest of the backward pass, through the attention."""
    return _full_names(spec, _early(params, spec, seen, half))


def _late(
    params: Params, other: Tensor, spec: TailSpec, asked: StepInput
) -> tuple[Tensor, Gradients, Half]:
    p = _own_names(params, spec)
    attended: Attended = _form(p, asked.seen.tokens).attend(p, spec, asked.seen.tokens)
    attended_out = linear(p, "self_attn.out_proj", attended.values)
    scale1, scale2 = p.get("layer_scale1.lambda1"), p.get("layer_scale2.lambda1")
    alone = not spec.blocks  # a head has no residual and no norm behind it
    x1 = attended_out if scale1 is None else attended_out * scale1
    x1 = x1 if alone else asked.seen.cls + x1
    kind = p["mlp.fc1.weight"].dtype
    hidden_in, *met2 = layers.norm(p, "layer_norm2", x1, spec.norm_eps)
    hidden_in = hidden_in.to(kind)
    hidden = linear(p, "mlp.fc1", hidden_in)
    active = activate(spec, hidden).to(kind)
    out = linear(p, "mlp.fc2", active)
    x2 = x1 + (out if scale2 is None else out * scale2)
    last, *met3 = (x2,) if alone else layers.norm(p, "post_layernorm", x2, spec.norm_eps)
    projection = p.get("visual_projection.weight")
    features = last if projection is None else across(last, projection)
    length = features.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    unit = features / length
    logits = asked.scale * unit @ asked.labels.T + asked.mask

    loss_scale = asked.loss_scale
    d_cosine, d_other = layers.loss_gradient(
        loss_scale / asked.scale * logits,
        loss_scale * other,
        asked.target,
        asked.beta,
        loss_scale * asked.weight,  # so that it is by the cosines, of which "other" is one
    )
    d_unit = d_cosine @ asked.labels
    d_features = (d_unit - unit * (unit * d_unit).sum(-1, keepdim=True)) / length
    d_last = d_features if projection is None else across(d_features, projection.T)
    d_x2 = d_last if alone else layers.norm_input_gradient(p, "post_layernorm", d_last, x2, met3)
    d_out = d_x2 if scale2 is None else d_x2 * scale2
    light_d_out = d_out.to(kind)
    d_hidden = layers.activation_gradient(
        spec, hidden, back_across(light_d_out, p["mlp.fc2.weight"])
    )
    light_d_hidden = d_hidden.to(kind)
    d_hidden_in = back_across(light_d_hidden, p["mlp.fc1.weight"])
    d_normed, d_gain, d_shift = layers.norm_gradient(p, "layer_norm2", d_hidden_in, x1, met2)
    d_x1 = d_x2 + d_normed
    matrices = {
        "mlp.fc1": LowRank(light_d_hidden[:, None], hidden_in[:, None]),
        "mlp.fc2": LowRank(light_d_out[:, None], active[:, None]),
    }
    vectors = {
        "layer_norm2.weight": d_gain,
        "layer_norm2.bias": d_shift,
        "mlp.fc1.bias": d_hidden.sum(0),
        "mlp.fc2.bias": d_out.sum(0),
        OTHER: d_other,
    }
    if scale2 is not None:
        vectors["layer_scale2.lambda1"] = (d_x2 * out).sum(0)
    half = Half(attended, attended_out, d_x1, unit)
    return logits, Gradients(matrices, vectors), half


def _early(params: Params, spec: TailSpec, seen: TailInput, half: Half) -> Gradients:
    p = _own_names(params, spec)
    was, out, d_x1, _ = half
    kind, form = was.values.dtype, _form(p, seen.tokens)
    scale1 = p.get("layer_scale1.lambda1")
    d_out = d_x1 if scale1 is None else d_x1 * scale1
    light_d_out = d_out.to(kind)
    d_flat = back_across(light_d_out, p["self_attn.out_proj.weight"])
    d_values = d_flat.to(kind).view(len(d_flat), *was.query.shape[1:])
    back: Returned = form.backward(p, spec, seen.tokens, was, d_values)
    matrices = {
        "self_attn.q_proj": LowRank(back.d_query[:, None], was.asked[:, None]),
        "self_attn.k_proj": LowRank(was.query, back.d_met),
        "self_attn.v_proj": LowRank(d_values, back.read),
        "self_attn.out_proj": LowRank(light_d_out[:, None], was.values[:, None]),
    }
    vectors = {
        "self_attn.q_proj.bias": heavy(back.d_query).sum(0),
        "self_attn.v_proj.bias": d_flat.sum(0),
        "self_attn.out_proj.bias": d_out.sum(0),
    }
    if back.d_gain is not None and back.d_shift is not None:
        vectors |= {"layer_norm1.weight": back.d_gain, "layer_norm1.bias": back.d_shift}
    if scale1 is not None:
        vectors["layer_scale1.lambda1"] = (d_x1 * out).sum(0)
    return Gradients(matrices, vectors)


OTHER = "other"  # the logit that is learned beside the block
# A pooling head's weights, by the names that they would have in a block.
_IN_HEAD = {
    "self_attn.": "head.attention.",
    "layer_norm2.": "head.layernorm.",
    "mlp.": "head.mlp.",
    pooled.PROBE: "head.probe",
}


def _own_names(params: Params, spec: TailSpec) -> dict[str, Tensor]:
    if spec.blocks:
        at = f"layers.{spec.last}."
        return {name.removeprefix(at): value for name, value in params.items()}
    return {
        own + name.removeprefix(full): value
        for name, value in params.items()
        for own, full in _IN_HEAD.items()
        if name.startswith(full)
    }


def _full_name(spec: TailSpec, name: str) -> str:
    if name == OTHER:
        return name
    if spec.blocks:
        return f"layers.{spec.last}.{name}"
    own = next(own for own in _IN_HEAD if name.startswith(own))
    return _IN_HEAD[own] + name.removeprefix(own)


def _full_names(spec: TailSpec, found: Gradients) -> Gradients:
    return Gradients(
        {_full_name(spec, f"{name}.weight"): value for name, value in found.matrices.items()},
        {_full_name(spec, name): value for name, value in found.vectors.items()},
    )


def _form(p: Mapping[str, Tensor], tokens: Tokens) -> ModuleType:
    """Of the attention."""
    if pooled.PROBE in p:
        return pooled
    return stacked if tokens.coefficients is not None and stacked.STACKED in p else layers
