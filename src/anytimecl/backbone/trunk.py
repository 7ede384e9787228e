"""The frozen part of a vision transformer: from pixels to the tokens that enter the tail.

Checkpoints of all families are converted to one layout, so there is one trunk:

    patches = convolution(pixels) + positions
    tokens  = blocks(pre_norm(prefix, patches))

`prefix` has the class token, with its position added, and the registers, if any. SigLIP has no
prefix; only CLIP has a norm before the blocks. DINOv3 has rotary instead of additive positions.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone.spec import Rotary, TailSpec
from anytimecl.errors import ModelError


def trunk_tokens(params: Mapping[str, Tensor], spec: TailSpec, pixels: Tensor) -> Tensor:
    """Pixels [batch, 3, height, width] to tokens [batch, token, width]."""
    weight = params["patch_embedding.weight"]  # [width, 3, patch, patch]
    patches = F.conv2d(pixels, weight, params.get("patch_embedding.bias"), stride=weight.shape[-2:])
    tokens = patches.flatten(2).mT  # [batch, patch, width]
    if "positions" in params:
        tokens = tokens + params["positions"]
    if "prefix" in params:
        prefix = params["prefix"].expand(len(tokens), -1, -1)
        tokens = torch.cat([prefix, tokens], dim=1)
    if "pre_layernorm.weight" in params:
        gain, shift = params["pre_layernorm.weight"], params["pre_layernorm.bias"]
        tokens = F.layer_norm(tokens, tokens.shape[-1:], gain, shift, spec.norm_eps)
    for index in range(spec.first):
        tokens = block(params, spec, index, tokens)
    return tokens


def block(params: Mapping[str, Tensor], spec: TailSpec, index: int, tokens: Tensor) -> Tensor:
    """A block for every token, [batch, token, width] to the same."""
    at = f"layers.{index}."

    def heads(x: Tensor) -> Tensor:  # [batch, head, token, width of a head]
        return x.view(*x.shape[:2], spec.heads, spec.width // spec.heads).transpose(1, 2)

    x = norm(params, at + "layer_norm1", tokens, spec.norm_eps)
    q, k, v = (heads(_linear(params, f"{at}self_attn.{letter}_proj", x)) for letter in "qkv")
    if spec.rotary is not None:
        q, k = turned(q, spec.rotary), turned(k, spec.rotary)
    x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return after_attention(params, spec, at, tokens, _linear(params, at + "self_attn.out_proj", x))


def after_attention(
    params: Mapping[str, Tensor], spec: TailSpec, at: str, entered: Tensor, attended: Tensor
) -> Tensor:
    """The rest of a block, from its input and the attention's output, [..., width] each."""
    x = entered + _layer_scale(params, at + "layer_scale1", attended)
    hidden = mlp(params, spec, at + "mlp.", norm(params, at + "layer_norm2", x, spec.norm_eps))
    return x + _layer_scale(params, at + "layer_scale2", hidden)


def mlp(params: Mapping[str, Tensor], spec: TailSpec, at: str, x: Tensor) -> Tensor:
    """Two layers, [..., width] to the same."""
    return _linear(params, at + "fc2", activate(spec, _linear(params, at + "fc1", x)))


def norm(params: Mapping[str, Tensor], name: str, x: Tensor, eps: float) -> Tensor:
    """A layer norm, [..., width] to the same."""
    return F.layer_norm(x, x.shape[-1:], params[name + ".weight"], params[name + ".bias"], eps)


