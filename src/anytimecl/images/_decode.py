"""Bytes to pixels, by a short list of readers that run inside the process.

Files come from strangers: the format is chosen by signature, and the size is checked before a pixel
is decoded.
"""

from __future__ import annotations

import io
import re
import struct

from PIL import Image
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from anytimecl.images._errors import Refusal

MAX_ASPECT = 200  # longer side over shorter: a thinner strip has nothing left after a resize
MAX_TILES = 4096  # of one JPEG 2000; each costs some ten kilobytes, however small it is
MAX_SCANS = 100  # passes over one JPEG; ten are usual, and each costs time for some fifty bytes

# The readers are called directly: `Image.open` would consult a registry that any import can extend
# (EPS and others start programs) and a global pixel limit that is not ours to change. The text
# forms of PPM (P1 to P3) are left out, because skipping their comments takes quadratic time.
_READERS: tuple[tuple[bytes, type[ImageFile]], ...] = (
    (rb"\xff\xd8\xff", JpegImageFile),
    (rb"\x89PNG\r\n\x1a\n", PngImageFile),
    (rb"(?s)RIFF.{4}WEBP", WebPImageFile),
    (rb"GIF8[79]a", GifImageFile),
    (rb"BM", BmpImageFile),
    (rb"II[*+]\0|MM\0[*+]", TiffImageFile),
    (rb"P[456f]\s", PpmImageFile),
    (rb"(?s).{4}ftyp(avif|avis|mif1|msf1)", AvifImageFile),
    (rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n", Jpeg2KImageFile),
)


def decode(data: bytes, max_pixels: int) -> Image.Image:
    if not data:
        raise Refusal("it is empty (0 bytes); export or download it again")
    reader = next((reader for signature, reader in _READERS if re.match(signature, data)), None)
    if reader is None:
        raise Refusal(
            "it is not JPEG, PNG, WebP, GIF, BMP, TIFF, binary PPM, AVIF or JPEG 2000; convert it"
            " to one of these"
        )
    if reader is WebPImageFile:  # it sets the canvas aside as soon as it is opened
        check_size(webp_canvas(data), max_pixels)
    if reader is JpegImageFile and jpeg_scans(data) > MAX_SCANS:
        raise Refusal(f"it is a JPEG of more than {MAX_SCANS} scans; export it again")
    image = reader(io.BytesIO(data))
    check_size(image.size, max_pixels)
    _check_tiles(image, data, max_pixels)
    image.load()
    return image


def webp_canvas(data: bytes) -> tuple[int, int]:
    kind, head = data[12:16], int.from_bytes(data[20:30].ljust(10, b"\0"), "little")
    if kind == b"VP8X":
        return (head >> 32 & 0xFFFFFF) + 1, (head >> 56 & 0xFFFFFF) + 1
    if kind == b"VP8L":
        return (head >> 8 & 0x3FFF) + 1, (head >> 22 & 0x3FFF) + 1
    return head >> 48 & 0x3FFF, head >> 64 & 0x3FFF


def jpeg_scans(data: bytes) -> int:
    scans, position = data.count(b"\xff\xda"), 2
    if scans <= MAX_SCANS:  # an upper bound, and nearly always enough
        return scans
    scans = 0  # a thumbnail or a film behind the picture counts for nothing: go by the markers
    marker = re.compile(rb"\xff([^\0\1\xff\xd0-\xd7])")  # those that carry a length, and the end
    while (found := marker.search(data, position)) and found[1] != b"\xd9":
        scans += found[1] == b"\xda"
        position = found.end() + int.from_bytes(data[found.end() : found.end() + 2])
    return scans


def _check_tiles(image: ImageFile, data: bytes, max_pixels: int) -> None:
    """Refuse a small picture that asks for a giant tile (TIFF) or for a great many (JPEG 2000)."""
    if isinstance(image, TiffImageFile):
        width, height = tiff_tile(data, image.size)
        if width * height > max_pixels:
            raise Refusal(f"its tiles are {width}x{height}; save it again with smaller ones")
    if isinstance(image, Jpeg2KImageFile):
        for found in re.finditer(rb"(?s)\xff\x4f\xff\x51.{4}(.{32})", data):
            right, bottom, _, _, width, height, left, top = struct.unpack(">8I", found[1])
            if -((left - right) // width) * -((top - bottom) // height) > MAX_TILES:
                raise Refusal(f"it has more than {MAX_TILES} tiles; save it again with fewer")


def tiff_tile(data: bytes, whole: tuple[int, int]) -> tuple[int, int]:
    """Width and height of a tile in the first directory; the whole where it does not say.

    Pillow stops reading tags at the first that is broken; the library that decodes does not.
    """

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little" if data[:1] == b"I" else "big")

    big = number(2, 2) == 43
    start, head, step = (number(8, 8), 8, 20) if big else (number(4, 4), 2, 12)
    sides = {322: 0, 323: 0}
    end = start + head + step * min(number(start, head), 2**16)
    for at in range(start + head, min(end, len(data)), step):
        if (tag := number(at, 2)) in sides:
            size = {3: 2, 16: 8}.get(number(at + 2, 2), 4)  # short, long long; else long
            sides[tag] = max(sides[tag], number(at + step - (8 if big else 4), size))
    return sides[322] or whole[0], sides[323] or whole[1]


def check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    found = f"its size is {width}x{height}"
    if width <= 0 or height <= 0:
        raise Refusal(f"{found}; give an image that has pixels")
    if width * height > max_pixels:
        advice = "make it smaller, or raise max_pixels if you trust it"
        raise Refusal(f"{found}, more than {max_pixels} pixels; {advice}")
    if max(size) > MAX_ASPECT * min(size):
        raise Refusal(f"{found}, one side over {MAX_ASPECT} times the other; crop it")
