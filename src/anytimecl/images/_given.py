"""Arguments with one image or many."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import PIL.Image

from anytimecl.errors import ImageError
from anytimecl.images._load import ImageSource, load_image


def images_given(images: Any) -> tuple[list[ImageSource], bool]:
    """The given images as a list, and whether many were given.

    Many are a list, tuple, generator or other iterable of images, an array of paths, or an array or
    tensor [image, height, width, channel].

    >>> images_given("a.jpg")
    (['a.jpg'], False)
    >>> images_given(np.array(["a.jpg", "b.jpg"]))[1]
    True
    >>> len(images_given(np.zeros((2, 4, 4, 3), np.uint8))[0])
    2
    """
    if hasattr(images, "detach") and hasattr(images, "cpu"):  # a tensor
        images = images.detach().cpu().numpy()
    if isinstance(images, np.ndarray):
        if images.dtype.kind in "UO":  # of paths, or of images of several sizes
            return list(images.ravel()), True
        return (list(images), True) if images.ndim == 4 else ([images], False)
    one = (str, bytes, bytearray, memoryview, os.PathLike, Mapping)
    if isinstance(images, one) or callable(getattr(images, "read", None)):
        return [images], False
    return (list(images), True) if isinstance(images, Iterable) else ([images], False)


def load_given(
    images: Any, *, keep_errors: bool = False
) -> tuple[list[PIL.Image.Image | ImageError], bool]:
    """`images_given`, loaded; with `keep_errors`, errors of many take the places of images."""
    given, many = images_given(images)
    loaded: list[PIL.Image.Image | ImageError] = []
    for image in given:
        try:
            loaded.append(load_image(image))
        except ImageError as error:
            if not (keep_errors and many):
                raise
            loaded.append(error)
    return loaded, many
