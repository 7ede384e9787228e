"""Tokens of whole data sets, encoded once for each trunk and kept on disk.

Half precision, one memory-mapped file per split, and beside it a mark for every image that is
done: a run that was cut short resumes, and a run that wants some images encodes those alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray

from anytimecl.backbone import Backbone
from anytimecl.backbone.text import cache_folder
from anytimecl.bench._progress import track
from anytimecl.bench.data import Split

AT_ONCE = {"cpu": 32, "cuda": 256}  # images in the trunk; marks are written after each


def features(
    split: Split, backbone: Backbone, wanted: Sequence[int] | None = None
) -> NDArray[np.float16]:
    """Tokens [image, token, width]; only the wanted images (unless told: all) are surely there."""
    folder = cache_folder() / "features" / trunk_key(backbone)
    folder.mkdir(parents=True, exist_ok=True)
    file, marks = folder / f"{split.key}.npy", folder / f"{split.key}.done.npy"
    shape = (len(split), backbone.spec.tokens, backbone.spec.tail.width)
    there = file.exists() and marks.exists()
    tokens = np.lib.format.open_memmap(file, "r+" if there else "w+", np.float16, shape)
    done = np.lib.format.open_memmap(marks, "r+" if there else "w+", np.uint8, shape[:1])
    missing = [i for i in (range(len(split)) if wanted is None else wanted) if not done[i]]
    size = AT_ONCE.get(backbone.device.type, 32)
    starts = range(0, len(missing), size)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in track(starts, f"encoding {split.key}") if missing else ():
            some = missing[start : start + size]
            pixels = torch.cat(list(pool.map(lambda i: backbone.pixels([split.load(i)]), some)))
            encoded = backbone.trunk(pixels.to(backbone.device))
            tokens[some] = encoded.half().cpu().numpy()
            tokens.flush()
            done[some] = 1
            done.flush()
    return tokens


@lru_cache(maxsize=4)
def trunk_key(backbone: Backbone) -> str:
    """A trunk is what it does: a digest of its tokens for one fixed picture."""
    picture = PIL.Image.linear_gradient("L").convert("RGB")
    tokens = backbone.encode([picture]).half().cpu().numpy()
    return hashlib.sha256(tokens.tobytes()).hexdigest()[:16]
