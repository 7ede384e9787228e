"""Regions of an image: classify and learn boxes or masks by their patches.

The image is encoded once. For a region, the region's patches replace all others, repeated to keep
the number of tokens and so the balance of class token and patches. The result has the form of an
image's tokens, so prediction, learning and codecs work unchanged.

It is an approximation, since patches and class token have attended to the whole image in the trunk.
docs/scale.md compares it with encoding the crop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from torch import Tensor

from anytimecl.backbone import Spec
from anytimecl.errors import ImageError, ModelError
from anytimecl.images import ImageSource, load_image
from anytimecl.trainer import Learned

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels of the image
Mask = NDArray[np.bool_]  # [height, width] of the image
Region = Box | Mask
COVERED = 0.5  # share of a patch from which it belongs to a region


class ReadsTokens(Protocol):
    """A classifier, or a tree of them."""

    def encode(self, images: Sequence[ImageSource]) -> Tensor: ...
    def predict_tokens(self, tokens: Tensor, labels: Sequence[str] | None = None) -> Any: ...
    def learn_tokens(self, tokens: Tensor, label: str, *, key: str | None = None) -> Learned: ...


def grid(spec: Spec) -> tuple[int, int]:
    """Rows and columns of patches."""
    prep = spec.preprocess
    for prefix in (1, 5):  # the class token, and registers where a model has them
        rows = round(((spec.tokens - prefix) * prep.height / prep.width) ** 0.5)
        columns = (spec.tokens - prefix) // max(rows, 1)
        if rows * columns == spec.tokens - prefix and prep.height * columns == prep.width * rows:
            return rows, columns
    raise ModelError(f"{spec.name} has no grid of patches that regions could be read from.")


def coverage(region: Region, size: tuple[int, int], spec: Spec) -> Tensor:
    """Share of each patch [patch] that a region covers, in an image of size (width, height)."""
    rows, columns = grid(spec)
    mask = _as_mask(region, size)
    prep = spec.preprocess
    if prep.resize == "shortest":
        assert isinstance(prep.resize_to, int)
        scale = prep.resize_to / min(size)
        resized = round(size[0] * scale), round(size[1] * scale)
    else:
        resized = prep.width, prep.height
    small = mask.resize(resized, PIL.Image.Resampling.BOX)
    left, top = (resized[0] - prep.width) // 2, (resized[1] - prep.height) // 2
    seen = small.crop((left, top, left + prep.width, top + prep.height))
    cells = np.asarray(seen.resize((columns, rows), PIL.Image.Resampling.BOX), np.float32)
    return torch.from_numpy(cells.flatten() / 255)


def _as_mask(region: Region, size: tuple[int, int]) -> PIL.Image.Image:
    width, height = size
    if isinstance(region, np.ndarray):
        if region.shape != (height, width):
            raise ImageError(
                f"A mask has the shape of its image, {(height, width)}, not {region.shape}."
            )
        return PIL.Image.fromarray(region.astype(bool).astype(np.uint8) * 255)
    left, top, right, bottom = region
    pixels = np.zeros((height, width), np.uint8)
    pixels[round(max(0, top)) : round(bottom), round(max(0, left)) : round(right)] = 255
    if not pixels.any():
        raise ImageError(f"The box {region} covers nothing of an image of {width} by {height}.")
    return PIL.Image.fromarray(pixels)


def region_tokens(tokens: Tensor, cover: Tensor) -> Tensor:
    """Tokens [token, width] of a region, from the image's tokens and the region's `cover`."""
    if not cover.any():
        raise ImageError("The region lies outside of what the model sees of the image.")
    inside = cover >= min(COVERED, float(cover.max()))  # a small one has at least one patch
    chosen = inside.nonzero().flatten().to(tokens.device)
    prefix = len(tokens) - len(cover)
    fill = torch.arange(len(cover), device=tokens.device) * len(chosen) // len(cover)
    return torch.cat([tokens[:prefix], tokens[prefix:][chosen[fill]]])


def encode_regions(
    classifier: ReadsTokens, spec: Spec, image: ImageSource, regions: Sequence[Region]
) -> Tensor:
    """Tokens [region, token, width] for `predict_tokens` or `learn_tokens`."""
    loaded = load_image(image)
    (tokens,) = classifier.encode([loaded])
    return torch.stack([region_tokens(tokens, coverage(r, loaded.size, spec)) for r in regions])


def predict_regions(
    classifier: Any,
    image: ImageSource,
    regions: Sequence[Region],
    labels: Sequence[str] | None = None,
) -> Any:
    """A prediction for each region; the image is encoded once."""
    tokens = encode_regions(classifier, classifier.backbone.spec, image, regions)
    return classifier.predict_tokens(tokens, labels)


def learn_region(
    classifier: Any, image: ImageSource, region: Region, label: str, *, key: str | None = None
) -> Learned:
    """`learn_one` for a region."""
    (tokens,) = encode_regions(classifier, classifier.backbone.spec, image, [region])
    learned: Learned = classifier.learn_tokens(tokens, label, key=key)
    return learned
