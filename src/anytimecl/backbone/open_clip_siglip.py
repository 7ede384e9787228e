"""Conversion of open_clip's SigLIP checkpoints, whose image tower is timm's, to transformers.

Heads and activation follow from the tower's name, the rest from the weights. The cleaning of texts
before the tokeniser is moved to the tokeniser's file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anytimecl.backbone.conversion import renamed
from anytimecl.errors import ModelError

PROBE = "visual.trunk.attn_pool.latent"  # a weight that only SigLIP has
_TOWER = re.compile(r"vit_(base|large|so400m|giantopt)_patch\d+_siglip_\d+")
_HEADS = {"base": 12, "large": 16, "so400m": 16, "giantopt": 16}
_TANH = "gelu_pytorch_tanh"
# Fields that identify SigLIP's text encoder, and further supported ones.
_TEXT = {
    "no_causal_mask": (True,),
    "proj_bias": (True,),
    "pool_type": ("last",),
    "norm_kwargs": ({"eps": 1e-6},),
}
_OPTIONS = {
    "act_kwargs": (None, {"approximate": "tanh"}),
    "tokenizer_kwargs": (None, {"clean": "canonicalize"}),
}
_SHAPE = {
    "context_length", "vocab_size", "hf_tokenizer_name", "width", "heads", "layers", "mlp_ratio",
}  # fmt: skip
_RENAME = (
    (r"^visual\.trunk\.pos_embed$", "vision_model.embeddings.position_embedding.weight"),
    (r"^visual\.trunk\.patch_embed\.proj\.", "vision_model.embeddings.patch_embedding."),
    (r"^visual\.trunk\.blocks\.", "vision_model.encoder.layers."),
    (r"^visual\.trunk\.norm\.", "vision_model.post_layernorm."),
    (r"^visual\.trunk\.attn_pool\.latent$", "vision_model.head.probe"),
    (r"^visual\.trunk\.attn_pool\.proj\.", "vision_model.head.attention.out_proj."),
    (r"^visual\.trunk\.attn_pool\.norm\.", "vision_model.head.layernorm."),
    (r"^visual\.trunk\.attn_pool\.", "vision_model.head."),
    (r"^text\.token_embedding\.weight$", "text_model.embeddings.token_embedding.weight"),
    (r"^text\.positional_embedding$", "text_model.embeddings.position_embedding.weight"),
    (r"^text\.transformer\.resblocks\.", "text_model.encoder.layers."),
    (r"^text\.ln_final\.", "text_model.final_layer_norm."),
    (r"^text\.text_projection\.", "text_model.head."),
    (r"\.(norm|ln_)([12])\.", r".layer_norm\2."),
    (r"\.attn\.qkv\.", ".self_attn.in_proj_"),
    (r"\.attn\.proj\.", ".self_attn.out_proj."),
    (r"\.attn\.", ".self_attn."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
)


def is_one(model: Mapping[str, Any]) -> bool:
    """Whether a `model_cfg` of open_clip is that of a published SigLIP."""
    vision, text = model["vision_cfg"], model["text_cfg"]
    return (
        _TOWER.fullmatch(str(vision.get("timm_model_name"))) is not None
        and (vision.get("timm_pool"), vision.get("timm_proj")) == ("map", "none")
        and all(text.get(key) in usual for key, usual in {**_TEXT, **_OPTIONS}.items())
        and set(text) <= {*_TEXT, *_OPTIONS, *_SHAPE}
    )


def hub_config(model: Mapping[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The config.json of transformers, with the image tower's shapes from its weights."""
    vision, text = model["vision_cfg"], model["text_cfg"]
    size = str(vision["timm_model_name"]).split("_")[1]
    patch = weights["vision_model.embeddings.patch_embedding.weight"]  # [width, 3, patch, patch]
    blocks = {key.split(".")[3] for key in weights if key.startswith("vision_model.encoder.")}
    return {
        "model_type": "siglip",
        "vision_config": {
            "hidden_size": len(patch),
            "intermediate_size": len(weights["vision_model.head.mlp.fc1.bias"]),
            "num_hidden_layers": len(blocks),
            "num_attention_heads": _HEADS[size],
            "image_size": vision["image_size"],
            "patch_size": patch.shape[-1],
            "hidden_act": _TANH if size == "giantopt" else "gelu",
            "layer_norm_eps": 1e-6,
        },
        "text_config": {
            "hidden_size": text["width"],
            "intermediate_size": int(text["width"] * text.get("mlp_ratio", 4.0)),
            "num_hidden_layers": text["layers"],
            "num_attention_heads": text["heads"],
            "max_position_embeddings": text["context_length"],
            "vocab_size": text["vocab_size"],
            "projection_size": model["embed_dim"],
            "hidden_act": _TANH if text.get("act_kwargs") else "gelu",
            "layer_norm_eps": 1e-6,
            "bos_token_id": None,
            "eos_token_id": 1,
            "pad_token_id": 1,
        },
    }


def hub_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights with the names of transformers."""
    found = renamed(weights, _RENAME)
    for part in ("weight", "bias"):  # transformers packs all three
        names = [f"vision_model.head.{letters}.{part}" for letters in ("q", "kv")]
        if set(names) <= set(found):  # reading reports missing ones
            packed = torch.cat([found.pop(name) for name in names])
            found[f"vision_model.head.attention.in_proj_{part}"] = packed
    positions = "vision_model.embeddings.position_embedding.weight"
    found[positions] = found[positions].squeeze(0)
    return found


def tokenizer(name: str, folder: Path, model: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tokeniser's files with the cleaning of texts; empty if there is none."""
    if not model["text_cfg"].get("tokenizer_kwargs"):
        return {}
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ModelError(
            f"{name} is a SigLIP in the layout of open_clip and has no tokenizer.json. Put that of "
            "the repository that its open_clip_config.json names as hf_tokenizer_name beside it."
        )
    told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    own = [told["normalizer"]] if told.get("normalizer") else []
    told["normalizer"] = {"type": "Sequence", "normalizers": [*_CLEANED, *own]}
    beside = folder / "tokenizer_config.json"
    config = json.loads(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
    # The class that uses the file unchanged; others clean texts in their own way.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    return {file.name: told, beside.name: config}


def _replaced(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


# As open_clip's `canonicalize_text`: no punctuation, lower case, single spaces.
_CLEANED = (
    _replaced("_", " "),
    _replaced(r"[!-/:-@\[-`{-~]", ""),
    {"type": "Lowercase"},
    _replaced(r"\s+", " "),
    {"type": "Strip", "strip_left": True, "strip_right": True},
)
