"""The paper's codecs: a PCA of the tokens of each image, and its two variants.

As in the paper, the class token is one of the tokens.

The paper defines the CLS weight as a softmax over dot products of normalised tokens. Taken
literally, one patch gets nearly all the weight, and the paper's figures cannot be reproduced. The
authors' program applies the softmax to attention *probabilities*, which hardly differ: every patch
gets a weight of about one over their number, against 1 for the class token, which so gets a
component of its own. That is the default here; `literal` is the printed formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.codec._check import checked, require_one_block
from anytimecl.codec._lowrank import frozen, look_at
from anytimecl.codec._record import pack, unpack
from anytimecl.errors import StoreError


@dataclass(frozen=True)
class PcaImageConfig:
    """Selects one of the paper's codecs."""

    components: int = 5
    cls_weight: bool | Literal["literal"] = False  # weight patches by attention
    int8: bool = False  # the paper's quantisation


class PcaImage:
    """Mean, components and coefficients of one image's tokens, in fp32 or 8 bits.

    The best approximation of rank `components` around the mean in squared error. `int8` adds an
    error of at most 1/255 of each vector's range to its entries.
    """

    needs_image = False

    def __init__(
        self, spec: Spec, tail: Mapping[str, Tensor], config: PcaImageConfig | None = None
    ) -> None:
        self.config = config or PcaImageConfig()
        if self.config.int8 and not self.config.cls_weight:
            raise ValueError("The paper quantises the PCA with CLS weight: set cls_weight too.")
        if type(self.config.components) is not int or self.config.components < 1:
            raise ValueError(
                f"Components are a whole number from 1, not {self.config.components!r}."
            )
        # The same name for both ways to weight: the coefficients include the weights.
        self.name = "pca-image" + "-cls" * bool(self.config.cls_weight)
        self.name += "-int8" * self.config.int8
        self._spec = spec.tail
        self._shape = (spec.tokens, spec.tail.width)
        self._rank = min(self.config.components, *self._shape)
        self._frozen: dict[str, Tensor] = {}
        if self.config.cls_weight:
            require_one_block(self.name, spec)
            self._frozen = {n: v.double() for n, v in frozen(tail, spec.tail).items()}

    @torch.no_grad()
    def encode(self, tokens: Tensor) -> bytes:
        """Tokens [token, width] of one image to a record."""
        values = checked(tokens, self._shape).double()  # squares of huge tokens overflow float32
        if self.config.cls_weight:
            values = torch.cat([values[:1], self._weights(values)[:, None] * values[1:]])
        mean, components, coefficients = pca(values, self._rank)
        parts = [mean[None].float().numpy(), components.float().numpy()]
        parts.append(coefficients.float().numpy())
        payload = b"".join(_as_bytes(part, self.config.int8) for part in parts)
        return pack(self.name, *self._shape, payload)

    def decode(self, records: Sequence[bytes], device: torch.device | str = "cpu") -> Tensor:
        """Records to tokens [batch, token, width].

        With `cls_weight` every patch is multiplied by its weight, as in the paper; the block's
        first norm cancels the factor.
        """
        payloads = unpack(records, self.name, *self._shape)
        (count, width), rank = self._shape, self._rank
        shapes = [(1, width), (rank, width), (count, rank)]
        int8 = self.config.int8
        sizes = [rows * (8 + columns if int8 else 4 * columns) for rows, columns in shapes]
        for payload in payloads:
            if len(payload) != sum(sizes):
                raise StoreError(f"The record holds {len(payload)} bytes, not {sum(sizes)}.")
        raw = np.frombuffer(b"".join(payloads), np.uint8).reshape(len(payloads), sum(sizes))
        ends = np.cumsum(sizes)
        mean, components, coefficients = (
            _from_bytes(raw[:, end - size : end], shape, int8, device)
            for size, end, shape in zip(sizes, ends, shapes, strict=True)
        )
        return torch.baddbmm(mean, coefficients, components)

    def _weights(self, tokens: Tensor) -> Tensor:
        """Weights [patch], sum 1: softmax of the class token's attention to each patch."""
        width = tokens.shape[1:]
        if self.config.cls_weight == "literal":
            gain, shift = (self._frozen[f"layer_norm1.{part}"] for part in ("weight", "bias"))
            normed = F.layer_norm(tokens, width, gain, shift, self._spec.norm_eps)
            return (normed[1:] @ normed[0]).softmax(0)
        normed = F.layer_norm(tokens, width, eps=self._spec.norm_eps)
        look = look_at(self._frozen, self._spec.heads, normed[0], normed[1:])
        return look.attention.mean(0).softmax(0)


def pca(values: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [width], orthonormal components [rank, width], coefficients [row, rank] of rows.

    >>> mean, components, coefficients = pca(torch.eye(3, 4), 2)
    >>> torch.allclose(mean + coefficients @ components, torch.eye(3, 4), atol=1e-6)
    True
    """
    mean = values.mean(0)
    centred = values - mean
    scale = centred.abs().max().clamp_min(torch.finfo(values.dtype).tiny)
    centred = centred / scale  # so that the Gram matrix neither over- nor underflows
    vectors: Tensor = torch.linalg.eigh(centred @ centred.T).eigenvectors
    top = vectors[:, len(vectors) - rank :].flip(-1)
    components = torch.linalg.qr(centred.T @ top).Q.T
    return mean, components, (centred @ components.T) * scale


def _as_bytes(rows: NDArray[np.float32], int8: bool) -> bytes:
    """Rows as fp32, or as lowest and highest value in fp32 and the paper's 8-bit numbers."""
    if not int8:
        return rows.astype("<f4").tobytes()
    low, high = rows.min(1, keepdims=True), rows.max(1, keepdims=True)
    span = np.where(high > low, high.astype(np.float64) - low, 1.0)
    whole = (255 * ((rows.astype(np.float64) - low) / span)).astype(np.uint8)  # the paper's Int()
    ranges = np.hstack([low, high]).astype("<f4")
    return b"".join([ranges.tobytes(), whole.tobytes()])


def _from_bytes(
    raw: NDArray[np.uint8], shape: tuple[int, int], int8: bool, device: torch.device | str
) -> Tensor:
    """Back from `_as_bytes`, for a batch: [batch, row, column]."""
    if not int8:
        return torch.from_numpy(raw.copy().view("<f4").reshape(-1, *shape)).to(device)
    ranges = raw[:, : 8 * shape[0]].copy().view("<f4").reshape(-1, shape[0], 2)
    whole = torch.from_numpy(raw[:, 8 * shape[0] :].reshape(-1, *shape).copy()).to(device)
    low, high = (torch.from_numpy(ranges[..., side, None]).to(device) for side in (0, 1))
    part = whole.float() / 255
    return low * (1 - part) + high * part  # not low + (high - low) * part: the range may overflow
