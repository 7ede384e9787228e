"""What a model is, as data: everything about it that its weights alone do not say.

A `Spec` is written beside every checkpoint and memory, so that a reload cannot lose the
activation, the preprocessing, or the logit scale, and cannot silently meet another model.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from anytimecl.errors import ModelError


@dataclass(frozen=True)
class Preprocess:
    """How an RGB image becomes pixels: resize, centre crop, rescale, normalise."""

    height: int
    width: int
    resize: Literal["shortest", "exact"]
    resize_to: int | tuple[int, int]  # shortest edge, or (height, width)
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True)
class TailSpec:
    """The shape of the last blocks, for the pure functions of `anytimecl.tail`.

    Weights are named as `transformers` names CLIP's, whatever the family:
    `layers.11.self_attn.q_proj.weight`, `layers.11.layer_scale1.lambda1`,
    `post_layernorm.weight`, `visual_projection.weight`, `head.probe`.
    """

    first: int  # index of the first block in the tail
    blocks: int  # how many blocks the tail has
    width: int
    heads: int
    activation: Literal["quick_gelu", "gelu", "gelu_tanh", "silu"]
    norm_eps: float
    pool: Literal["cls", "map"] = "cls"  # "map": SigLIP's attention pooling head
    mlp: Literal["plain", "swiglu"] = "plain"

    @property
    def last(self) -> int:
        """Index of the last block."""
        return self.first + self.blocks - 1


@dataclass(frozen=True)
class Spec:
    """A model as data."""

    name: str
    family: str  # "clip", "siglip", "dinov2"
    preprocess: Preprocess
    tail: TailSpec
    tokens: int  # tokens that enter the tail, class token included
    dim: int  # width of image and label embeddings
    logit_scale: float
    logit_bias: float
    weights: str  # digest of the frozen weights

    @property
    def fingerprint(self) -> str:
        """Changes whenever stored features or learned weights would stop being valid.

        The name has no part in it: a folder that is moved holds the same model.
        """
        plain = self.to_dict()
        del plain["name"]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Spec:
        """Back from `to_dict`; anything missing or unknown is an error, not a default."""
        try:
            values = dict(plain)
            prep = dict(values.pop("preprocess"))
            for key in ("mean", "std"):
                prep[key] = tuple(prep[key])
            if isinstance(prep["resize_to"], list):
                prep["resize_to"] = tuple(prep["resize_to"])
            tail = TailSpec(**values.pop("tail"))
            return cls(preprocess=Preprocess(**prep), tail=tail, **values)
        except (KeyError, TypeError) as error:
            raise ModelError(
                f"This model description is of another version of anytimecl: {error}."
            ) from error
