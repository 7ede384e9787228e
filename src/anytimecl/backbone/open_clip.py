"""Conversion of open_clip checkpoints to the layout of transformers.

The same network with other names, packed attention projections, and transposed final projections.
Architectures of open_clip other than CLIP and SigLIP are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from anytimecl.backbone import layout
from anytimecl.backbone import open_clip_siglip as siglip
from anytimecl.backbone.conversion import conversion_of, read_weights, renamed
from anytimecl.backbone.layout import OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS, WEIGHTS
from anytimecl.backbone.repository import TOKENIZER_FILES
from anytimecl.errors import ModelError

_KIND = "open_clip"  # renamed with each version of this converter
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_FILTERS = {"bicubic": 3, "bilinear": 2}
# Supported fields of a configuration, with open_clip's defaults. All others must be absent or have
# the usual value.
_MODEL_KEYS = {
    "embed_dim", "vision_cfg", "text_cfg", "quick_gelu", "custom_text", "cast_dtype",
    "init_logit_scale", "output_dict",
}  # fmt: skip
_VISION = {
    "image_size": 224, "layers": 12, "width": 768, "patch_size": 16, "head_width": 64,
    "mlp_ratio": 4.0, "patch_dropout": 0.0,
}  # fmt: skip
_TEXT = {
    "context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 12,
    "mlp_ratio": 4.0, "hf_tokenizer_name": None, "eos_id": 2,
}  # fmt: skip
_USUAL: dict[str, tuple[Any, ...]] = {
    "pool_type": ("tok", "argmax"),
    "pos_embed_type": ("learnable",),
    "proj_type": ("linear",),
    "block_type": ("default",),
    "tokenizer_kwargs": ({"clean": "whitespace"},),
}
_RENAME = (
    (r"^text\.", ""),  # models with a separate text module
    (r"^visual\.class_embedding$", "vision_model.embeddings.class_embedding"),
    (r"^visual\.positional_embedding$", "vision_model.embeddings.position_embedding.weight"),
    (r"^visual\.conv1\.weight$", "vision_model.embeddings.patch_embedding.weight"),
    (r"^visual\.ln_pre\.", "vision_model.pre_layrnorm."),
    (r"^visual\.ln_post\.", "vision_model.post_layernorm."),
    (r"^visual\.proj$", "visual_projection.weight"),
    (r"^visual\.transformer\.resblocks\.", "vision_model.encoder.layers."),
    (r"^transformer\.resblocks\.", "text_model.encoder.layers."),
    (r"^token_embedding\.weight$", "text_model.embeddings.token_embedding.weight"),
    (r"^positional_embedding$", "text_model.embeddings.position_embedding.weight"),
    (r"^ln_final\.", "text_model.final_layer_norm."),
    (r"^text_projection$", "text_projection.weight"),
    (r"\.ln_([12])\.", r".layer_norm\1."),
    (r"\.attn\.", ".self_attn."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
)
_TURNED = {"visual.proj", "text_projection", "text.text_projection"}  # [in, out] there


def is_one(folder: Path) -> bool:
    """Whether a folder has open_clip's layout, and not also that of transformers."""
    if not all((folder / name).is_file() for name in (OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS)):
        return False
    if not (folder / WEIGHTS).is_file() or not (folder / "config.json").is_file():
        return True
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError:
        return False  # reading it raises the error
    return isinstance(config, dict) and config.get("model_type") not in layout.tables()


def converted(name: str, folder: Path) -> Path:
    """The folder of the converted model, created on first use."""
    tokenizer = [file for file in TOKENIZER_FILES if (folder / file).is_file()]
    if not tokenizer:
        raise ModelError(
            f"{name} is in the layout of open_clip and brings no tokeniser. Put tokenizer.json of "
            "openai/clip-vit-base-patch32, which open_clip reads texts by, beside its weights."
        )

    @cache
    def weights() -> dict[str, Tensor]:
        own = read_weights(name, folder / OPEN_CLIP_WEIGHTS)
        return (siglip.hub_weights if siglip.PROBE in own else hub_weights)(own)

    def described() -> dict[str, dict[str, Any]]:
        file = folder / OPEN_CLIP_CONFIG
        try:
            told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            model, pixels = told["model_cfg"], _preprocessor(name, told)
            if siglip.is_one(model):
                files = siglip.tokenizer(name, folder, model)
                files["config.json"] = siglip.hub_config(model, weights())
            else:
                files = {"config.json": hub_config(name, model)}
            return {**files, "preprocessor_config.json": pixels}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{OPEN_CLIP_CONFIG} of {name} cannot be used: {error!r}.") from error

    files = [OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS, *tokenizer]
    return conversion_of(_KIND, folder, files, tokenizer, described, weights)


