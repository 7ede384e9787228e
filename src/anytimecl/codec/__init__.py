"""Codecs: the tokens of one image to the bytes that the memory keeps, and back.

A record says itself what it is and whether it is whole. `CODECS` names every codec; `make_codec`
builds one for a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.codec._fitted import FittedCodec
from anytimecl.codec.attention_pca import AttentionPca, AttentionPcaConfig
from anytimecl.codec.image import ImageBytes
from anytimecl.codec.pca_dataset import PcaDataset, PcaDatasetConfig
from anytimecl.codec.pca_image import PcaImage, PcaImageConfig
from anytimecl.codec.tokens import Tokens, TokensConfig
from anytimecl.codec.vq import Vq, VqConfig
from anytimecl.errors import ModelError
from anytimecl.tail import Seen

__all__ = [
    "CODECS",
    "DEFAULT",
    "AttentionPca",
    "AttentionPcaConfig",
    "Codec",
    "FittedCodec",
    "ImageBytes",
    "PcaDataset",
    "PcaDatasetConfig",
    "PcaImage",
    "PcaImageConfig",
    "Tokens",
    "TokensConfig",
    "Vq",
    "VqConfig",
    "make_codec",
]


class Codec(Protocol):
    """Tokens to bytes and back."""

    @property
    def name(self) -> str:
        """As `CODECS` has it."""
        ...

    @property
    def needs_image(self) -> bool:
        """Whether it stores the image itself, so that a backbone must encode it again."""
        ...

    def encode(self, tokens: Tensor) -> bytes:
        """Tokens [token, width] of one image to a record."""
        ...

    def decode(self, records: Sequence[bytes], device: torch.device | str = "cpu") -> Tensor | Seen:
        """Records to tokens [batch, token, width], or to what a one-block tail sees of them."""
        ...


CODECS: Mapping[str, Callable[[Spec, Mapping[str, Tensor]], Codec]] = {
    "image": lambda spec, tail: ImageBytes(),
    "tokens-fp32": lambda spec, tail: Tokens(spec, TokensConfig(bits=32)),
    "tokens-fp16": lambda spec, tail: Tokens(spec, TokensConfig(bits=16)),
    "vq": lambda spec, tail: Vq(spec),
    "pca-dataset": lambda spec, tail: PcaDataset(spec),
    "pca-image": lambda spec, tail: PcaImage(spec, tail),
    "pca-image-cls": lambda spec, tail: PcaImage(spec, tail, PcaImageConfig(cls_weight=True)),
    "pca-image-cls-int8": lambda spec, tail: PcaImage(
        spec, tail, PcaImageConfig(cls_weight=True, int8=True)
    ),
    "attention-pca": lambda spec, tail: AttentionPca(spec, tail),
}
DEFAULT = "attention-pca"


def make_codec(name: str, spec: Spec, tail: Mapping[str, Tensor]) -> Codec:
    """The codec of that name for a model: its description and the parameters of its tail.

    >>> from anytimecl.backbone import Preprocess, Spec, TailSpec
    >>> pixels = Preprocess(32, 32, "exact", (32, 32), "bicubic", (0.5,) * 3, (0.5,) * 3)
    >>> tail = TailSpec(first=11, blocks=2, width=8, heads=2, activation="gelu", norm_eps=1e-6)
    >>> spec = Spec("tiny", "clip", pixels, tail, 5, 8, 100.0, 0.0, "weights")
    >>> codec = make_codec("tokens-fp16", spec, {})
    >>> record = codec.encode(torch.ones(5, 8))
    >>> len(record), codec.decode([record, record]).shape
    (92, torch.Size([2, 5, 8]))
    >>> make_codec("attention-pca", spec, {})
    Traceback (most recent call last):
    anytimecl.errors.ModelError: The codec 'attention-pca' needs a tail of one block ...
    """
    try:
        factory = CODECS[name]
    except KeyError:
        raise ModelError(f"There is no codec {name!r}. There are: {', '.join(CODECS)}.") from None
    return factory(spec, tail)
