"""Small pictures of what was taught, so that a person can see it again."""

from __future__ import annotations

import io

from PIL import Image

SIDE = 160  # pixels of the longer side
QUALITY = 60


def thumbnail_of(image: Image.Image) -> bytes:
    """An RGB image as a small WebP file, of about 4 KB; nothing of the file it came from is in it.

    >>> small = Image.open(io.BytesIO(thumbnail_of(Image.new("RGB", (640, 480), "red"))))
    >>> small.size, small.format
    ((160, 120), 'WEBP')
    """
    small = Image.frombytes("RGB", image.size, image.tobytes())  # without what a camera wrote
    small.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    small.save(file, "WEBP", quality=QUALITY, method=4)
    return file.getvalue()
