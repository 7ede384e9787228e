"""Thumbnails of learned images, for review."""

from __future__ import annotations

import io

from PIL import Image

SIDE = 160  # pixels of the longer side
QUALITY = 60


def thumbnail_of(image: Image.Image) -> bytes:
    """An RGB image as a WebP file of about 4 KB, without metadata of the original.

    >>> small = Image.open(io.BytesIO(thumbnail_of(Image.new("RGB", (640, 480), "red"))))
    >>> small.size, small.format
    ((160, 120), 'WEBP')
    """
    small = Image.frombytes("RGB", image.size, image.tobytes())  # drops EXIF and the like
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    small.save(file, "WEBP", quality=QUALITY, method=4)
    return file.getvalue()
