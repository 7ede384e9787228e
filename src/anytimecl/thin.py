"""Forward and backward of one step, written out, with every large gradient left as two factors.

A batch of 32 gives a weight a gradient that is a product of two thin matrices, 32 rows each.
Autograd multiplies it out, to be written to memory and read back by the optimiser; here it is
left as it is, and whoever updates the weight multiplies where it stands. The functions are plain
enough for a compiler to fuse. They say the same as `tail.embed` under `loss.anytime_loss`, and the
tests hold them to that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anytimecl.attention import Attended, across, attend, back_across, come_back, heavy, linear
from anytimecl.backbone.spec import TailSpec
from anytimecl.backbone.trunk import activate
from anytimecl.tail import Params, Seen


class Thin(NamedTuple):
    """The gradient of a weight: for each head its rows are `left^T @ right`."""

    left: Tensor  # [batch, head, row]
    right: Tensor  # [batch, head, column]; one head for an ordinary weight

    def whole(self, room: Tensor | None = None) -> Tensor:
        """Multiplied out, [head * row, column], into `room` where there is one."""
        left, right = self.left.permute(1, 2, 0), self.right.transpose(0, 1)
        if room is None:
            return torch.bmm(heavy(left), heavy(right)).flatten(0, 1)
        if len(left) == 1 and room.dtype == torch.bfloat16:
            return torch.mm(left[0], right[0], out=room)
        threads = torch.get_num_threads()
        if len(left) == 1 and left.shape[1] % threads == 0:
            # Each thread makes the rows that it will use: cores may be far from one another.
            left, right = left.view(threads, -1, left.shape[2]), right.expand(threads, -1, -1)
        torch.bmm(left, right, out=room.view(len(left), -1, room.shape[1]))
        return room


class Step(NamedTuple):
    """What a batch teaches."""

    logits: Tensor  # [batch, label], from before the update
    matrices: dict[str, Thin]
    vectors: dict[str, Tensor]  # gradients of everything else, "other" among them


class Question(NamedTuple):
    """A batch of examples and how the loss judges it."""

    seen: Seen
    target: Tensor  # [batch]
    labels: Tensor  # [label, dim], unit
    mask: Tensor  # [label] or [batch, label]; 0, or -inf where a label is no candidate
    weight: Tensor  # [batch], sum 1
    scale: float  # of the cosines in answers
    loss_scale: float  # of the cosines in the loss
    beta: float


def supports(spec: TailSpec) -> bool:
    """Whether a tail is of the kind that is written out here."""
    return spec.blocks == 1 and spec.pool == "cls" and spec.mlp == "plain"


def thin_step(params: Params, other: Tensor, spec: TailSpec, asked: Question) -> Step:
    """One block's forward and backward for the class token alone."""
    logits, late, half = late_step(params, other, spec, asked)
    early = early_step(params, spec, asked.seen, half)
    return Step(logits, late.matrices | early.matrices, late.vectors | early.vectors)


class Gradients(NamedTuple):
    """Of a part of the block."""

    matrices: dict[str, Thin]
    vectors: dict[str, Tensor]


class Half(NamedTuple):
    """What the first half of the way leaves to the second."""

    attended: Attended
    out: Tensor  # [batch, width], of the attention, before the layer scale
    d_x1: Tensor  # [batch, width], the gradient of the residual after it


def late_step(
    params: Params, other: Tensor, spec: TailSpec, asked: Question
) -> tuple[Tensor, Gradients, Half]:
    """All the way forward, and back as far as the attention's output."""
    p = _own_names(params, spec)
    attended = attend(p, spec, asked.seen.tokens)
    attended_out = linear(p, "self_attn.out_proj", attended.values)
    scale1, scale2 = p.get("layer_scale1.lambda1"), p.get("layer_scale2.lambda1")
    x1 = asked.seen.cls + (attended_out if scale1 is None else attended_out * scale1)
    kind = p["mlp.fc1.weight"].dtype
    hidden_in, *met2 = _norm(p, "layer_norm2", x1, spec.norm_eps)
    hidden_in = hidden_in.to(kind)
    hidden = linear(p, "mlp.fc1", hidden_in)
    active = activate(spec, hidden).to(kind)
    out = linear(p, "mlp.fc2", active)
    x2 = x1 + (out if scale2 is None else out * scale2)
    last, *met3 = _norm(p, "post_layernorm", x2, spec.norm_eps)
    projection = p.get("visual_projection.weight")
    features = last if projection is None else across(last, projection)
    length = features.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    unit = features / length
    logits = asked.scale * unit @ asked.labels.T + asked.mask

    d_cosine, d_other = _loss_gradient(logits, other, asked)
    d_unit = d_cosine @ asked.labels
    d_features = (d_unit - unit * (unit * d_unit).sum(-1, keepdim=True)) / length
    d_last = d_features if projection is None else across(d_features, projection.T)
    d_x2, _, _ = _norm_gradient(p, "post_layernorm", d_last, x2, met3)
    d_out = d_x2 if scale2 is None else d_x2 * scale2
    light_d_out = d_out.to(kind)
    d_hidden = _activation_gradient(spec, hidden, back_across(light_d_out, p["mlp.fc2.weight"]))
    light_d_hidden = d_hidden.to(kind)
    d_hidden_in = back_across(light_d_hidden, p["mlp.fc1.weight"])
    d_normed, d_gain, d_shift = _norm_gradient(p, "layer_norm2", d_hidden_in, x1, met2)
    d_x1 = d_x2 + d_normed
    matrices = {
        "mlp.fc1": _thin(light_d_hidden, hidden_in),
        "mlp.fc2": _thin(light_d_out, active),
    }
    vectors = {
        "layer_norm2.weight": d_gain,
        "layer_norm2.bias": d_shift,
        "mlp.fc1.bias": d_hidden.sum(0),
        "mlp.fc2.bias": d_out.sum(0),
    }
    if scale2 is not None:
        vectors["layer_scale2.lambda1"] = (d_x2 * out).sum(0)
    gradients = _full_names(spec, matrices, vectors)
    gradients.vectors["other"] = d_other
    return logits, gradients, Half(attended, attended_out, d_x1)


