"""Anything a person has (path, bytes, file, array, folder, zip, row) to a checked RGB image.

`load_image` reads one, `iter_images` goes through a folder or zip. Whatever is wrong with an image
becomes one `ImageError` that names it.
"""

from anytimecl.images._bytes import MAX_BYTES
from anytimecl.images._decode import Cost
from anytimecl.images._given import images_given, load_given
from anytimecl.images._load import DEFAULT_MAX_PIXELS, ImageSource, image_cost, load_image
from anytimecl.images._walk import ImageRef, is_image_name, iter_images, load_many

__all__ = [
    "DEFAULT_MAX_PIXELS",
    "MAX_BYTES",
    "Cost",
    "ImageRef",
    "ImageSource",
    "image_cost",
    "images_given",
    "is_image_name",
    "iter_images",
    "load_given",
    "load_image",
    "load_many",
]
