"""Label embeddings from a file, instead of the model's text encoder.

The file is NumPy's .npz with `names` [row] and `vec` [row, dim], and optionally `source` and
`prompt` [row]: the origin of each vector, and its text. A name may have several rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from anytimecl.errors import ModelError
from anytimecl_lab.data import DataSet


@dataclass(frozen=True, eq=False)
class LabelVectors:
    """Names with unit embeddings."""

    file: Path
    names: Sequence[str]  # [row], normalised for look-up
    vectors: NDArray[np.float32]  # [row, dim]
    sources: Sequence[str]  # [row]
    preferred: Sequence[str] = ()  # sources, the best first; then in the file's order

    @cached_property
    def _rows(self) -> dict[str, int]:
        place = {source: at for at, source in enumerate(self.preferred)}
        order = sorted(
            range(len(self.names)), key=lambda row: place.get(self.sources[row], len(place))
        )
        found: dict[str, int] = {}
        for row in order:
            found.setdefault(self.names[row], row)
        return found

    def __contains__(self, name: str) -> bool:
        return plain(name) in self._rows

    def of(self, names: Sequence[str]) -> Tensor:
        """Unit embeddings [name, dim]."""
        missing = [name for name in names if name not in self]
        if missing:
            some = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
            raise ModelError(f"{self.file} has no vectors for {len(missing)} labels: {some}")
        rows = [self._rows[plain(name)] for name in names]
        return F.normalize(torch.from_numpy(self.vectors[rows]), dim=-1)

    @property
    def mark(self) -> str:
        """Digest of the embeddings, for lines of results."""
        told = "\n".join([*self.names, *self.preferred]).encode() + self.vectors.tobytes()
        return hashlib.sha256(told).hexdigest()[:12]


def read_vectors(file: Path, dim: int, preferred: Sequence[str] = ()) -> LabelVectors:
    """Read a file; `dim` is the model's."""
    try:
        with np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except (OSError, ValueError) as error:
        raise ModelError(f"The label vectors {file} cannot be read: {error}") from error
    if not {"names", "vec"} <= arrays.keys():
        raise ModelError(f"{file} has no arrays `names` and `vec`, but {', '.join(arrays)}.")
    names, vectors = arrays["names"].tolist(), arrays["vec"].astype(np.float32)
    if vectors.shape != (len(names), dim):
        raise ModelError(
            f"{file} has {len(names)} names and vectors {list(vectors.shape)}; the model's are of "
            f"{dim} dimensions: they belong to another model."
        )
    sources = arrays["source"].tolist() if "source" in arrays else [""] * len(names)
    if unknown := set(preferred) - set(sources):
        raise ModelError(f"{file} has no source {', '.join(sorted(unknown))}.")
    return LabelVectors(file, [plain(name) for name in names], vectors, sources, preferred)


def plain(name: str) -> str:
    """A normalised name, for look-up.

    >>> plain("Great_White shark")
    'great white shark'
    """
    return " ".join(name.replace("_", " ").casefold().split())


def known_only(given: DataSet, vectors: LabelVectors) -> DataSet:
    """The task restricted to labels with an embedding."""
    known = frozenset(name for name in given.names if name in vectors)
    if len(known) < 2:
        raise ModelError(
            f"{vectors.file} has vectors for {len(known)} of the {len(given.names)} labels of "
            f"{given.name!r}: too few to tell anything apart."
        )
    return replace(given, known=known)
