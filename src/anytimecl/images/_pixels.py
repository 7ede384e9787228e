"""Conversion of any image mode to upright 8-bit RGB."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anytimecl.images._errors import Refusal

# EXIF orientation -> its inverse. Not ImageOps.exif_transpose: it rewrites all other tags, and
# fails if one of them cannot be written.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

MAX_ASPECT = 200  # longer side over shorter: a thinner strip has nothing left after a resize
_STRIP = 2**20  # pixels that are converted at a time


def check_size(size: tuple[int, int], max_pixels: int) -> None:
    """Refuse images that are empty, too large or too thin."""
    width, height = size
    found = f"its size is {width}x{height}"
    if width <= 0 or height <= 0:
        raise Refusal(f"{found}; give an image that has pixels")
    if width * height > max_pixels:
        advice = "make it smaller, or raise max_pixels if you trust it"
        raise Refusal(f"{found}, more than {max_pixels} pixels; {advice}")
    if max(size) > MAX_ASPECT * min(size):
        raise Refusal(f"{found}, one side over {MAX_ASPECT} times the other; crop it")


def from_array(array: NDArray[Any], max_pixels: int) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    shaped = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    wide = array.ndim == 2 and array.dtype.kind == "u" and array.dtype.itemsize == 2
    if not (wide or (shaped and array.dtype == np.uint8)):
        raise Refusal(
            "an array must be [height, width] or [height, width, 1, 3 or 4] of uint8, or greyscale"
            " of uint16; move channels last, and scale floats to 0..255 and make them uint8"
        )
    check_size((array.shape[1], array.shape[0]), max_pixels)
    return Image.fromarray(np.ascontiguousarray(_grey8(array) if wide else array))


def to_rgb(image: Image.Image, at_least: int | None = None) -> Image.Image:
    """Upright RGB; with `at_least`, reduced by an integer factor to at least that many pixels."""
    turn = None
    with suppress(Exception):  # EXIF that cannot be read costs the turn, not the image
        turn = _UPRIGHT.get(image.getexif().get(0x0112, 1))
    factor = 1 if at_least is None else max(1, min(image.size) // at_least)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = Image.fromarray(_grey8(np.asarray(image)))
    rgb = _flat(image) if factor == 1 else _flat_reduced(image, factor)
    if turn is not None:
        rgb = rgb.transpose(turn)
    rgb.info = {}  # the orientation has been applied, and must not be applied again
    return rgb


def _flat(image: Image.Image) -> Image.Image:
    """RGB, composited on white."""
    if image.mode in ("La", "RGBa"):  # alpha already multiplied in
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    if image.has_transparency_data:
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        rgb = Image.new("RGB", image.size, "white")
        rgb.paste(rgba, mask=rgba)
        return rgb
    return image.convert("RGB")  # a copy, when it is RGB already


def _flat_reduced(image: Image.Image, factor: int) -> Image.Image:
    """`_flat`, then box-reduced by `factor`; a strip at a time, without a second copy."""
    width, height = image.size
    small = Image.new("RGB", (-(-width // factor), -(-height // factor)))
    rows = max(1, _STRIP // width // factor) * factor
    for top in range(0, height, rows):
        strip = _flat(image.crop((0, top, width, min(top + rows, height))))
        small.paste(strip.reduce(factor), (0, top // factor))
    return small


def _grey8(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Greyscale [height, width] of any depth as 8 bits.

    Integers are 16-bit, floats 0..1 or else 0..255, if all values are in that range; otherwise
    values are stretched from minimum to maximum. Infinities and NaN become 0.
    """
    values = np.nan_to_num(values, nan=0, posinf=0, neginf=0)
    low, high = float(values.min()), float(values.max())
    for top in (65535,) if values.dtype.kind in "iu" else (1, 255):
        if low >= 0 and high <= top:
            low, high = 0.0, float(top)
            break
    grey = np.empty(values.shape, dtype=np.uint8)
    for row, line in enumerate(values):  # by row: an image as large as allowed, eightfold, is a lot
        grey[row] = np.rint((line.astype(np.float64) - low) * (255 / ((high - low) or 1)))
    return grey
