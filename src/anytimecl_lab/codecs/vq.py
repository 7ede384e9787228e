"""The paper's vector quantisation: every token is replaced by the index of the nearest code."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.codec._check import checked
from anytimecl.codec._record import pack, unpack
from anytimecl.errors import ModelError, StoreError
from anytimecl_lab.codecs._fitted import FittedCodec, images_of

_HEAD = struct.Struct("<I")  # digest of the fit


@dataclass(frozen=True)
class VqConfig:
    """The codebook, and how it is learned."""

    codes: int = 1024
    samples: int = 32_768  # tokens to fit to, sampled uniformly
    passes: int = 10  # over the samples
    batch: int = 2048
    decay: float = 0.99  # of codes' counts, per batch
    seed: int = 0


class Vq(FittedCodec):
    """Two bytes per token."""

    name = "vq"
    needs_image = False

    def __init__(self, spec: Spec, config: VqConfig | None = None) -> None:
        super().__init__(spec, {"codes": 2})
        self.config = config or VqConfig()
        if not 1 <= self.config.codes <= 65_536:
            raise ValueError(f"A codebook has 1 to 65,536 codes, not {self.config.codes}.")
        self._shape = (spec.tokens, spec.tail.width)

    @torch.no_grad()
    def fit(self, tokens: Iterable[Tensor]) -> None:
        """Fit to the tokens of all images, one [token, width] or many [image, token, width]."""
        generator = torch.Generator().manual_seed(self.config.seed)
        samples = _reservoir(tokens, self._shape, self.config.samples, generator)
        self._take({"codes": learn_codes(samples, self.config, generator)})

    @torch.no_grad()
    def encode(self, tokens: Tensor) -> bytes:
        """Tokens [token, width] of one image to a record."""
        numbers = nearest(checked(tokens, self._shape), self._fits()["codes"])
        payload = _HEAD.pack(self._mark) + numbers.numpy().astype("<u2").tobytes()
        return pack(self.name, *self._shape, payload)

    def decode(self, records: Sequence[bytes], device: torch.device | str = "cpu") -> Tensor:
        """Records to tokens [batch, token, width]."""
        codes = self._fits()["codes"]
        payloads = unpack(records, self.name, *self._shape)
        size = _HEAD.size + 2 * self._shape[0]
        for payload in payloads:
            if len(payload) != size:
                raise StoreError(f"The record holds {len(payload)} bytes, not {size}.")
        self._check_mark({_HEAD.unpack_from(payload)[0] for payload in payloads})
        raw = b"".join(payload[_HEAD.size :] for payload in payloads)
        numbers = np.frombuffer(raw, "<u2").reshape(-1, self._shape[0]).astype(np.int64)
        if numbers.max(initial=0) >= len(codes):
            raise StoreError(f"The record names code {numbers.max()}, of {len(codes)}.")
        return codes.to(device)[torch.from_numpy(numbers).to(device)]


def learn_codes(samples: Tensor, config: VqConfig, generator: torch.Generator) -> Tensor:
    """Codes [code, width] by online k-means on samples [sample, width].

    A rarely used code is moved towards a random sample, so that no code stays unused (Zheng and
    Vedaldi, "Online Clustered Codebook", 2023).
    """
    order = torch.randperm(len(samples), generator=generator)
    codes = samples[order[torch.arange(config.codes) % len(samples)]].clone()
    weights = torch.zeros(config.codes)  # decaying number of samples of each code
    for _ in range(config.passes):
        order = torch.randperm(len(samples), generator=generator)
        for start in range(0, len(samples), config.batch):
            batch = samples[order[start : start + config.batch]]
            numbers = nearest(batch, codes)
            counts = torch.bincount(numbers, minlength=config.codes)
            weights = config.decay * weights + counts
            sums = torch.zeros_like(codes).index_add_(0, numbers, batch)
            share = (counts / weights).nan_to_num()[:, None]
            codes += share * (sums / counts.clamp_min(1)[:, None] - codes)
            pull = torch.exp(-10 * config.codes * weights / len(batch) - 1e-3)
            anchors = batch[torch.randint(len(batch), (config.codes,), generator=generator)]
            codes += pull[:, None] * (anchors - codes)
            weights *= 1 - pull
    return codes


def nearest(vectors: Tensor, codes: Tensor) -> Tensor:
    """Index of the nearest code for each vector."""
    return (codes.square().sum(1) - 2 * vectors @ codes.T).argmin(1)


def _reservoir(
    tokens: Iterable[Tensor], shape: tuple[int, int], most: int, generator: torch.Generator
) -> Tensor:
    """A uniform sample of at most `most` vectors [sample, width]."""
    kept: list[Tensor] = []
    keys: list[Tensor] = []  # random: the vectors with the smallest stay
    size, limit = 0, 1.0
    for batch in tokens:
        rows = images_of(batch, shape).flatten(0, 1)
        its_keys = torch.rand(len(rows), generator=generator)
        stay = its_keys < limit
        kept.append(rows[stay])
        keys.append(its_keys[stay])
        size += len(kept[-1])
        if size > 2 * most:
            kept, keys = _smallest(kept, keys, most)
            size, limit = most, float(keys[0].max())
    if not size:
        raise ModelError("There were no tokens to fit the codec 'vq' to.")
    return _smallest(kept, keys, min(most, size))[0][0]


def _smallest(
    kept: list[Tensor], keys: list[Tensor], most: int
) -> tuple[list[Tensor], list[Tensor]]:
    """The vectors with the smallest keys, and those keys."""
    values, stay = torch.cat(keys).topk(most, largest=False)
    return [torch.cat(kept)[stay]], [values]
