"""Base of codecs that are fitted to a data set."""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.errors import ModelError, StoreError
from anytimecl.files import replacing


class FittedCodec(ABC):
    """A codec with tensors fitted to the tokens of one model, saved as a safetensors file.

    Records have a digest of the tensors, so that no record is decoded with another fit.
    """

    name: str

    @abstractmethod
    def fit(self, tokens: Iterable[Tensor]) -> None:
        """Fit to the tokens of all images."""

    def __init__(self, spec: Spec, shapes: dict[str, int]) -> None:
        self._fingerprint = spec.fingerprint
        self._dimensions = shapes  # name -> number of dimensions, of each tensor
        self._fit: dict[str, Tensor] = {}
        self._mark = 0

    @property
    def fitted(self) -> bool:
        """Whether records can be written and read."""
        return bool(self._fit)

    def save(self, path: str | Path) -> None:
        """Save the tensors atomically."""
        path = Path(path)
        about = {"codec": self.name, "fingerprint": self._fingerprint, "version": "1"}
        with replacing(path) as draft:
            save_file(self._fits(), draft, metadata={"anytimecl": json.dumps(about)})

    def load(self, path: str | Path) -> None:
        """Load the tensors; raises for those of another codec or model."""
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {}).get("anytimecl", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, ValueError) as error:
            raise StoreError(f"{path} cannot be read as a fitted codec: {error}") from error
        if about.get("codec") != self.name or about.get("version") != "1":
            raise StoreError(f"{path} does not hold a fit of the codec {self.name!r}.")
        if about.get("fingerprint") != self._fingerprint:
            raise ModelError(
                f"{path} was fitted to the tokens of another model. Fit the codec {self.name!r} "
                "again with tokens of this one."
            )
        if {name: value.ndim for name, value in tensors.items()} != self._dimensions:
            raise StoreError(f"{path} does not hold the tensors of the codec {self.name!r}.")
        self._take(tensors)

    def _take(self, tensors: dict[str, Tensor]) -> None:
        self._fit = {name: value.float().contiguous() for name, value in tensors.items()}
        self._mark = 0
        for name in sorted(self._fit):
            self._mark = zlib.crc32(self._fit[name].numpy().tobytes(), self._mark)

    def _fits(self) -> dict[str, Tensor]:
        if not self._fit:
            raise ModelError(
                f"The codec {self.name!r} learns from a data set first: call fit with the tokens "
                "of its images, or load what was saved."
            )
        return self._fit

    def _check_mark(self, marks: set[int]) -> None:
        self._fits()
        if marks - {self._mark}:
            raise StoreError(
                f"The record was written by another fit of the codec {self.name!r}. Load that one."
            )


def images_of(tokens: Tensor, shape: tuple[int, int]) -> Tensor:
    """Tokens of one or several images as [image, token, width], float32, on the CPU."""
    if tokens.ndim == 2:
        tokens = tokens[None]
    if tuple(tokens.shape[1:]) != shape:
        raise ModelError(
            f"A codec is fitted to tokens [image, {shape[0]}, {shape[1]}], "
            f"not {list(tokens.shape)}."
        )
    return tokens.detach().to("cpu", torch.float32)
