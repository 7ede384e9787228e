"""Loading of one image from any supported source."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anytimecl.errors import ImageError
from anytimecl.images._bytes import check_bytes, read_path, read_stream
from anytimecl.images._decode import Cost, cost, decode
from anytimecl.images._errors import Refusal, reason
from anytimecl.images._pixels import check_size, from_array, to_rgb

ImageSource: TypeAlias = (
    "str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes]"
    " | Image.Image | NDArray[Any] | Mapping[str, Any]"
)

DEFAULT_MAX_PIXELS = 2**27  # 134 million: a 108-megapixel phone fits; half a gigabyte once decoded
_PILLOW_NOISE = ("ignore", None, Warning, re.compile(r"PIL\."), 0)  # as `warnings.filters` has it


def load_image(
    source: ImageSource, *, max_pixels: int = DEFAULT_MAX_PIXELS, at_least: int | None = None
) -> Image.Image:
    """Read one image as upright 8-bit RGB, or raise `ImageError` saying what is wrong with it.

    `source` is a path, the bytes of a file, an open binary file (read from its start), a PIL image,
    an array or tensor ([height, width], [.., 1], [.., 3] or [.., 4] of uint8, or uint16 greyscale),
    or a Hugging Face dataset row or image value. An animation gives its first frame; what is
    transparent is laid on white; 16-bit and float greyscale is scaled. The result
    shares no memory with `source`.

    With `at_least`, the result may be reduced by an integer factor to no fewer than that many
    pixels on each side, which saves time and RAM if it is scaled down anyway.

    >>> load_image(np.full((2, 3), 7, dtype=np.uint8)).getpixel((0, 0))
    (7, 7, 7)
    >>> load_image(b"not an image")
    Traceback (most recent call last):
    anytimecl.errors.ImageError: cannot read image (bytes of length 12): it is not JPEG, PNG, WebP,
    GIF, BMP, TIFF, binary PPM, AVIF, HEIC or JPEG 2000; convert it to one of these
    """
    path = None
    if isinstance(source, Mapping):
        with errors_named(f"in {type(source).__name__}"):  # a lazy row decodes when it is asked
            source, path = _unwrap(source)
    with errors_named(repr(path) if path else describe(source)):
        return to_rgb(_open(source, max_pixels, at_least), at_least)


def image_cost(
    data: bytes, *, max_pixels: int = DEFAULT_MAX_PIXELS, at_least: int | None = None
) -> Cost:
    """RAM that `load_image` needs for the bytes of a file, from the header.

    >>> import io
    >>> file = io.BytesIO()
    >>> Image.new("1", (300, 200)).save(file, "PNG")
    >>> image_cost(file.getvalue())
    Cost(width=300, height=200, held=60000)
    """
    with errors_named(describe(data)):
        check_bytes(len(data))
        return cost(data, max_pixels, at_least)


def _unwrap(row: Mapping[str, Any]) -> tuple[Any, str | None]:
    """The image in a dataset row or value, and its path, if given."""
    value: Any = row
    path = None
    for _ in range(2):  # a row, then its value; no further, in case a mapping holds itself
        if isinstance(value, Mapping):
            path = value.get("path")
            keys = (key for key in ("image", "img", "bytes", "path") if value.get(key) is not None)
            value = value.get(next(keys, ""), value)
    return value, path if isinstance(path, str) else None


def _open(source: Any, max_pixels: int, at_least: int | None) -> Image.Image:
    if isinstance(source, str | os.PathLike):
        return decode(read_path(os.fspath(source)), max_pixels, at_least)
    if isinstance(source, bytes | bytearray | memoryview):
        check_bytes(memoryview(source).nbytes)
        return decode(bytes(source), max_pixels, at_least)
    if isinstance(source, Image.Image):
        check_size(source.size, max_pixels)
        if getattr(source, "tile", None) and getattr(source, "fp", source) is None:
            raise ValueError("closed")  # by `with`: its pixels were not read yet
        source.load()
        return source
    if hasattr(source, "detach") and hasattr(source, "cpu"):  # a tensor, as an array
        source = source.detach().cpu().numpy()
    if isinstance(source, np.ndarray):
        return from_array(source, max_pixels)
    if callable(getattr(source, "read", None)):
        with suppress(AttributeError, OSError, ValueError):  # a pipe: read from where it is
            source.seek(0)
        return decode(read_stream(source), max_pixels, at_least)
    raise Refusal(
        "it is no image; give a path, bytes, an open file, a PIL image, a NumPy array or a dataset"
        " row with 'image', 'img', 'bytes' or 'path'"
    )


@contextmanager
def errors_named(name: str, what: str = "image") -> Iterator[None]:
    """Translate every exception to an `ImageError` that names the image."""
    try:
        with _pillow_quiet():
            yield
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # Pillow's readers raise nearly every type there is on broken files
        raise ImageError(f"cannot read {what} {name}: {reason(error)}") from error


@contextmanager
def _pillow_quiet() -> Iterator[None]:
    """Suppress Pillow's warnings about metadata, thread-safely.

    `catch_warnings` restores a snapshot, which would undo changes by other threads. Adding an entry
    to the list and removing it does not.
    """
    filters = cast("list[Any]", warnings.filters)
    filters.insert(0, _PILLOW_NOISE)
    try:
        yield
    finally:
        with suppress(ValueError):  # someone reset the filters meanwhile
            filters.remove(_PILLOW_NOISE)


def describe(source: Any) -> str:
    """Name of an image for errors."""
    if isinstance(source, str | os.PathLike):
        return repr(os.fspath(source))  # repr: a name may hold line breaks
    if isinstance(source, bytes | bytearray | memoryview):
        return f"(bytes of length {memoryview(source).nbytes})"
    if isinstance(source, Image.Image):
        return f"(PIL image of mode {source.mode}, size {source.width}x{source.height})"
    if isinstance(source, np.ndarray):
        return f"(array of shape {source.shape}, type {source.dtype})"
    name = getattr(source, "name", None)
    return repr(name) if isinstance(name, str) else f"({type(source).__name__})"
