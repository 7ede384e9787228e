"""The default codec: an attention-weighted PCA of the patches, for a tail of one block.

The class token enters the residual and is stored separately. Patches enter the block only through
its first norm, so they are stored after its centring and scaling, as a low-rank matrix: a PCA with
the frozen block's attention as weights. Attention is invariant to the order of patches, so it is
not stored. Training uses the low-rank form, and never reconstructs patches.

Values are quantised and Rice coded; components below the quantisation step are dropped.

    payload: rank u8 | steps f32 of class token, mean, components, coefficients
             | length u32 of the first block | shift i16 of each component's coefficients
             | block: class token, mean, components | block: coefficients
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.codec._check import checked, require_one_block
from anytimecl.codec._lowrank import Look, components_of, directions, fit, frozen, look_at
from anytimecl.codec._record import OVERHEAD, pack, unpack
from anytimecl.codec._rice import (
    expected_bits,
    pack_signed,
    pack_sorted,
    unpack_signed,
    unpack_sorted,
)
from anytimecl.errors import StoreError
from anytimecl.tail import TailInput, Tokens, normalise
from anytimecl.threads import one_thread

_HEAD = struct.Struct("<B4fI")
# Steps relative to that of components, from a search on real tokens (docs/codecs.md). The mean's is
# the finest: its error is the same in every patch, so it does not average out.
_CLS_STEP, _MEAN_STEP, _COEFFICIENT_STEP = 0.86, 0.25, 8.5
_LARGEST = 16_383  # steps; 15 bits with the sign, which is what decoding supports
_KEEP = 2.2  # minimum root mean square of a component, in steps


@dataclass(frozen=True)
class AttentionPcaConfig:
    """Size and precision of records."""

    budget: int = 4500  # maximal size in bytes: the step grows until a record fits
    step: float = 0.046  # quantisation step of components; normalised patches have unit variance
    components: int = 16  # maximal rank


class AttentionPca:
    """Class token and an attention-weighted PCA of the patches.

    The class token is decoded to within half a step, 0.02 of its root mean square unless the budget
    needs larger steps. Patches are a low-rank approximation, in another order.
    """

    name = "attention-pca"
    needs_image = False
    own = 1  # tokens stored separately: the class token

    def __init__(
        self, spec: Spec, tail: Mapping[str, Tensor], config: AttentionPcaConfig | None = None
    ) -> None:
        self._require(spec)
        self.config = config or AttentionPcaConfig()
        patches, width = spec.tokens - self.own, spec.tail.width
        least = 64 + width + patches // 4
        if self.config.budget < least:
            raise ValueError(
                f"A budget of {self.config.budget} bytes is too small for {patches} patches of "
                f"width {width}; {least} is the least."
            )
        if not 0 <= self.config.components <= 255:
            raise ValueError(f"Components are 0 to 255, not {self.config.components}.")
        # No entry of a normalised patch exceeds the square root of the width.
        finest = width**0.5 / (_MEAN_STEP * _LARGEST)
        if self.config.step < finest:
            raise ValueError(
                f"A step of {self.config.step} is too fine; {finest:.4f} is the least."
            )
        self._spec = spec.tail
        self._shape = (spec.tokens, width)
        self._tail = self._frozen(tail)

    @torch.no_grad()
    def encode(self, tokens: Tensor) -> bytes:
        """Tokens [token, width] of one image to a record."""
        with one_thread():  # so that the record does not depend on the number of threads
            return self._encoded(checked(tokens, self._shape))

    def _encoded(self, tokens: Tensor) -> bytes:
        cls = self._cls(tokens)
        look = self._look(self._normalised(tokens))
        coefficients = directions(look, min(self.config.components, len(look.patches)))
        components = components_of(look, coefficients)
        strengths = components.square().mean(1).sqrt()
        sizes = _Sizes(cls, look, coefficients, components)
        step = self.config.step
        while True:
            rank = int((strengths >= _KEEP * step).sum())
            if sizes.expected(step, rank) <= self.config.budget:
                payload = _payload(cls, look, coefficients[:, :rank], step)
                if len(payload) + OVERHEAD <= self.config.budget:
                    return pack(self.name, *self._shape, payload)
            step *= 1.02

    def decode(self, records: Sequence[bytes], device: torch.device | str = "cpu") -> TailInput:
        """Records to input of the tail, in low-rank form."""
        patches, width = self._shape[0] - self.own, self._shape[1]
        ranks, steps, shifts, wide, narrow = [], [], [], [], []
        for payload in unpack(records, self.name, *self._shape):
            if len(payload) < _HEAD.size:
                raise StoreError("The record is damaged: its head is cut off.")
            rank, *its_steps, length = _HEAD.unpack_from(payload)
            at = _HEAD.size + 2 * rank
            ranks.append(rank)
            steps.append(its_steps)
            shifts.append(payload[_HEAD.size : at])
            wide.append(payload[at : at + length])
            narrow.append(payload[at + length :])
        counts = np.array(ranks, np.int64)
        most = int(counts.max(initial=0))
        entries = unpack_signed(wide, counts + 2, width)
        shift = np.frombuffer(b"".join(shifts), "<i2")
        whole = unpack_sorted(narrow, counts, patches, shift)
        rows = _padded(entries, counts + 2, most + 2, device)
        scale = torch.tensor(steps, device=device).reshape(-1, 4, 1)  # [batch, step, 1]
        cls = (rows[:, 0] * scale[:, 0]).clamp(*_FINITE)
        mean = rows[:, 1] * scale[:, 1]
        components = rows[:, 2:] * scale[:, 2:3]
        coefficients = _padded(whole, counts, most, device) * scale[:, 3:]
        return self._seen(cls, mean, components, coefficients)

    def _require(self, spec: Spec) -> None:
        require_one_block(self.name, spec)

    def _frozen(self, tail: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters that `_look` and `_seen` need."""
        return frozen(tail, self._spec)

    def _look(self, normalised: Tensor) -> Look:
        return look_at(self._tail, self._spec.heads, normalised[0], normalised[1:])

    def _cls(self, tokens: Tensor) -> Tensor:
        """The token that is stored separately, [width]."""
        return tokens[0]

    def _seen(
        self, cls: Tensor, mean: Tensor, components: Tensor, coefficients: Tensor
    ) -> TailInput:
        """Input of the tail; coefficients [batch, component, patch]."""
        return TailInput(
            cls, Tokens.low_rank(self._normalised(cls), mean, components, coefficients.mT)
        )

    def _normalised(self, tokens: Tensor) -> Tensor:
        """Tokens [token, width] after the block's first norm, without its affine."""
        found = normalise(tokens, self._spec.norm_eps)
        size = tokens.abs()
        if size.numel() and float(size.max()) > _HUGE:
            exact = normalise(tokens.double(), self._spec.norm_eps).float()
            found = torch.where(size.amax(-1, keepdim=True) > _HUGE, exact, found)  # row by row
        return found


