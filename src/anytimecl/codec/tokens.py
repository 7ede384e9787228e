"""Uncompressed tokens in 16 or 32 bits: the reference for other codecs, for any tail."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.codec._check import checked
from anytimecl.codec._record import pack, unpack
from anytimecl.errors import StoreError


@dataclass(frozen=True)
class TokensConfig:
    """Precision of stored tokens."""

    bits: int = 16  # or 32


class TokensCodec:
    """Every token of an image.

    32 bits are exact. With 16 the largest error is 2^-11 of the image's largest value: tokens are
    scaled by a power of two, stored in the record, into the range where fp16 is most precise.
    """

    needs_image = False

    def __init__(self, spec: Spec, config: TokensConfig) -> None:
        if config.bits not in (16, 32):
            raise ValueError(f"Tokens are stored in 16 or 32 bits, not {config.bits}.")
        self.name = f"tokens-fp{config.bits}"
        self.config = config
        self._shape = (spec.tokens, spec.tail.width)
        self._type = np.dtype("<f2" if config.bits == 16 else "<f4")

    def encode(self, tokens: Tensor) -> bytes:
        """Tokens [token, width] of one image to a record."""
        values = checked(tokens, self._shape).numpy()
        exponent = 0
        if self.config.bits == 16:
            values, exponent = to_half_range(values)
        payload = struct.pack("<h", exponent) + values.astype(self._type).tobytes()
        return pack(self.name, *self._shape, payload)

    def decode(self, records: Sequence[bytes], device: torch.device | str = "cpu") -> Tensor:
        """Records to tokens [batch, token, width]."""
        payloads = unpack(records, self.name, *self._shape)
        size = 2 + self._type.itemsize * self._shape[0] * self._shape[1]
        for payload in payloads:
            if len(payload) != size:
                raise StoreError(f"The record holds {len(payload)} bytes of tokens, not {size}.")
        raw = np.frombuffer(b"".join(payloads), np.uint8).reshape(len(payloads), size)
        values = raw[:, 2:].copy().view(self._type).reshape(-1, *self._shape)
        tokens = torch.from_numpy(values).to(device).float()
        if self.config.bits == 16:
            exponents = -raw[:, :2].copy().view("<i2").astype(np.int64)
            # As two factors: a single one may under- or overflow float32.
            for part in (exponents // 2, exponents - exponents // 2):
                tokens *= torch.from_numpy(np.ldexp(np.float32(1), part)).to(device)[..., None]
        return tokens


def to_half_range(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Scale values by a power of two so that the largest is in [2^14, 2^15); returns the exponent.

    >>> to_half_range(np.array([1.0, -0.5]))
    (array([16384., -8192.]), 14)
    """
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0.0:
        return values, 0
    exponent = 15 - int(np.frexp(largest)[1])
    scaled = np.ldexp(values, exponent)
    if exponent < -112:  # near the largest float32, where rounding up would overflow
        scaled = scaled.clip(-32752, 32752)
    return scaled, exponent
