"""The description of a model: everything besides its weights.

A `Spec` is written beside every checkpoint and memory, so that a reload cannot lose the
activation, the preprocessing, or the logit scale, and cannot silently meet another model.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from anytimecl.errors import ModelError

ALONE = "the pooling head alone"  # a tail without a block


@dataclass(frozen=True)
class Preprocess:
    """Preprocessing of an RGB image: resize, centre crop, rescale, normalise."""

    height: int
    width: int
    resize: Literal["shortest", "exact"]
    resize_to: int | tuple[int, int]  # shortest edge, or (height, width)
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True)
class Rotary:
    """Rotary position embeddings (RoPE, as in DINOv3)."""

    base: float  # of the frequencies
    rows: int  # of patches
    columns: int


@dataclass(frozen=True)
class TailSpec:
    """The architecture of the tail, for the functions of `anytimecl.tail`.

    Weights of all families are named like CLIP's in `transformers`:
    `layers.11.self_attn.q_proj.weight`, `layers.11.layer_scale1.lambda1`,
    `post_layernorm.weight`, `visual_projection.weight`, `head.probe`.
    """

    first: int  # index of the first block in the tail
    blocks: int  # number of blocks in the tail; 0: SigLIP's pooling head alone
    width: int
    heads: int
    activation: Literal["quick_gelu", "gelu", "gelu_tanh", "silu"]
    norm_eps: float
    # "map": SigLIP's attention pooling head. "cls-rotary": the class token, with rotary embeddings,
    # so that the order of patches matters.
    pool: Literal["cls", "map", "cls-rotary"] = "cls"
    mlp: Literal["plain", "swiglu"] = "plain"
    rotary: Rotary | None = None  # of queries and keys; None: no rotary embeddings

    @cached_property
    def last(self) -> int:
        """Index of the last block."""
        return self.first + self.blocks - 1

    def trains(self, name: str) -> bool:
        """Whether a weight is trained.

        Blocks are; final norm and projection are frozen, so that embeddings stay in the text space.
        In a tail without blocks the head is trained, except for its probe.
        """
        if self.blocks:
            return name.startswith("layers.")
        return name.startswith("head.") and name != "head.probe"


@dataclass(frozen=True)
class Spec:
    """The description of a model."""

    name: str
    family: str  # "clip", "siglip", "dinov2"
    preprocess: Preprocess
    tail: TailSpec
    tokens: int  # tokens that enter the tail, class token included
    dim: int  # width of image and label embeddings
    logit_scale: float
    logit_bias: float
    weights: str  # digest of the frozen weights
    # Commit of the weights on the hub, or edition of the embedded model.
    revision: str = ""
    trunk: Literal["float", "int8", "untold"] = "float"  # "untold": described by an older version
    names: bool = True  # False: an image-only model, for which labels are codes

    @property
    def fingerprint(self) -> str:
        """Digest that changes whenever stored features or learned weights become invalid.

        It does not depend on name and commit: a folder that was moved has the same model. Nor on
        the precision of the trunk, which `weights` covers.
        """
        plain = self.to_dict()
        for told in ("name", "revision", "trunk"):
            del plain[told]
        # As in versions without these fields.
        if plain["tail"]["rotary"] is None:
            del plain["tail"]["rotary"]
        if plain["names"]:
            del plain["names"]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def none_logit(self) -> float | None:
        """The logit of "none of these" in a softmax with the labels' logits.

        A sigmoid-trained model (SigLIP) gives each label the probability sigmoid(logit + bias).
        Given that at most one label is right, the probabilities are a softmax over the labels'
        logits and -bias. None for a model trained with a softmax.
        """
        return -self.logit_bias if self.logit_bias else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Spec:
        """The inverse of `to_dict`, also of older versions; ModelError for unknown fields."""
        try:
            values = {"trunk": "untold", **plain}
            prep = dict(values.pop("preprocess"))
            for key in ("mean", "std"):
                prep[key] = tuple(prep[key])
            if isinstance(prep["resize_to"], list):
                prep["resize_to"] = tuple(prep["resize_to"])
            tail = dict(values.pop("tail"))
            if tail.get("rotary") is not None:
                tail["rotary"] = Rotary(**tail["rotary"])
            return cls(preprocess=Preprocess(**prep), tail=TailSpec(**tail), **values)
        except (KeyError, TypeError) as error:
            raise ModelError(
                f"This model description is of another version of anytimecl: {error}."
            ) from error


def differences(made_with: Spec, given: Spec) -> list[str]:
    """Differences of two models as messages, the most important first.

    >>> from dataclasses import replace
    >>> pixels = Preprocess(8, 8, "exact", (8, 8), "bicubic", (0.5,) * 3, (0.5,) * 3)
    >>> tail = TailSpec(first=2, blocks=2, width=8, heads=2, activation="gelu", norm_eps=1e-6)
    >>> spec = Spec("mine", "clip", pixels, tail, 5, 8, 100.0, 0.0, "a", trunk="int8")
    >>> differences(spec, replace(spec, tail=replace(tail, first=3, blocks=1)))
    ['a tail of 2 blocks, not 1']
    >>> differences(spec, replace(spec, weights="b", trunk="float"))
    ['an int8 trunk, not a float one']
    """
    found = []
    if {made_with.trunk, given.trunk} == {"int8", "float"}:
        int8 = made_with.trunk == "int8"
        found.append("an int8 trunk, not a float one" if int8 else "a float trunk, not an int8 one")
    if made_with.tail.blocks != given.tail.blocks:
        was, now = made_with.tail.blocks, given.tail.blocks
        blocks = f"{was} block{'s' if was > 1 else ''}" if was else ALONE
        found.append(f"a tail of {blocks}, not {now or ALONE}")
    if made_with.preprocess != given.preprocess:
        found.append("other preprocessing of images")
    if (made_with.logit_scale, made_with.logit_bias) != (given.logit_scale, given.logit_bias):
        found.append("another logit scale or bias")
    if made_with.weights != given.weights:
        commits = [spec.revision[:12] for spec in (made_with, given)]
        several = all(commits) and commits[0] != commits[1]
        kind = "edition" if made_with.name.startswith("embedded") else "commit"
        told = f"{kind} {commits[0]}, not {commits[1]}" if several else ""
        if not found:
            found.append("other weights or another tokeniser" + (f" ({told})" if told else ""))
        elif told:
            found.append(told)
    if not found and made_with.fingerprint != given.fingerprint:
        found.append("another shape")
    return found
