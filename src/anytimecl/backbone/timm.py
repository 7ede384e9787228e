"""Conversion of timm's image towers to the layout of transformers.

timm's configuration has the name of an architecture and few hyperparameters. Most follow from the
weights; heads, activation and the norm's epsilon from the name, so only known architectures are
supported (`layout.TIMM`). The classifier head is dropped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anytimecl.backbone import layout
from anytimecl.backbone.conversion import conversion_of, read_weights, renamed
from anytimecl.backbone.layout import WEIGHTS
from anytimecl.errors import ModelError

_KIND = "timm"  # renamed with each version of this converter
_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16}  # by width
_FILTERS = {"bicubic": 3, "bilinear": 2}
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# All other arguments must have timm's defaults.
_ARGUMENTS = {
    "img_size", "patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio", "num_classes",
    "init_values", "no_embed_class", "reg_tokens", "pre_norm", "dynamic_img_size",
}  # fmt: skip
_USUAL = {"class_token": True, "global_pool": "token", "in_chans": 3, "qkv_bias": True}
_RENAME = (  # to canonical names
    (r"^cls_token$", "class"),
    (r"^reg_token$", "registers"),
    (r"^pos_embed$", "positions"),
    (r"^patch_embed\.proj\.", "patch_embedding."),
    (r"^norm_pre\.", "pre_layernorm."),
    (r"^norm\.", "post_layernorm."),
    (r"^blocks\.", "layers."),
    (r"\.norm([12])\.", r".layer_norm\1."),
    (r"\.attn\.proj\.", ".self_attn.out_proj."),
    (r"\.attn\.qkv\.", ".self_attn.in_proj_"),
    (r"\.ls([12])\.gamma$", r".layer_scale\1.lambda1"),
)


def is_one(folder: Path) -> bool:
    """Whether a folder has such a tower."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # reading it raises the error
    return (
        isinstance(config, dict)
        and layout.TIMM.fullmatch(layout.of_timm(config) or "") is not None
        and (folder / WEIGHTS).is_file()
    )


def converted(name: str, folder: Path) -> Path:
    """The folder of the converted tower."""

    @cache
    def weights() -> dict[str, Tensor]:
        return hub_weights(read_weights(name, folder / WEIGHTS))

    def described() -> dict[str, dict[str, Any]]:
        told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        try:
            return {
                "config.json": hub_config(name, told, weights()),
                "preprocessor_config.json": _preprocessor(name, told),
            }
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ModelError(f"The config.json of {name} cannot be used: {error!r}.") from error

    return conversion_of(_KIND, folder, ["config.json", WEIGHTS], [], described, weights)


def hub_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights with canonical names, without the classifier head."""
    own = {name: value for name, value in weights.items() if not name.startswith("head.")}
    found = renamed(own, _RENAME)
    positions = found.get("positions")
    if positions is not None and math.isqrt(positions.shape[-2]) ** 2 == positions.shape[-2]:
        # The class token includes its position, or has none.
        found["positions"] = torch.nn.functional.pad(positions, (0, 0, 1, 0))
    return found


def hub_config(name: str, told: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The config.json of transformers for such a tower, with shapes from its weights."""
    architecture, arguments = str(told["architecture"]), told.get("model_args") or {}
    for key, value in {"global_pool": told.get("global_pool"), **arguments}.items():
        if key not in _ARGUMENTS and value and value != _USUAL.get(key):
            raise ModelError(
                f"{name} is a timm model ({architecture}) with {key}={value!r}, which is not read "
                f"here. Near to it: {layout.like(architecture)}."
            )
    width, _, patch, _ = weights["patch_embedding.weight"].shape
    hidden = weights["layers.0.mlp.fc2.weight"].shape[1]
    return {
        "model_type": _type(weights),
        "hidden_size": width,
        "num_hidden_layers": len({key.split(".")[1] for key in weights if key[:7] == "layers."}),
        "num_attention_heads": arguments.get("num_heads") or _HEADS[width],
        "intermediate_size": hidden,
        "image_size": _side(name, told),
        "patch_size": patch,
        "hidden_act": "quick_gelu" if "quickgelu" in architecture else "gelu",
        "use_swiglu_ffn": len(weights["layers.0.mlp.fc1.weight"]) == 2 * hidden,
        "layer_norm_eps": 1e-5 if "clip" in architecture else 1e-6,
    }


def _type(weights: Mapping[str, Tensor]) -> str:
    """The family that has all of these weights."""
    if "pre_layernorm.weight" in weights:
        return "clip_vision_model"
    if "registers" in weights:
        return "dinov2_with_registers"
    return "dinov2" if "layers.0.layer_scale1.lambda1" in weights else "vit"


def _side(name: str, told: Mapping[str, Any]) -> int:
    colours, height, width = _pretrained(told).get("input_size") or (3, 224, 224)
    if colours != 3 or height != width:
        raise ModelError(
            f"{name} is a timm model for images of {height} by {width} pixels and {colours} "
            "colours, which is not read here: images are square, with three colours."
        )
    return int(height)


def _preprocessor(name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    own, side = _pretrained(told), _side(name, told)
    mode, resample = own.get("crop_mode") or "center", own.get("interpolation") or "bicubic"
    larger = math.floor(side / (own.get("crop_pct") or 0.875))
    if mode not in ("center", "squash") or resample not in _FILTERS:
        raise ModelError(
            f"{name} is a timm model that resizes images by {mode!r} and {resample!r}, which is "
            'not done here: it is "center" or "squash", "bicubic" or "bilinear".'
        )
    squashed = {"height": larger, "width": larger}
    return {
        "do_center_crop": True,
        "size": {"shortest_edge": larger} if mode == "center" else squashed,
        "crop_size": {"height": side, "width": side},
        "resample": _FILTERS[resample],
        "image_mean": list(own.get("mean") or _MEAN),
        "image_std": list(own.get("std") or _STD),
    }


def _pretrained(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """The pre-training configuration; at top level in files of older versions."""
    found: Mapping[str, Any] = told.get("pretrained_cfg") or told
    return found