def early_step(params: Params, spec: TailSpec, seen: Seen, half: Half) -> Gradients:
    """The rest of the way back, through the attention."""
    p = _own_names(params, spec)
    was, out, d_x1 = half
    kind = was.values.dtype
    scale1 = p.get("layer_scale1.lambda1")
    d_out = d_x1 if scale1 is None else d_x1 * scale1
    light_d_out = d_out.to(kind)
    d_flat = back_across(light_d_out, p["self_attn.out_proj.weight"])
    d_values = d_flat.to(kind).view(was.query.shape)
    back = come_back(p, spec, seen.tokens, was, d_values)
    matrices = {
        "self_attn.q_proj": _thin(back.d_query, was.asked),
        "self_attn.k_proj": Thin(was.query, back.d_met),
        "self_attn.v_proj": Thin(d_values, back.read),
        "self_attn.out_proj": _thin(light_d_out, was.values),
    }
    vectors = {
        "layer_norm1.weight": back.d_gain,
        "layer_norm1.bias": back.d_shift,
        "self_attn.q_proj.bias": heavy(back.d_query).sum(0),
        "self_attn.v_proj.bias": d_flat.sum(0),
        "self_attn.out_proj.bias": d_out.sum(0),
    }
    if scale1 is not None:
        vectors["layer_scale1.lambda1"] = (d_x1 * out).sum(0)
    return _full_names(spec, matrices, vectors)


def _own_names(params: Params, spec: TailSpec) -> dict[str, Tensor]:
    at = f"layers.{spec.last}."
    return {name.removeprefix(at): value for name, value in params.items()}


def _full_names(
    spec: TailSpec, matrices: Mapping[str, Thin], vectors: Mapping[str, Tensor]
) -> Gradients:
    at = f"layers.{spec.last}."
    return Gradients(
        {f"{at}{name}.weight": value for name, value in matrices.items()},
        {at + name: value for name, value in vectors.items()},
    )


def _loss_gradient(logits: Tensor, other: Tensor, asked: Question) -> tuple[Tensor, Tensor]:
    """Of `anytime_loss` by the cosines [batch, label], and by "other" [], which is one too."""
    soft = asked.loss_scale / asked.scale
    none = (asked.loss_scale * other).expand(len(logits), 1)
    everything = torch.cat([soft * logits, none], 1)  # [batch, label + 1]
    columns = torch.arange(everything.shape[1], device=logits.device)
    is_target = columns == asked.target[:, None]
    is_other = columns == everything.shape[1] - 1
    right = everything.softmax(1) - is_target.to(logits.dtype)
    absent = everything.masked_fill(is_target, -torch.inf).softmax(1) - is_other.to(logits.dtype)
    found = asked.loss_scale * asked.weight[:, None] * (right + asked.beta * absent)
    return found[:, :-1], found[:, -1].sum()


def _activation_gradient(spec: TailSpec, x: Tensor, d: Tensor) -> Tensor:
    aten = torch.ops.aten
    found: Tensor
    if spec.activation in ("quick_gelu", "silu"):  # the one is the other, of a stretched argument
        found = aten.silu_backward(d, 1.702 * x if spec.activation == "quick_gelu" else x)
    else:
        approximate = "tanh" if spec.activation == "gelu_tanh" else "none"
        found = aten.gelu_backward(d, x, approximate=approximate)
    return found


def _norm(p: Params, name: str, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """A layer norm, and the mean and one over the spread [batch, 1] that it met."""
    gain, shift = p[name + ".weight"], p[name + ".bias"]
    return torch.native_layer_norm(x, x.shape[-1:], gain, shift, eps)


def _norm_gradient(
    p: Params, name: str, d: Tensor, x: Tensor, met: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """By `x` [batch, width], by the gain and by the shift [width] each."""
    gain, shift = p[name + ".weight"], p[name + ".bias"]
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(
        d, x, x.shape[-1:], *met, gain, shift, [True, True, True]
    )
    return found


def _thin(left: Tensor, right: Tensor) -> Thin:
    return Thin(left.unsqueeze(1), right.unsqueeze(1))
