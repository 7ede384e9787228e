"""Reading of images: from a path, bytes, file, array, dataset row, folder or zip to checked RGB.

`load_image` reads one, `iter_images` lists a folder or zip. Every failure is an `ImageError` that
names the image.
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
