"""One image, whatever it comes as."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anytimecl.images._bytes import check_bytes, read_path, read_stream
from anytimecl.images._decode import check_size, decode
from anytimecl.images._errors import Refusal, describe, errors_named
from anytimecl.images._pixels import from_array, to_rgb

ImageSource: TypeAlias = (
    "str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes]"
    " | Image.Image | NDArray[Any] | Mapping[str, Any]"
)

DEFAULT_MAX_PIXELS = 2**27  # 134 million: a 108-megapixel phone fits; half a gigabyte once decoded


def load_image(source: ImageSource, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> Image.Image:
    """Read one image as upright 8-bit RGB, or raise `ImageError` saying what is wrong with it.

    `source` is a path, the bytes of a file, an open binary file (read from its start), a PIL image,
    an array ([height, width], [.., 1], [.., 3] or [.., 4] of uint8, or uint16 greyscale), or a
    Hugging Face dataset row or image value. An animation gives its first frame; transparency is
    laid on white; 16-bit and float greyscale is scaled. The result shares no memory with `source`.

    >>> load_image(np.full((2, 3), 7, dtype=np.uint8)).getpixel((0, 0))
    (7, 7, 7)
    >>> load_image(b"not an image")
    Traceback (most recent call last):
    anytimecl.errors.ImageError: cannot read image (bytes of length 12): it is not JPEG, PNG, WebP,
    GIF, BMP, TIFF, binary PPM, AVIF or JPEG 2000; convert it to one of these
    """
    path = None
    if isinstance(source, Mapping):
        with errors_named(f"in {type(source).__name__}"):  # a lazy row decodes when it is asked
            source, path = _unwrap(source)
    with errors_named(repr(path) if path else describe(source)):
        return to_rgb(_open(source, max_pixels))


def _unwrap(row: Mapping[str, Any]) -> tuple[Any, str | None]:
    """The image inside a dataset row or value, and its path where that is given beside it."""
    value: Any = row
    path = None
    for _ in range(2):  # a row, then its value; no further, in case a mapping holds itself
        if isinstance(value, Mapping):
            path = value.get("path")
            keys = (key for key in ("image", "img", "bytes", "path") if value.get(key) is not None)
            value = value.get(next(keys, ""), value)
    return value, path if isinstance(path, str) else None


def _open(source: Any, max_pixels: int) -> Image.Image:
    if isinstance(source, str | os.PathLike):
        return decode(read_path(os.fspath(source)), max_pixels)
    if isinstance(source, bytes | bytearray | memoryview):
        check_bytes(memoryview(source).nbytes)
        return decode(bytes(source), max_pixels)
    if isinstance(source, Image.Image):
        check_size(source.size, max_pixels)
        source.load()
        return source
    if isinstance(source, np.ndarray):
        return from_array(source, max_pixels)
    if callable(getattr(source, "read", None)):
        with suppress(AttributeError, OSError, ValueError):  # a pipe: read from where it is
            source.seek(0)
        return decode(read_stream(source), max_pixels)
    raise Refusal(
        "it is no image; give a path, bytes, an open file, a PIL image, a NumPy array or a dataset"
        " row with 'image', 'img', 'bytes' or 'path'"
    )
