"""Cached tokens and embeddings of data sets.

A memory-mapped file for each split and model, with a flag for each image: interrupted runs resume,
and only the images that are needed are encoded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from anytimecl.backbone import Backbone
from anytimecl.backbone.text import cache_folder
from anytimecl.tail import embed
from anytimecl_lab._clock import Clock
from anytimecl_lab._progress import track
from anytimecl_lab.data import Split
from anytimecl_lab.examples import CHUNK, chunks, resident

AT_ONCE = {"cpu": 32, "cuda": 256}  # images per batch of the trunk; flags are written after each


def features(
    split: Split,
    backbone: Backbone,
    wanted: Sequence[int] | None = None,
    clock: Clock | None = None,
) -> NDArray[np.float16]:
    """Tokens [image, token, width]; only those of the wanted images (default: all) are valid.

    Raises `OutOfTime` between two batches if the clock has run out.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:

        def encode(some: Sequence[int]) -> NDArray[np.float16]:
            pixels = torch.cat(list(pool.map(lambda i: backbone.pixels([split.load(i)]), some)))
            tokens = backbone.trunk(pixels.to(backbone.device))
            return np.asarray(tokens.half().cpu().numpy())

        shape = (len(split), backbone.spec.tokens, backbone.spec.tail.width)
        size = AT_ONCE.get(backbone.device.type, 32)
        name = f"{trunk_key(backbone)}/{split.key}"
        return _kept(name, np.float16, shape, wanted, encode, size, clock)


def original_vectors(
    split: Split, backbone: Backbone, wanted: Sequence[int] | None = None
) -> NDArray[np.float32]:
    """Unit embeddings [image, dim] of the original model; otherwise like `features`."""

    @torch.no_grad()
    def look(some: Sequence[int]) -> NDArray[np.float32]:
        tokens = features(split, backbone, some)[list(some)]
        (part,) = chunks(resident([tokens], backbone.spec, str(backbone.device)))
        vectors = F.normalize(embed(backbone.tail, backbone.spec.tail, part), dim=-1)
        return np.asarray(vectors.cpu().numpy())

    name = f"{trunk_key(backbone)}/{split.key}.{backbone.spec.fingerprint}"
    return _kept(name, np.float32, (len(split), backbone.spec.dim), wanted, look, CHUNK)


T = TypeVar("T", np.float16, np.float32)


def _kept(
    name: str,
    kind: type[T],
    shape: tuple[int, ...],  # of all images
    wanted: Sequence[int] | None,
    make: Callable[[Sequence[int]], NDArray[T]],
    size: int,
    clock: Clock | None = None,
) -> NDArray[T]:
    """An array of the cache; missing rows are computed, in batches of `size`."""
    file = cache_folder() / "features" / f"{name}.npy"
    marks = file.with_suffix(".done.npy")
    file.parent.mkdir(parents=True, exist_ok=True)
    mode: Literal["r+", "w+"] = "r+" if file.exists() and marks.exists() else "w+"
    found = np.lib.format.open_memmap(file, mode, kind, shape)
    done = np.lib.format.open_memmap(marks, mode, np.uint8, shape[:1])
    missing = [i for i in (range(shape[0]) if wanted is None else wanted) if not done[i]]
    starts = range(0, len(missing), size)
    for start in track(starts, f"encoding {file.stem}") if missing else ():
        if clock is not None:
            clock.check()
        some = missing[start : start + size]
        found[some] = make(some)
        found.flush()
        done[some] = 1
        done.flush()
    return found


@lru_cache(maxsize=4)
def trunk_key(backbone: Backbone) -> str:
    """Digest of a trunk, from its tokens for a fixed picture."""
    picture = PIL.Image.linear_gradient("L").convert("RGB")
    tokens = backbone.encode([picture]).half().cpu().numpy()
    return hashlib.sha256(tokens.tobytes()).hexdigest()[:16]
