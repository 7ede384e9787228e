"""What a model is, as data: everything about it that its weights alone do not say.

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
    """How an RGB image becomes pixels: resize, centre crop, rescale, normalise."""

    height: int
    width: int
    resize: Literal["shortest", "exact"]
    resize_to: int | tuple[int, int]  # shortest edge, or (height, width)
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True)
class Rotary:
    """Positions as angles (RoPE, as in DINOv3): each patch's query and key are turned by them."""

    base: float  # of the periods
    rows: int  # of patches
    columns: int


@dataclass(frozen=True)
class TailSpec:
    """The shape of the last blocks, for the pure functions of `anytimecl.tail`.

    Weights are named as `transformers` names CLIP's, whatever the family:
    `layers.11.self_attn.q_proj.weight`, `layers.11.layer_scale1.lambda1`,
    `post_layernorm.weight`, `visual_projection.weight`, `head.probe`.
    """

    first: int  # index of the first block in the tail
    blocks: int  # how many blocks the tail has; 0: SigLIP's pooling head alone, which is one itself
    width: int
    heads: int
    activation: Literal["quick_gelu", "gelu", "gelu_tanh", "silu"]
    norm_eps: float
    # "map": SigLIP's attention pooling head. "cls-rotary": the class token too, but patches are
    # read by where they are, so that no block can do without their order.
    pool: Literal["cls", "map", "cls-rotary"] = "cls"
    mlp: Literal["plain", "swiglu"] = "plain"
    rotary: Rotary | None = None  # how queries and keys are turned; None: they are not

    @cached_property
    def last(self) -> int:
        """Index of the last block."""
        return self.first + self.blocks - 1

    def trains(self, name: str) -> bool:
        """Whether learning changes the weight of that name.

        The blocks do, and what makes vectors of them stays, so that they stay in the space of the
        text. Of a tail without blocks the head does; its probe is what a class token is elsewhere.
        """
        if self.blocks:
            return name.startswith("layers.")
        return name.startswith("head.") and name != "head.probe"


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
    # The commit on the hub that the weights came from, or the edition of the embedded model.
    revision: str = ""
    trunk: Literal["float", "int8", "untold"] = "float"  # "untold": by an older version
    names: bool = True  # False: labels are but codes to it, and it says nothing before it is taught

    @property
    def fingerprint(self) -> str:
        """Changes whenever stored features or learned weights would stop being valid.

        The name and the commit have no part in it: a folder that is moved holds the same model.
        Nor has the precision of the trunk, which `weights` tells already.
        """
        plain = self.to_dict()
        for told in ("name", "revision", "trunk"):
            del plain[told]
        # As before there were such things.
        if plain["tail"]["rotary"] is None:
            del plain["tail"]["rotary"]
        if plain["names"]:
            del plain["names"]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def none_logit(self) -> float | None:
        """The logit of "none of these" beside those of labels, `logit_scale` times a cosine.

        A model that was trained with a sigmoid (SigLIP) gives every label its own probability,
        sigmoid(logit + bias). Given that at most one label is right, the probabilities are a
        softmax over the labels' logits and one more, -bias, for none. None: the model was trained
        to choose, and cannot tell that nothing fits.
        """
        return -self.logit_bias if self.logit_bias else None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Spec:
        """Back from `to_dict`, of this version or an older one; anything unknown is an error."""
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
    """What tells two models apart, in words and the most telling first; empty if nothing does.

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
