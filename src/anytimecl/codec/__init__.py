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
from anytimecl.codec.attention_pca import AttentionPca, AttentionPcaConfig
from anytimecl.codec.tokens import Tokens, TokensConfig
from anytimecl.errors import ModelError
from anytimecl.tail import Seen

__all__ = [
    "CODECS",
    "DEFAULT",
    "AttentionPca",
    "AttentionPcaConfig",
    "Codec",
    "Tokens",
    "TokensConfig",
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
    "tokens-fp32": lambda spec, tail: Tokens(spec, TokensConfig(bits=32)),
    "tokens-fp16": lambda spec, tail: Tokens(spec, TokensConfig(bits=16)),
    "attention-pca": lambda spec, tail: AttentionPca(spec, tail),
}
DEFAULT = "attention-pca"


def make_codec(name: str, spec: Spec, tail: Mapping[str, Tensor]) -> Codec:
    """The codec of that name for a model: its description and the parameters of its tail."""
    try:
        factory = CODECS[name]
    except KeyError:
        raise ModelError(f"There is no codec {name!r}. There are: {', '.join(CODECS)}.") from None
    return factory(spec, tail)
