"""Codecs: compress the tokens of one image to a record for the memory, and decode it.

A record has a header and a checksum. `CODECS` has every codec by name; `make_codec` constructs one
for a model. Custom codecs: docs/extending.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.codec._check import checked
from anytimecl.codec._record import pack, unpack
from anytimecl.codec.attention_pca import AttentionPca, AttentionPcaConfig
from anytimecl.codec.image import ImageBytes
from anytimecl.codec.pca_image import PcaImage, PcaImageConfig
from anytimecl.codec.pooled_pca import PooledPca, pools_alone
from anytimecl.codec.tokens import TokensCodec, TokensConfig
from anytimecl.registry import Choice, Registry
from anytimecl.tail import TailInput

__all__ = [
    "CODECS",
    "DEFAULT",
    "AttentionPca",
    "AttentionPcaConfig",
    "Codec",
    "ImageBytes",
    "PcaImage",
    "PcaImageConfig",
    "PooledPca",
    "TokensCodec",
    "TokensConfig",
    "checked",
    "configured",
    "default_codec",
    "make_codec",
    "pack",
    "unpack",
]


class Codec(Protocol):
    """Tokens to bytes and back."""

    @property
    def name(self) -> str:
        """The name in `CODECS`."""
        ...

    @property
    def needs_image(self) -> bool:
        """Whether it stores the image itself, which a backbone then encodes at each read."""
        ...

    def encode(self, tokens: Tensor) -> bytes:
        """Tokens [token, width] of one image to a record."""
        ...

    def decode(
        self, records: Sequence[bytes], device: torch.device | str = "cpu"
    ) -> Tensor | TailInput:
        """Records to tokens [batch, token, width], or to input of a one-block tail."""
        ...


def configured(
    make: Callable[..., Codec], config: Callable[..., object], **fixed: object
) -> Callable[..., Codec]:
    """A codec factory that takes the fields of its configuration as options."""

    def made(spec: Spec, tail: Mapping[str, Tensor], **options: Any) -> Codec:
        return make(spec, tail, config(**fixed, **options))

    fields = inspect.signature(config).parameters.values()
    named = [each.replace(kind=each.KEYWORD_ONLY) for each in fields if each.name not in fixed]
    first = list(inspect.signature(made).parameters.values())[:2]
    made.__signature__ = inspect.Signature([*first, *named])  # type: ignore[attr-defined]
    return made


def _ours(spec: Spec, tail: Mapping[str, Tensor], config: AttentionPcaConfig) -> Codec:
    return (PooledPca if pools_alone(spec) else AttentionPca)(spec, tail, config)


def _tokens(spec: Spec, tail: Mapping[str, Tensor], config: TokensConfig) -> Codec:
    return TokensCodec(spec, config)


CODECS: Registry[Codec] = Registry(
    "codec",
    {
        "image": lambda spec, tail: ImageBytes(),
        "tokens-fp32": configured(_tokens, TokensConfig, bits=32),
        "tokens-fp16": configured(_tokens, TokensConfig, bits=16),
        "pca-image": configured(PcaImage, PcaImageConfig, cls_weight=False, int8=False),
        "pca-image-cls": configured(PcaImage, PcaImageConfig, cls_weight=True, int8=False),
        "pca-image-cls-int8": configured(PcaImage, PcaImageConfig, cls_weight=True, int8=True),
        "attention-pca": configured(_ours, AttentionPcaConfig),
    },
    context=2,
)
DEFAULT = "attention-pca"


def default_codec(spec: Spec) -> str:
    """The default codec for a model: "attention-pca" if it supports the tail, else fp16 tokens.

    >>> from anytimecl.backbone import Preprocess, Spec, TailSpec
    >>> pixels = Preprocess(32, 32, "exact", (32, 32), "bicubic", (0.5,) * 3, (0.5,) * 3)
    >>> tail = TailSpec(11, 1, width=8, heads=2, activation="gelu", norm_eps=1e-6, pool="map")
    >>> default_codec(Spec("tiny", "siglip", pixels, tail, 4, 8, 100.0, -10.0, "weights"))
    'tokens-fp16'
    """
    one_block = spec.tail.blocks == 1 and spec.tail.pool == "cls"
    return DEFAULT if one_block or pools_alone(spec) else "tokens-fp16"


def make_codec(choice: Choice[Codec], spec: Spec, tail: Mapping[str, Tensor]) -> Codec:
    """Construct a codec for a model, given by its spec and the parameters of its tail.

    >>> from anytimecl.backbone import Preprocess, Spec, TailSpec
    >>> pixels = Preprocess(32, 32, "exact", (32, 32), "bicubic", (0.5,) * 3, (0.5,) * 3)
    >>> tail = TailSpec(first=11, blocks=2, width=8, heads=2, activation="gelu", norm_eps=1e-6)
    >>> spec = Spec("tiny", "clip", pixels, tail, 5, 8, 100.0, 0.0, "weights")
    >>> codec = make_codec("tokens-fp16", spec, {})
    >>> record = codec.encode(torch.ones(5, 8))
    >>> len(record), codec.decode([record, record]).shape
    (92, torch.Size([2, 5, 8]))
    >>> make_codec({"name": "attention-pca", "options": {"components": 8}}, spec, {})
    Traceback (most recent call last):
    anytimecl.errors.ModelError: The codec 'attention-pca' needs a tail of one block ...
    """
    return CODECS.make(choice, spec, tail)
