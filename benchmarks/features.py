"""Tokens of whole data sets, encoded once for each trunk and kept on disk.

    python -m benchmarks.features DATA cifar100 pets ...

Half precision, one memory-mapped file per data set and split; a run that was cut short resumes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.progress import track

from anytimecl.backbone import Backbone, load
from anytimecl.backbone.text import cache_folder
from anytimecl.images import iter_images


@dataclass(frozen=True)
class Features:
    """A split of a data set, as the tail sees it."""

    tokens: NDArray[np.float16]  # [image, token, width]
    targets: NDArray[np.int64]  # [image]
    names: list[str]  # [class]


def features(archive: Path, split: str, backbone: Backbone) -> Features:
    """From disk, or encoded now."""
    refs = [ref for ref in iter_images(archive) if ref.split == split]
    names = sorted({str(ref.label) for ref in refs})
    targets = np.array([names.index(str(ref.label)) for ref in refs])
    folder = cache_folder() / "features" / _trunk_key(backbone)
    folder.mkdir(parents=True, exist_ok=True)
    file, mark = folder / f"{archive.stem}-{split}.npy", folder / f"{archive.stem}-{split}.json"
    shape = (len(refs), backbone.spec.tokens, backbone.spec.tail.width)
    done = json.loads(mark.read_text())["done"] if mark.exists() and file.exists() else 0
    mode = "r+" if done else "w+"
    tokens = np.lib.format.open_memmap(file, mode, np.float16, shape)
    title = f"encoding {archive.stem} {split}"
    for i in track(range(done, len(refs)), title, disable=done == len(refs)):
        tokens[i] = backbone.encode([refs[i].load()])[0].cpu().numpy()
        if (i + 1) % 200 == 0 or i + 1 == len(refs):
            tokens.flush()
            mark.write_text(json.dumps({"done": i + 1}))
    return Features(tokens, targets, names)


def _trunk_key(backbone: Backbone) -> str:
    """A trunk is what it does: a digest of its tokens for one fixed picture."""
    picture = Image.linear_gradient("L").convert("RGB")
    tokens = backbone.encode([picture]).half().cpu().numpy()
    return hashlib.sha256(tokens.tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    model = load("embedded")
    for name in sys.argv[2:]:
        for part in ("train", "test"):
            if any(ref.split == part for ref in iter_images(Path(sys.argv[1]) / f"{name}.zip")):
                features(Path(sys.argv[1]) / f"{name}.zip", part, model)
                print(f"{name} {part}: encoded", flush=True)
