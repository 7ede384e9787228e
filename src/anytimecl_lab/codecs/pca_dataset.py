"""The paper's data-set PCA: one basis for the tokens of every 5,000 images."""

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

_HEAD = struct.Struct("<IH")  # digest of the fit, chunk
_AT_ONCE = 32  # images per product: more are not faster, and less precise


@dataclass(frozen=True)
class PcaDatasetConfig:
    """The paper's settings."""

    components: int = 200
    chunk: int = 5000  # images that share a basis


class PcaDataset(FittedCodec):
    """fp32 coefficients of tokens in the best of the bases fitted to chunks of the data set."""

    name = "pca-dataset"
    needs_image = False

    def __init__(self, spec: Spec, config: PcaDatasetConfig | None = None) -> None:
        super().__init__(spec, {"mean": 2, "components": 3})
        self.config = config or PcaDatasetConfig()
        self._shape = (spec.tokens, spec.tail.width)
        self._rank = min(self.config.components, spec.tail.width)

    @torch.no_grad()
    def fit(self, tokens: Iterable[Tensor]) -> None:
        """Fit to the tokens of all images, one [token, width] or many [image, token, width].

        One pass over covariances for each chunk, so the data set need not fit into memory.
        """
        chunks: list[_Moments] = []
        for batch in tokens:
            images = images_of(batch, self._shape)
            while len(images):
                if not chunks or chunks[-1].images == self.config.chunk:
                    chunks.append(_Moments(images[0]))
                some = min(self.config.chunk - chunks[-1].images, _AT_ONCE)
                chunks[-1].add(images[:some])
                images = images[some:]
        if not chunks:
            raise ModelError("There were no tokens to fit the codec 'pca-dataset' to.")
        bases = [chunk.basis(self._rank) for chunk in chunks]
        self._take(
            {
                "mean": torch.stack([mean for mean, _ in bases]),
                "components": torch.stack([components for _, components in bases]),
            }
        )

    @torch.no_grad()
    def encode(self, tokens: Tensor) -> bytes:
        """Tokens [token, width] of one image to a record."""
        fit = self._fits()
        centred = checked(tokens, self._shape) - fit["mean"][:, None]  # [chunk, token, width]
        coefficients = centred @ fit["components"].mT
        # Bases are orthonormal, so the best one has the smallest residual.
        left = centred.double().square().sum((1, 2)) - coefficients.double().square().sum((1, 2))
        chunk = int(left.argmin())
        values = coefficients[chunk].numpy().astype("<f4")
        payload = _HEAD.pack(self._mark, chunk) + values.tobytes()
        return pack(self.name, *self._shape, payload)

    def decode(self, records: Sequence[bytes], device: torch.device | str = "cpu") -> Tensor:
        """Records to tokens [batch, token, width]."""
        fit = self._fits()
        payloads = unpack(records, self.name, *self._shape)
        count, rank = self._shape[0], self._rank
        for payload in payloads:
            if len(payload) != _HEAD.size + 4 * count * rank:
                raise StoreError(
                    f"The record holds {len(payload)} bytes, which {count} tokens of {rank} "
                    "components do not take."
                )
        heads = [_HEAD.unpack_from(payload) for payload in payloads]
        self._check_mark({mark for mark, _ in heads})
        raw = b"".join(payload[_HEAD.size :] for payload in payloads)
        values = np.frombuffer(raw, "<f4").reshape(-1, count, rank)
        coefficients = torch.from_numpy(values.copy()).to(device)
        tokens = coefficients.new_empty(len(payloads), *self._shape)
        for chunk in {chunk for _, chunk in heads}:
            if chunk >= len(fit["mean"]):
                raise StoreError(f"The record is of chunk {chunk}, which this fit does not have.")
            rows = torch.tensor([its == chunk for _, its in heads], device=device)
            mean, components = (fit[name][chunk].to(device) for name in ("mean", "components"))
            tokens[rows] = coefficients[rows] @ components + mean
        return tokens


class _Moments:
    """Moments of the tokens of a chunk of images, for its PCA."""

    def __init__(self, first: Tensor) -> None:
        self.images = 0
        self._tokens = 0
        self._centre = first.mean(0)  # approximate mean, for precision
        self._sum = torch.zeros(first.shape[1], dtype=torch.float64)
        self._squares = torch.zeros(first.shape[1], first.shape[1], dtype=torch.float64)

    def add(self, images: Tensor) -> None:
        """Add the tokens [image, token, width] of some images."""
        centred = (images - self._centre).flatten(0, 1)
        self._sum += centred.sum(0)
        self._squares += centred.T @ centred
        self._tokens += len(centred)
        self.images += len(images)

    def basis(self, rank: int) -> tuple[Tensor, Tensor]:
        """Mean [width] and components [rank, width]."""
        mean = self._sum / self._tokens
        covariance = self._squares / self._tokens - mean[:, None] * mean
        vectors: Tensor = torch.linalg.eigh(covariance).eigenvectors
        return self._centre + mean, vectors[:, len(vectors) - rank :].flip(-1).T