def hub_config(name: str, model: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of transformers for a `model_cfg` of open_clip."""
    vision, text = {**_VISION, **model["vision_cfg"]}, {**_TEXT, **model["text_cfg"]}
    near = f"Of open_clip, CLIP's own transformers and SigLIP load. {_near(vision, text)}"
    if tower := vision.get("timm_model_name"):
        raise ModelError(
            f"{name} is an open_clip model whose image side is timm's {tower}, which is not read "
            f"here. {near}"
        )
    for part, known in ((model, _MODEL_KEYS), (vision, _VISION), (text, _TEXT)):
        for key, value in part.items():
            if key not in known and value and value not in _USUAL.get(key, ()):
                told = key if isinstance(value, dict) else f"{key}={value!r}"
                raise ModelError(f"{name} is an open_clip model with {told}, not read here. {near}")
    if not isinstance(vision["layers"], int):
        raise ModelError(
            f"{name} is an open_clip model with a ResNet for images, which has no blocks to tune. "
            f"{near}"
        )
    activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
    return {
        "model_type": "clip",
        "projection_dim": model["embed_dim"],
        "vision_config": {
            "hidden_size": vision["width"],
            "intermediate_size": int(vision["width"] * vision["mlp_ratio"]),
            "num_hidden_layers": vision["layers"],
            "num_attention_heads": vision["width"] // vision["head_width"],
            "image_size": vision["image_size"],
            "patch_size": vision["patch_size"],
            "hidden_act": activation,
        },
        "text_config": {
            "hidden_size": text["width"],
            "intermediate_size": int(text["width"] * text["mlp_ratio"]),
            "num_hidden_layers": text["layers"],
            "num_attention_heads": text["heads"],
            "max_position_embeddings": text["context_length"],
            "vocab_size": text["vocab_size"],
            "hidden_act": activation,
            "eos_token_id": 2,  # makes transformers pool at the highest id, as open_clip does
        },
    }


def _near(vision: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """The nearest supported model, with a similar text encoder."""
    if "siglip" in str(vision.get("timm_model_name")):
        return "Near to it: google/siglip-base-patch16-224, and others of transformers' SigLIPs."
    if text.get("hf_model_name") or text.get("pool_type") == "eos":  # mostly multilingual
        return "Near to it: facebook/metaclip-2-worldwide-huge-quickgelu."
    return "Near to it: openai/clip-vit-base-patch16."


def hub_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights with the names of transformers."""
    turned = {
        name: value.T.contiguous() if name in _TURNED else value for name, value in weights.items()
    }
    return renamed(turned, _RENAME)


def _preprocessor(name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    own = told.get("preprocess_cfg") or {}
    side = {**_VISION, **told["model_cfg"]["vision_cfg"]}["image_size"]
    mode, resample = own.get("resize_mode") or "shortest", own.get("interpolation") or "bicubic"
    if mode not in ("shortest", "squash") or resample not in _FILTERS:
        raise ModelError(
            f"{name} is an open_clip model that resizes images by {mode!r} and {resample!r}, which "
            'is not done here: it is "shortest" or "squash", "bicubic" or "bilinear".'
        )
    square = {"height": side, "width": side}
    return {
        "do_center_crop": mode == "shortest",
        "size": {"shortest_edge": side} if mode == "shortest" else square,
        "crop_size": square,
        "resample": _FILTERS[resample],
        "image_mean": list(own.get("mean") or _MEAN),
        "image_std": list(own.get("std") or _STD),
    }
