"""Tokens of the data sets that benchmarks use.

    python -m benchmarks.features DATA cifar100 pets ...

They are encoded once, and cached by `anytimecl_lab.features`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anytimecl.backbone import Backbone, load
from anytimecl.images import iter_images
from anytimecl_lab.data import archive_split, from_archive
from anytimecl_lab.features import features as tokens_of


@dataclass(frozen=True)
class Features:
    """Encoded images of a split."""

    tokens: NDArray[np.float16]  # [image, token, width]
    targets: NDArray[np.int64]  # [image]
    names: list[str]  # [class]


def features(archive: Path, split: str, backbone: Backbone) -> Features:
    """Encode, or read from the cache."""
    refs = [ref for ref in iter_images(archive) if ref.split == split]
    part = archive_split(archive, split, refs)
    names = sorted(set(part.labels))
    targets = np.array([names.index(label) for label in part.labels])
    return Features(tokens_of(part, backbone), targets, names)


if __name__ == "__main__":
    model = load("embedded")
    for name in sys.argv[2:]:
        found = from_archive(name, Path(sys.argv[1]) / f"{name}.zip")
        for part in (found.train, found.test):
            if part is not None:
                tokens_of(part, model)
                print(f"{part.key}: encoded", flush=True)
