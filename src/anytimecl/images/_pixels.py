"""Pixels of any kind to upright 8-bit RGB."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anytimecl.images._decode import check_size
from anytimecl.images._errors import Refusal

_UPRIGHT = {  # EXIF orientation -> what undoes it
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


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


def to_rgb(image: Image.Image) -> Image.Image:
    with suppress(Exception):  # EXIF that cannot be read costs the turn, not the image
        turn = _UPRIGHT.get(image.getexif().get(0x0112, 1))
        image = image if turn is None else image.transpose(turn)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = Image.fromarray(_grey8(np.asarray(image)))
    if image.mode in ("La", "RGBa"):  # alpha already multiplied in
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    if image.has_transparency_data:
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        rgb = Image.new("RGB", image.size, "white")
        rgb.paste(rgba, mask=rgba)
    else:
        rgb = image.convert("RGB")  # a copy, when it is RGB already
    rgb.info = {}  # the orientation has been applied: nobody shall apply it twice
    return rgb


def _grey8(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Greyscale of any depth as 8 bits; `values` is [height, width].

    Integers count as 16-bit, floats as 0..1 or else as 0..255, where all of them fit; what fits
    nowhere is stretched from its own minimum to its own maximum. Infinities and NaN count as 0.
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
