"""Our codec: what one tuned block sees of an image, in the terms in which it looks.

The class token feeds the residual and is stored by itself. Patches are seen only through the
first norm, so they are stored after its centring and scaling, as a low-rank matrix: a PCA in which
a patch weighs as much as the frozen block's class token attends to it. Training reads this form
as it is, and never rebuilds a patch.

    payload: rank u8 | class token: exponent i16, fp16 | mean, components, coefficients
    vectors: lowest f16, step f16 each | u8 values
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anytimecl.backbone.spec import Spec, TailSpec
from anytimecl.codec._check import checked, require_one_block
from anytimecl.codec._record import pack, unpack
from anytimecl.codec.tokens import to_half_range
from anytimecl.errors import StoreError
from anytimecl.tail import LowRank, Seen, normalise


@dataclass(frozen=True)
class AttentionPcaConfig:
    """How much is kept of an image."""

    components: int = 2


class AttentionPca:
    """Class token and an attention-weighted PCA of the patches."""

    name = "attention-pca"
    needs_image = False

    def __init__(self, spec: Spec, tail: Mapping[str, Tensor], config: AttentionPcaConfig) -> None:
        require_one_block(self.name, spec)
        self.config = config
        self._spec = spec.tail
        self._shape = (spec.tokens, spec.tail.width)
        self._tail = {name: value.detach().cpu() for name, value in tail.items()}
        self._rank = min(config.components, spec.tokens - 1, spec.tail.width)

    @torch.no_grad()
    def encode(self, tokens: Tensor) -> bytes:
        """Tokens [token, width] of one image to a record."""
        tokens = checked(tokens, self._shape)
        own, patches = self._normalised(tokens)
        weights = cls_attention(self._tail, self._spec, own, patches)
        mean, components, coefficients = weighted_pca(patches, weights, self._rank)
        scaled, exponent = to_half_range(tokens[0].numpy())
        parts = [struct.pack("<Bh", self._rank, exponent), scaled.astype("<f2").tobytes()]
        for vectors in (torch.cat([mean[None], components]), coefficients.T):
            parts += _to_bytes(vectors.numpy())
        return pack(self.name, *self._shape, b"".join(parts))

    def decode(self, records: Sequence[bytes], device: torch.device | str = "cpu") -> Seen:
        """Records to what the tail sees of the batch."""
        payloads = unpack(records, self.name, *self._shape)
        batch, rank, width = len(payloads), self._rank, self._shape[1]
        patches = self._shape[0] - 1
        size = 3 + 2 * width + (rank + 1) * (4 + width) + rank * (4 + patches)
        for payload in payloads:
            if len(payload) != size:
                raise StoreError(f"The record holds {len(payload)} bytes, not {size}.")
        raw = np.frombuffer(b"".join(payloads), np.uint8).reshape(batch, size)
        exponents = raw[:, 1:3].copy().view("<i2")
        at = 3 + 2 * width
        cls = torch.from_numpy(raw[:, 3:at].copy().view("<f2")).to(device).float()
        cls = torch.ldexp(cls, torch.from_numpy(-exponents).to(device))
        basis, at = _from_bytes(raw, at, rank + 1, width, device)
        coefficients, at = _from_bytes(raw, at, rank, patches, device)
        return Seen(cls, LowRank(coefficients.mT, basis[:, 1:], basis[:, 0]))

    def _normalised(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Class token [width] and patches [patch, width] as the block's norm leaves them."""
        if float(tokens.abs().max()) > 1e15:  # the variance would not fit into float32
            tokens = tokens.double()
        seen = normalise(tokens, self._spec.norm_eps).float()
        return seen[0], seen[1:]


def cls_attention(
    tail: Mapping[str, Tensor], spec: TailSpec, own: Tensor, patches: Tensor
) -> Tensor:
    """How much the frozen block's class token attends to each patch, mean over heads: [patch]."""
    at = f"layers.{spec.last}."
    heads, width = spec.heads, spec.width
    gain, shift = tail[at + "layer_norm1.weight"], tail[at + "layer_norm1.bias"]
    query = tail[at + "self_attn.q_proj.weight"] @ (own * gain + shift)
    query = (query + tail[at + "self_attn.q_proj.bias"]).view(heads, 1, -1)
    keys = tail[at + "self_attn.k_proj.weight"].view(heads, -1, width)
    folded = (query * query.shape[-1] ** -0.5 @ keys).squeeze(1) * gain  # [head, width]
    scores = torch.cat([folded @ own[:, None], folded @ patches.T], dim=1)
    return scores.softmax(-1)[:, 1:].mean(0)


def weighted_pca(
    patches: Tensor,  # [patch, width]
    weights: Tensor,  # [patch]
    rank: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [width], orthonormal components [rank, width], coefficients [patch, rank].

    They minimise the weighted squared error; the coefficients are those of the unweighted patches.
    """
    weights = weights + 1e-6 * weights.mean() + 1e-12
    weights = weights / weights.sum()
    mean = weights @ patches
    centred = patches - mean
    scaled = weights.sqrt()[:, None] * centred
    _, vectors = torch.linalg.eigh(scaled @ scaled.T)
    top = vectors[:, -rank:].flip(-1)
    components = torch.linalg.qr(scaled.T @ top).Q.T
    return mean, components, centred @ components.T


def _to_bytes(vectors: np.ndarray) -> list[bytes]:
    """Vectors [vector, length] as u8 values with a range for each."""
    low = vectors.min(1).astype("<f4")
    step = ((vectors.max(1) - low) / 255).astype("<f4")
    scaled = (vectors - low[:, None]) / np.where(step > 0, step, 1)[:, None]
    values = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    ranges = np.stack([low, step], 1).astype("<f2")
    return [ranges.tobytes(), values.tobytes()]


def _from_bytes(
    raw: np.ndarray, at: int, count: int, length: int, device: torch.device | str
) -> tuple[Tensor, int]:
    """Vectors [batch, count, length] from `at` on, and where they end."""
    end = at + 4 * count
    ranges = raw[:, at:end].copy().view("<f2").reshape(-1, count, 2)
    both = torch.from_numpy(ranges).to(device).float()
    low, step = both[..., :1], both[..., 1:]
    values = raw[:, end : end + count * length].reshape(-1, count, length)
    vectors = torch.from_numpy(values.copy()).to(device).float() * step + low
    return vectors, end + count * length
