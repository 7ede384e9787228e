"""Anything a person has (path, bytes, file, array, folder, zip, row) to a checked RGB image.

`load_image` reads one, `iter_images` goes through a folder or zip. Whatever is wrong with an image
becomes one `ImageError` that names it.
"""

from anytimecl.images._bytes import MAX_BYTES
from anytimecl.images._load import DEFAULT_MAX_PIXELS, ImageSource, load_image
from anytimecl.images._walk import ImageRef, iter_images, load_many

__all__ = [
    "DEFAULT_MAX_PIXELS",
    "MAX_BYTES",
    "ImageRef",
    "ImageSource",
    "iter_images",
    "load_image",
    "load_many",
]
