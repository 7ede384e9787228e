"""Decoding of image files by an allow-list of in-process readers.

Files are untrusted: the format is chosen by signature, and the size is checked before any pixel is
decoded.
"""

from __future__ import annotations

import io
import re
import struct
from typing import NamedTuple

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

from anytimecl.images._blocks import check_gif, check_jpeg, check_png
from anytimecl.images._errors import Refusal
from anytimecl.images._pixels import check_size

try:
    from pi_heif import HeifImageFile
except ModuleNotFoundError:  # a machine that only runs the lab does without

    class HeifImageFile(ImageFile):  # type: ignore[no-redef]
        def _open(self) -> None:
            raise Refusal(
                "it is HEIC, which needs the package pi-heif:"
                " pip install -c constraints.txt pi-heif; or convert it to JPEG"
            )


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
    # The brand of "mif1" is one of those that follow it.
    (rb"(?s).{4}ftyp(hei[cxms]|hev[cxms]|m[is]f1.{4}(.{4}){0,8}?he[iv][cxms])", HeifImageFile),
    (rb"(?s).{4}ftyp(avif|avis|mif1|msf1)", AvifImageFile),
    (rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n", Jpeg2KImageFile),
)


# What a reader holds at its peak for a pixel of the file, in pixels of four bytes: WebP keeps
# several canvases, AVIF and HEIC their own planes besides.
_HELD = {WebPImageFile: 5, AvifImageFile: 3, HeifImageFile: 3}
_GREY = {"F": 5, "I": 4}  # what is made of deep greyscale on its way to eight bits
_COEFFICIENTS = 2  # of a JPEG in several scans: two bytes a component, at any size of the result
_DEEPEST = 2  # a pixel of a TIFF's strip, which is unpacked as a whole: eight bytes at most


class Cost(NamedTuple):
    """Cost of decoding an image, from its header."""

    width: int
    height: int
    held: int  # pixels of four bytes in RAM while it is decoded


def decode(data: bytes, max_pixels: int, at_least: int | None = None) -> Image.Image:
    """Decode an image; with `at_least`, possibly reduced, with that many pixels on each side."""
    image = _open(data, max_pixels)
    _draft(image, at_least)
    image.load()
    return image


def cost(data: bytes, max_pixels: int, at_least: int | None = None) -> Cost:
    """Cost of `decode`; raises the same refusal, as far as it follows from the header."""
    reader = _reader(data)
    if reader is WebPImageFile:  # it sets the canvas aside as soon as it is opened
        width, height = webp_canvas(data)
        check_size((width, height), max_pixels)
        return Cost(width, height, _HELD[reader] * width * height)
    image = _open(data, max_pixels)
    width, height = image.size
    held = _held(image) * width * height
    if isinstance(image, JpegImageFile):
        _draft(image, at_least)
        held = image.width * image.height
        if "progressive" in image.info or check_jpeg(data) < image.layers:
            held += _COEFFICIENTS * width * height
    if isinstance(image, TiffImageFile):
        across, down = tiff_tile(data, (width, height))
        held = max(held, width * height + _DEEPEST * across * down)
    return Cost(width, height, held)


def _held(image: ImageFile) -> int:
    """Peak memory per pixel of the file, in pixels of four bytes."""
    if isinstance(image, Jpeg2KImageFile):  # four bytes for each component
        return 2 + len(image.getbands())
    deep = 2 if image.mode.startswith("I;16") else _GREY.get(image.mode, 1)
    return max(deep, _HELD.get(type(image), 1))


def _reader(data: bytes) -> type[ImageFile]:
    if not data:
        raise Refusal("it is empty (0 bytes); export or download it again")
    reader = next((reader for signature, reader in _READERS if re.match(signature, data)), None)
    if reader is None:
        raise Refusal(
            "it is not JPEG, PNG, WebP, GIF, BMP, TIFF, binary PPM, AVIF, HEIC or JPEG 2000;"
            " convert it to one of these"
        )
    return reader


def _open(data: bytes, max_pixels: int) -> ImageFile:
    """Open an image and check its header, without decoding."""
    reader = _reader(data)
    if reader is WebPImageFile:
        check_size(webp_canvas(data), max_pixels)
    if (check_parts := _PARTS.get(reader)) is not None:
        check_parts(data)
    if reader is JpegImageFile and jpeg_scans(data) > MAX_SCANS:
        raise Refusal(f"it is a JPEG of more than {MAX_SCANS} scans; export it again")
    image = reader(io.BytesIO(data))
    check_size(image.size, max_pixels)
    _check_tiles(image, data, max_pixels)
    return image


_PARTS = {PngImageFile: check_png, JpegImageFile: check_jpeg, GifImageFile: check_gif}


def _draft(image: ImageFile, at_least: int | None) -> None:
    """Let a JPEG be decoded at a half, a quarter or an eighth, saving time and RAM."""
    if at_least is not None and isinstance(image, JpegImageFile):
        image.draft(image.mode, (at_least, at_least))


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
    """Refuse a small picture cut from a giant one (TIFF, HEIC) or of many tiles (JPEG 2000)."""
    if isinstance(image, TiffImageFile):
        width, height = tiff_tile(data, image.size)
        if width * height > max_pixels:
            raise Refusal(f"its tiles are {width}x{height}; save it again with smaller ones")
    if isinstance(image, HeifImageFile):
        for found in re.finditer(rb"(?s)ispe\0{4}(.{8})", data):  # what is decoded, then cropped
            check_size(struct.unpack(">2I", found[1]), max_pixels)
    if isinstance(image, Jpeg2KImageFile):
        for found in re.finditer(rb"(?s)\xff\x4f\xff\x51.{4}(.{32})", data):
            right, bottom, _, _, width, height, left, top = struct.unpack(">8I", found[1])
            if -((left - right) // width) * -((top - bottom) // height) > MAX_TILES:
                raise Refusal(f"it has more than {MAX_TILES} tiles; save it again with fewer")


def tiff_tile(data: bytes, whole: tuple[int, int]) -> tuple[int, int]:
    """Width and height of a tile or strip in the first directory; the whole if it does not say.

    Pillow stops reading tags at the first that is broken; the library that decodes does not.
    """

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], "little" if data[:1] == b"I" else "big")

    big = number(2, 2) == 43
    start, head, step = (number(8, 8), 8, 20) if big else (number(4, 4), 2, 12)
    sides = {278: 0, 322: 0, 323: 0}
    end = start + head + step * min(number(start, head), 2**16)
    for at in range(start + head, min(end, len(data)), step):
        if (tag := number(at, 2)) in sides:
            size = {3: 2, 16: 8}.get(number(at + 2, 2), 4)  # short, long long; else long
            sides[tag] = max(sides[tag], number(at + step - (8 if big else 4), size))
    rows = min(sides[278] or whole[1], whole[1])
    return sides[322] or whole[0], sides[323] or rows