_HUGE = 1e15  # the variance of larger values would overflow float32
_FINITE = (torch.finfo(torch.float32).min, torch.finfo(torch.float32).max)


class _Sizes:
    """Estimates the size of a record before quantisation."""

    def __init__(self, cls: Tensor, look: Look, coefficients: Tensor, components: Tensor) -> None:
        mean = look.weights @ look.patches
        self._shape = look.patches.shape
        self._cls = float(cls.double().abs().mean() / _cls_size(cls))
        self._mean = float(mean.abs().mean())
        self._components = components.abs().mean(1).double().numpy()
        self._coefficients = coefficients.abs().mean(0).double().numpy()

    def expected(self, step: float, rank: int) -> float:
        """Expected size of the record in bytes."""
        count, width = self._shape
        wide = [self._cls / _CLS_STEP, self._mean / _MEAN_STEP, *self._components[:rank]]
        narrow = self._coefficients[1:rank] / _COEFFICIENT_STEP
        bits = expected_bits(2 / step * np.concatenate([wide, narrow]))
        body = width * bits[: rank + 2].sum() + count * (bits[rank + 2 :].sum() + 1.2)
        # Features have lighter tails than geometric numbers, so records are shorter.
        return 0.975 * float(OVERHEAD + _HEAD.size + 2 * rank + body / 8)


def _payload(cls: Tensor, look: Look, coefficients: Tensor, step: float) -> bytes:
    """A record without header and checksum."""
    rank = coefficients.shape[1]
    cls_step = max(_CLS_STEP * step * _cls_size(cls), 1e-30)
    coefficient_step = _COEFFICIENT_STEP * step
    whole = (coefficients / coefficient_step).round()
    fitted = fit(look, whole * coefficient_step)
    fitted[0] /= _MEAN_STEP
    rows = torch.cat([cls[None].double() / cls_step, fitted.double() / step])
    rows = rows.round().clamp(-_LARGEST, _LARGEST)
    wide = pack_signed(rows.to(torch.int64).numpy())
    shifts, narrow = pack_sorted(whole.to(torch.int64).numpy().T)
    head = _HEAD.pack(rank, cls_step, _MEAN_STEP * step, step, coefficient_step, len(wide))
    return head + shifts.astype("<i2").tobytes() + wide + narrow


def _cls_size(cls: Tensor) -> float:
    """Root mean square, in double precision for huge values."""
    return float(cls.double().square().mean().sqrt()) or 1.0


def _padded(
    rows: NDArray[np.int16], counts: NDArray[np.int64], most: int, device: torch.device | str
) -> Tensor:
    """Concatenated rows of several images as [image, row, column], padded with zeros."""
    values = torch.from_numpy(rows).to(device).float()
    images, columns = len(counts), rows.shape[1]
    if (counts == most).all():
        return values.view(images, most, columns)
    padded = values.new_zeros(images * most, columns)
    image = np.repeat(np.arange(images), counts)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts) + most * image
    padded[torch.from_numpy(place).to(device)] = values
    return padded.view(images, most, columns)
