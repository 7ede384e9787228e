"""Preprocessing of RGB images: resize, centre crop, normalise.

`pixels` applies it; `from_config` reads it from a `preprocessor_config.json`. Resizing is done by
Pillow, as for the published models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import PIL.Image
import torch
from torch import Tensor

from anytimecl.backbone.spec import Preprocess
from anytimecl.errors import ImageError, ModelError

_RESAMPLE = {
    "nearest": PIL.Image.Resampling.NEAREST,
    "lanczos": PIL.Image.Resampling.LANCZOS,
    "bilinear": PIL.Image.Resampling.BILINEAR,
    "bicubic": PIL.Image.Resampling.BICUBIC,
}


def pixels(image: PIL.Image.Image, prep: Preprocess) -> Tensor:
    """Preprocess an RGB image to [3, height, width], float32.

    >>> grey = Preprocess(2, 2, "exact", (2, 2), "bicubic", (0.5,) * 3, (0.5,) * 3)
    >>> pixels(PIL.Image.new("RGB", (9, 5), (255, 255, 0)), grey)[:, 0, 0]
    tensor([ 1.,  1., -1.])
    """
    if not isinstance(image, PIL.Image.Image):
        raise ImageError(f"An image was expected, not {type(image).__name__}.")
    if min(image.size) < 1:
        raise ImageError(f"The image is empty: {image.width} by {image.height} pixels.")
    if image.mode != "RGB":
        image = image.convert("RGB")
    values = np.asarray(_resized(image, prep))  # [height, width, 3] uint8
    table = _table(prep.mean, prep.std)
    channels = [table[channel][values[:, :, channel]] for channel in range(3)]
    return torch.from_numpy(np.stack(channels))


def _resized(image: PIL.Image.Image, prep: Preprocess) -> PIL.Image.Image:
    """Resize and crop to `prep.height` by `prep.width`, 8 bits per channel."""
    filter_ = _RESAMPLE[prep.resample]
    if prep.resize == "exact":
        assert isinstance(prep.resize_to, tuple)
        height, width = prep.resize_to
    else:
        assert isinstance(prep.resize_to, int)
        short, long = sorted(image.size)
        longer = int(prep.resize_to * long / short)
        portrait = image.width <= image.height
        width, height = (prep.resize_to, longer) if portrait else (longer, prep.resize_to)
    left, top = (width - prep.width) // 2, (height - prep.height) // 2
    box = (left, top, left + prep.width, top + prep.height)
    if width * height <= 16 * prep.width * prep.height:
        resized = image if image.size == (width, height) else image.resize((width, height), filter_)
        return resized if resized.size == (prep.width, prep.height) else resized.crop(box)
    # Only the crop is resized: a whole image of 60,000 by 1 pixels would become gigabytes. Pillow
    # has the box in 32 bits, so rarely a value differs by one level.
    across, down = image.width / width, image.height / height
    source = (box[0] * across, box[1] * down, box[2] * across, box[3] * down)
    return image.resize((prep.width, prep.height), filter_, box=source)


@lru_cache(maxsize=8)
def _table(mean: tuple[float, ...], std: tuple[float, ...]) -> np.ndarray[Any, Any]:
    """Table of normalised 8-bit values, [3, 256]: faster than arithmetic."""
    levels = np.arange(256) / 255
    return np.stack([(levels - m) / s for m, s in zip(mean, std, strict=True)]).astype(np.float32)


def from_config(config: Mapping[str, Any], source: str) -> Preprocess:
    """Parse a `preprocessor_config.json`; ModelError for unsupported steps.

    `source` names the model in errors.

    >>> from_config({"size": {"height": 8, "width": 8}, "resample": 3,
    ...              "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}, "mine").resize
    'exact'
    """
    for key, value in config.items():
        if key.startswith("do_") and key not in _STEPS and value:
            raise _refused(source, key, value, "it is a step that anytimecl does not know")
    for key in ("do_resize", "do_rescale"):
        if not config.get(key, True):
            raise _refused(source, key, config[key], "images of any size and depth must go in")
    factor = config.get("rescale_factor", 1 / 255)
    if not _is_number(factor) or abs(factor * 255 - 1) > 1e-6:
        raise _refused(source, "rescale_factor", factor, "it should be 1/255")
    if config.get("rescale_offset"):
        raise _refused(source, "rescale_offset", config["rescale_offset"], "it should be absent")

    resize_to = _size(config.get("size"), source, "size")
    height, width = resize_to if isinstance(resize_to, tuple) else (resize_to, resize_to)
    if config.get("do_center_crop", False):
        crop = _size(config.get("crop_size"), source, "crop_size")
        crop = crop if isinstance(crop, tuple) else (crop, crop)
        if crop[0] > height or crop[1] > width:
            raise _refused(source, "crop_size", crop, "it is larger than the resized image")
        height, width = crop
    elif isinstance(resize_to, int):
        raise _refused(source, "do_center_crop", False, "images would differ in shape")

    resample = _FILTERS.get(config.get("resample"))
    if resample is None:
        raise _refused(source, "resample", config.get("resample"), f"it is one of {_FILTERS}")
    normalise = config.get("do_normalize", True)
    return Preprocess(
        height=height,
        width=width,
        resize="exact" if isinstance(resize_to, tuple) else "shortest",
        resize_to=resize_to,
        resample=resample,
        mean=_three(config, "image_mean", source) if normalise else (0.0, 0.0, 0.0),
        std=_three(config, "image_std", source) if normalise else (1.0, 1.0, 1.0),
    )


# do_convert_rgb: images are RGB already.
_STEPS = {
    "do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb",
}  # fmt: skip
_FILTERS: dict[Any, Literal["nearest", "bilinear", "bicubic", "lanczos"]] = {
    0: "nearest",
    1: "lanczos",
    2: "bilinear",
    3: "bicubic",
}


def _size(value: Any, source: str, key: str) -> int | tuple[int, int]:
    """The shortest edge, or (height, width); a single number is the shortest edge."""
    named = {"shortest_edge": value} if _is_count(value) else value
    if isinstance(named, Mapping):
        given = {name: edge for name, edge in named.items() if edge is not None}
        if all(_is_count(edge) for edge in given.values()):
            if set(given) == {"shortest_edge"}:
                return int(given["shortest_edge"])
            if set(given) == {"height", "width"}:
                return int(given["height"]), int(given["width"])
    raise _refused(source, key, value, "it is a shortest_edge, or a height and a width")


def _three(config: Mapping[str, Any], key: str, source: str) -> tuple[float, float, float]:
    value = config.get(key)
    three = isinstance(value, (list, tuple)) and len(value) == 3 and all(map(_is_number, value))
    if value is not None and three and (key != "image_std" or min(value) > 0):
        return float(value[0]), float(value[1]), float(value[2])
    raise _refused(source, key, value, "it is one number for each of red, green and blue")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _refused(source: str, key: str, value: object, why: str) -> ModelError:
    return ModelError(
        f"The preprocessing of {source} cannot be followed: {key} is {value!r}, but {why}."
    )