def _linear(params: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    # DINOv3's keys have no bias.
    return F.linear(x, params[name + ".weight"], params.get(name + ".bias"))


def _layer_scale(params: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
    scale = params.get(name + ".lambda1")
    return x if scale is None else x * scale


def turned(x: Tensor, rotary: Rotary) -> Tensor:
    """Apply rotary embeddings to the patches' queries or keys [batch, head, token, depth].

    Class token and registers, which precede the patches, are not rotated.
    """
    cosine, sine = angles(rotary, x.shape[-1], x.device)
    prefix, patches = x[..., : -len(cosine), :], x[..., -len(cosine) :, :]
    first, second = patches.chunk(2, dim=-1)
    half_turned = torch.cat([-second, first], dim=-1)
    return torch.cat([prefix, patches * cosine + half_turned * sine], dim=-2)


@lru_cache(maxsize=8)
def angles(rotary: Rotary, depth: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [patch, depth] of the angles of every patch.

    Positions go from -1 to 1 in both directions; in each half of the depth, the first half depends
    on the row, the second on the column.
    """
    rows, columns = (
        2 * (torch.arange(count) + 0.5) / count - 1 for count in (rotary.rows, rotary.columns)
    )
    places = torch.cartesian_prod(rows, columns)  # [patch, 2]
    frequencies = rotary.base ** -torch.arange(0, 1, 4 / depth)  # [depth / 4]
    angles = 2 * math.pi * places[:, :, None] * frequencies
    angles = angles.flatten(1).tile(2).to(device)
    return angles.cos(), angles.sin()


def activate(spec: TailSpec, x: Tensor) -> Tensor:
    """Activation between the two layers of a block's MLP."""
    if spec.mlp == "swiglu":
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value
    if spec.activation == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    if spec.activation == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="tanh" if spec.activation == "gelu_tanh" else "none")


class TorchTrunk:
    """A trunk in torch, on the device that holds its parameters.

    With `half`, products are in float16 and accumulated in float32, except on a CPU, where that
    would be slower.
    """

    def __init__(self, params: Mapping[str, Tensor], spec: TailSpec, *, half: bool = False) -> None:
        self.params = dict(params)
        self.spec = spec
        self.half = half

    @torch.no_grad()  # not inference_mode: its tensors cannot be used in training
    def __call__(self, pixels: Tensor) -> Tensor:
        """Pixels [batch, 3, height, width] to tokens [batch, token, width]."""
        kind = pixels.device.type
        with torch.autocast(kind, torch.float16, enabled=self.half and kind != "cpu"):
            return trunk_tokens(self.params, self.spec, pixels).float()


def _has_vnni() -> bool:
    """Whether this CPU accumulates int8 products in 32 bits."""
    able = torch.cpu.get_capabilities()
    return bool(able.get("avx512_vnni") or able.get("avx_vnni"))


class OnnxTrunk:
    """A trunk as an ONNX file, run by ONNX Runtime on the CPU."""

    def __init__(self, file: Path, *, one_by_one: bool | None = None) -> None:
        """Open the file; `one_by_one` defaults to what its metadata need, else True.

        Dynamic int8 quantisation takes the range of activations from the whole batch, so an image's
        tokens would depend on the other images. Such a trunk gets one image at a time.
        """
        import onnxruntime  # slow to import

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        if torch.get_num_threads() < (os.cpu_count() or 1):
            # Respect torch's number of threads.
            options.intra_op_num_threads = torch.get_num_threads()
        # Spinning threads would take cores from the tail, which runs next.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if not _has_vnni():
            # Such a CPU accumulates int8 products in 16 bits, with saturation, so tokens would
            # differ from other machines'. This makes sums exact, at two to three times the cost.
            options.add_session_config_entry("session.x64quantprecision", "1")
        try:
            self._session = onnxruntime.InferenceSession(
                str(file), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise ModelError(f"{file} cannot be run as an ONNX trunk: {error}") from error
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4:
            raise ModelError(f"{file} is not a trunk: it does not take just a batch of images.")
        self._input = inputs[0].name
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        if one_by_one is None:
            one_by_one = self.metadata.get("anytimecl.precision") != "fp32"
        self._one_by_one = one_by_one

    def __call__(self, pixels: Tensor) -> Tensor:
        """Pixels [batch, 3, height, width] to tokens [batch, token, width]."""
        batches = pixels.unsqueeze(1) if self._one_by_one and len(pixels) else [pixels]
        tokens = [
            torch.from_numpy(self._session.run(None, {self._input: batch.cpu().numpy()})[0])
            for batch in batches
        ]
        return torch.cat(tokens).to(pixels.device)
