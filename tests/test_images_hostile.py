"""Whatever the bytes: an `ImageError` or a good image, quickly, silently and in little memory."""

from __future__ import annotations

import io
import random
import struct
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from anytimecl.errors import ImageError
from anytimecl.images import image_cost, iter_images, load_image, load_many

CAP = 1_000_000
SECONDS = 10  # far above what any input takes, far below for ever


def hostile(examples: int) -> settings:
    """The same examples in every run, each as slow as it likes: the checks keep the time."""
    return settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def check(source: Any) -> Image.Image | None:
    """Load `source`; the image, or None when it was refused as it should be."""
    start = time.monotonic()
    image: Image.Image | ImageError
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # as errors they would be caught with the rest, and hide
        try:
            image = load_image(source, max_pixels=CAP)
        except ImageError as error:
            image = error
    assert caught == []
    assert time.monotonic() - start < SECONDS
    if isinstance(image, ImageError):
        assert str(image).startswith("cannot read image")
        assert "\n" not in str(image)
        return None
    assert type(image) is Image.Image
    assert image.mode == "RGB"
    assert 0 < image.width * image.height <= CAP
    assert len(image.tobytes()) == 3 * image.width * image.height
    return image


def refused(source: Any) -> bool:
    return check(source) is None


def encode(image: Image.Image, kind: str, frames: int = 1, **options: Any) -> bytes:
    stream = io.BytesIO()
    more = [image.rotate(180) for _ in range(frames - 1)]
    if more:
        options |= {"save_all": True, "append_images": more}
    image.copy().save(stream, kind, **options)  # a copy: to save leaves settings behind
    return stream.getvalue()


@cache
def samples() -> dict[str, bytes]:
    """Small good files of every format and most of their inner forms."""
    noise = np.random.default_rng(0).integers(0, 256, (16, 20, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E], exif[0x011A] = 6, "a picture", 72.5
    files = {
        "png": encode(image, "PNG", exif=exif),
        "png grey": encode(image.convert("L"), "PNG", transparency=3),
        "png palette": encode(image.quantize(16), "PNG", transparency=b"\0\x80"),
        "png alpha": encode(image.convert("RGBA"), "PNG"),
        "png 16": encode(Image.fromarray(noise[:, :, 0].astype(np.uint16) * 257), "PNG"),
        "png 1": encode(image.convert("1"), "PNG"),
        "apng": encode(image, "PNG", frames=2),
        "jpeg": encode(image, "JPEG", exif=exif),
        "jpeg progressive": encode(image, "JPEG", progressive=True),
        "jpeg grey": encode(image.convert("L"), "JPEG"),
        "jpeg cmyk": encode(image.convert("CMYK"), "JPEG"),
        "mpo": encode(image, "MPO", frames=2),
        "webp": encode(image, "WEBP", exif=exif),
        "webp lossless": encode(image.convert("RGBA"), "WEBP", lossless=True),
        "webp animated": encode(image, "WEBP", frames=2),
        "gif": encode(image.quantize(16), "GIF", interlace=1),
        "gif animated": encode(image, "GIF", transparency=0, frames=2),
        "bmp": encode(image, "BMP"),
        "bmp palette": encode(image.quantize(16), "BMP"),
        "bmp rle": rle_bmp(),
        "tiff": encode(image, "TIFF", exif=exif),
        "tiff palette": encode(image.quantize(16), "TIFF"),
        "tiff float": encode(image.convert("F"), "TIFF"),
        "tiff int": encode(image.convert("I"), "TIFF"),
        "tiff big": encode(image, "TIFF", big_tiff=True),
        "pbm": encode(image.convert("1"), "PPM"),
        "pgm": encode(image.convert("L"), "PPM"),
        "pgm 16": encode(image.convert("I"), "PPM"),
        "ppm": encode(image, "PPM"),
        "ppm scaled": b"P6 2 2 99 " + bytes(range(12)),
        "pfm": encode(image.convert("F"), "PPM"),
        "avif": encode(image, "AVIF", exif=exif),
        "avif alpha": encode(image.convert("RGBA"), "AVIF"),
        "jp2": encode(image, "JPEG2000"),
        "j2k": encode(image, "JPEG2000", no_jp2=True),
    }
    for method in ("raw", "tiff_lzw", "tiff_deflate", "tiff_adobe_deflate", "packbits", "jpeg"):
        files[f"tiff {method}"] = encode(image, "TIFF", compression=method)
    for method in ("group3", "group4", "tiff_ccitt"):
        files[f"tiff {method}"] = encode(image.convert("1"), "TIFF", compression=method)
    return files


def rle_bmp() -> bytes:
    body = b"\x08\1\0\0\0\x08ABCDEFGH\0\0\0\2\3\0\5\4\0\0\x08\2\0\1"  # runs, plain bytes, a jump
    info = struct.pack("<IiiHHIIiiII", 40, 8, 4, 1, 8, 1, len(body), 1, 1, 256, 0)
    palette = bytes(range(256)) * 4
    offset = 14 + len(info) + len(palette)
    return struct.pack("<2sIII", b"BM", offset + len(body), 0, offset) + info + palette + body


NAMES = sorted(samples())
SIGNATURES = [data[:n] for data in samples().values() for n in (4, 12, 30)]


@pytest.mark.parametrize("name", NAMES)
def test_the_samples_are_good(name: str) -> None:
    assert not refused(samples()[name])


# --- bytes --------------------------------------------------------------------------------------


@hostile(300)
@given(st.sampled_from([b"", *SIGNATURES]), st.binary(max_size=400))
def test_random_bytes(signature: bytes, rest: bytes) -> None:
    check(signature + rest)


@pytest.mark.parametrize("name", NAMES)
def test_truncations(name: str) -> None:
    data = samples()[name]
    cuts = random.Random(name).sample(range(len(data)), min(len(data), 40))
    for cut in cuts:
        check(data[:cut])
    # Some tail may be spare; the first half of a file is never a picture.
    assert refused(data[: len(data) // 2]), "half a file was taken for a whole one"


@hostile(1500)
@given(
    st.sampled_from(NAMES),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=6),
)
def test_flipped_bits(name: str, flips: list[tuple[float, int]]) -> None:
    data = bytearray(samples()[name])
    for where, mask in flips:
        data[int(where**2 * len(data))] ^= mask  # squared: headers are where the harm is
    check(bytes(data))


@hostile(300)
@given(
    st.sampled_from(NAMES),
    st.integers(0, 300),
    st.sampled_from([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x80\0"]),
)
def test_extreme_numbers(name: str, where: int, value: bytes) -> None:
    data = samples()[name]
    where %= len(data)
    check(data[:where] + value + data[where + len(value) :])


@hostile(200)
@given(st.sampled_from(NAMES), st.sampled_from(NAMES), st.floats(0, 1), st.floats(0, 1))
def test_spliced_files(first: str, second: str, end: float, start: float) -> None:
    one, two = samples()[first], samples()[second]
    check(one[: int(end * len(one))] + two[int(start * len(two)) :])


@hostile(100)
@given(st.binary(max_size=200), st.sampled_from(["PNG", "JPEG", "WEBP", "TIFF"]))
def test_random_metadata_does_not_cost_the_picture(exif: bytes, kind: str) -> None:
    image = Image.new("RGB", (8, 8), "red")
    if kind == "TIFF":
        assert not refused(encode(image, kind, description=exif, tiffinfo={40000: exif}))
    else:
        data = encode(image, kind, exif=b"Exif\0\0II*\0\x08\0\0\0" + exif, xmp=exif)
        assert not refused(data)


# --- bombs --------------------------------------------------------------------------------------


def png(width: int, height: int, body: bytes = b"", depth: int = 8, colour: int = 2) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + body + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def zipped_text(size: int) -> bytes:
    data = b"zTXt" + b"note\0\0" + zlib.compress(bytes(size))
    return struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))


def directory(entries: Mapping[int, int | tuple[int, int]], after: int = 0) -> bytes:
    """A little-endian TIFF of one directory; a value is a number, or a count and an offset."""
    body = b""
    for tag, value in sorted(entries.items()):
        count, number = value if isinstance(value, tuple) else (1, value)
        body += struct.pack("<HHII", tag, 4, count, number)
    return struct.pack("<2sHIH", b"II", 42, 8, len(entries)) + body + struct.pack("<I", after)


def webp(kind: bytes, body: bytes) -> bytes:
    chunk = kind + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def patched(name: str, mark: bytes, skip: int, value: bytes) -> bytes:
    data = samples()[name]
    at = data.index(mark) + len(mark) + skip
    return data[:at] + value + data[at + len(value) :]


GREY = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 8, 277: 1, 278: 8, 279: 64}


@cache
def bombs() -> dict[str, bytes]:
    wide = struct.pack("<I", 60000 - 1)[:3]
    return {
        "png 60000": png(60000, 60000),
        "png one bit": png(60000, 60000, depth=1, colour=0),
        "png largest": png(2**31 - 1, 2**31 - 1),
        "png negative": png(2**32 - 1, 2**32 - 1),
        "png nothing": png(0, 0),
        "png strip": png(1_000_000, 1),
        "png text": png(8, 8, zipped_text(2**26)),
        "png texts": png(8, 8, zipped_text(2**20) * 200),
        "gif canvas": b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b",",
        "gif frame": b"GIF89a"
        + struct.pack("<HHBBB", 1, 1, 0, 0, 0)
        + b","
        + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0)
        + b"\x02\x02\x44\x01\0;",
        "gif frame far off": b"GIF89a"
        + struct.pack("<HHBBB", 1, 1, 0, 0, 0)
        + b","
        + struct.pack("<HHHHB", 65000, 65000, 1, 1, 0)
        + b"\x02\x02\x44\x01\0;",
        "gif of extensions": b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + b"!\xfe\0" * 10**5,
        "bmp": b"BM"
        + bytes(12)
        + struct.pack("<IiiHHIIiiII", 40, 2**31 - 1, 2**31 - 1, 1, 24, 0, 0, 0, 0, 0, 0),
        "bmp rle": rle_bmp()[:18] + struct.pack("<ii", 60000, 60000) + rle_bmp()[26:],
        "tiff": directory({**GREY, 256: 60000, 257: 60000}),
        "tiff largest": directory({**GREY, 256: 2**32 - 1, 257: 2**32 - 1}),
        "tiff tile": directory({**GREY, 259: 5, 322: 2**31, 323: 2**31, 324: 8, 325: 64}),
        "tiff long tile": directory({**GREY, 259: 5, 322: 2**26}),
        "tiff hidden tile": directory({**GREY, 259: 5, 273: (33, 8), 322: 2**26}),
        "tiff rows": directory({**GREY, 278: 2**32 - 1, 279: 2**32 - 1}),
        "tiff samples": directory({**GREY, 277: 65535}),
        "tiff tags": directory({**GREY, 305: (2**32 - 1, 0)}),
        "tiff loop": directory(GREY, after=8),
        "tiff in itself": directory({**GREY, 330: 8, 34665: 8}, after=8),
        "tiff strips": directory({**GREY, 273: (2**28, 8), 279: (2**28, 8)}),
        "ppm": b"P6 60000 60000 255\n",
        "ppm digits": b"P6 " + b"9" * 10**6,
        "ppm comments": b"P6 " + b"#\n" * 10**5,
        "ppm text": b"P3 2 2 255 " + b"#\n" * 10**6,
        "pfm": b"Pf 60000 60000 -1.0\n",
        "webp canvas": webp(b"VP8X", bytes(4) + wide + wide),
        "webp lossless": webp(b"VP8L", b"\x2f\xff\xff\xff\x0f" + bytes(30)),
        "webp lossy": webp(b"VP8 ", b"\x10\0\0\x9d\x01\x2a\xff\x3f\xff\x3f" + bytes(30)),
        "jpeg": patched("jpeg", b"\xff\xc0", 3, struct.pack(">HH", 65500, 65500)),
        "jp2 header": patched("jp2", b"ihdr", 0, struct.pack(">II", 60000, 60000)),
        "jp2 stream": patched("jp2", b"\xff\x51", 4, struct.pack(">II", 60000, 60000)),
        "j2k": patched("j2k", b"\xff\x51", 4, struct.pack(">II", 60000, 60000)),
        "j2k tiles": patched("j2k", b"\xff\x51", 4, struct.pack(">6I", 256, 255, 0, 0, 1, 1)),
        "j2k no tiles": patched("j2k", b"\xff\x51", 20, bytes(8)),
        "avif": patched("avif", b"ispe", 4, struct.pack(">II", 60000, 60000)),
    }


STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes() -> int:
    return 1024 * int(STATUS.read_text().partition("VmHWM:")[2].split()[0])


# These end in a small picture: Pillow passes over what is wrong with them.
FINE = {"tiff rows", "tiff tags", "tiff loop", "tiff in itself"}


@pytest.mark.parametrize("name", sorted(bombs()))
def test_bombs(name: str) -> None:
    assert refused(bombs()[name]) is (name not in FINE)


@pytest.mark.skipif(not CLEAR.exists(), reason="only Linux can reset the peak of memory")
@pytest.mark.parametrize("name", sorted(bombs()))
def test_bombs_take_little_memory(name: str) -> None:
    data = bombs()[name]
    CLEAR.write_text("5")
    before = peak_bytes()
    check(data)
    assert peak_bytes() - before < 50 * 2**20


def test_a_bomb_is_refused_at_the_cap_that_comes_by_default() -> None:
    with pytest.raises(ImageError, match="60000x60000, more than 134217728 pixels"):
        load_image(png(60000, 60000))


# --- pictures in memory -------------------------------------------------------------------------

MODES = ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"]
MODES += ["LAB", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"]
NOTES = st.dictionaries(
    st.sampled_from(["exif", "transparency", "xmp", "XML:com.adobe.xmp", "icc_profile"]),
    st.one_of(st.none(), st.integers(), st.binary(max_size=40), st.text(max_size=9), st.tuples()),
)


@hostile(300)
@given(
    st.sampled_from(MODES), st.integers(0, 300), st.integers(0, 300), st.binary(max_size=64), NOTES
)
def test_pil_images(
    mode: str, width: int, height: int, content: bytes, notes: dict[str, Any]
) -> None:
    image = Image.new(mode, (width, height))
    size = len(image.tobytes())
    image.frombytes((content * size)[:size].ljust(size, b"\7"))
    fair = width > 0 and height > 0 and max(width, height) <= 200 * min(width, height)
    assert refused(image) is not fair
    image.info.update(**notes)
    check(image)


@hostile(300)
@given(
    hnp.arrays(
        dtype=st.one_of(hnp.unsigned_integer_dtypes(), hnp.scalar_dtypes(), st.just(np.uint8)),
        shape=st.one_of(
            hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=8),
            st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from([1, 3, 4])),
        ),
    )
)
def test_arrays(array: np.ndarray[Any, Any]) -> None:
    image = check(array)
    if image is None:
        return
    assert image.size == (array.shape[1], array.shape[0])
    assert array.dtype in (np.dtype(np.uint8), np.dtype("<u2"), np.dtype(">u2"))


LEAVES = st.one_of(
    st.none(), st.integers(), st.floats(), st.binary(max_size=9), st.text(max_size=9), st.booleans()
)
ROWS = st.recursive(
    LEAVES,
    lambda inner: (
        st.dictionaries(
            st.sampled_from(["image", "img", "bytes", "path", "label"]), inner, max_size=3
        )
        | st.lists(inner, max_size=2)
    ),
)


@hostile(200)
@given(ROWS)
def test_rows_of_anything(row: Any) -> None:
    assert refused(row)


@hostile(100)
@given(st.lists(LEAVES | st.just(samples()["png"]), max_size=4), st.booleans())
def test_files_that_read_anything(chunks: list[Any], good: bool) -> None:
    class File:
        def __init__(self) -> None:
            self.chunks = [samples()["png"], b"", *chunks] if good else [*chunks]

        def read(self, size: int) -> Any:
            return self.chunks.pop(0) if self.chunks else b""

    image = check(File())
    assert image is not None or not good


# --- zips ---------------------------------------------------------------------------------------


@cache
def sample_zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/1.png", samples()["png"], zipfile.ZIP_DEFLATED)
        archive.writestr("a/2.gif", samples()["gif"], zipfile.ZIP_STORED)
        archive.writestr("b/c/3.bmp", samples()["bmp"], zipfile.ZIP_BZIP2)
    return stream.getvalue()


def check_zip(data: bytes) -> int:
    """Go through a zip as a caller would; how many images it gave."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = Path(folder, "photos.zip")
        path.write_bytes(data)
        try:
            results = list(load_many(iter_images(path)))
        except ImageError:
            return 0
    assert caught == []
    for ref, image in results:
        assert ".." not in ref.name.split("/")
        assert isinstance(image, Image.Image | ImageError)
    return sum(isinstance(image, Image.Image) for _, image in results)


def test_the_sample_zip_is_good() -> None:
    assert check_zip(sample_zip()) == 2  # and one of a method that is refused


@hostile(300)
@given(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=6),
    st.floats(0, 1),
)
def test_broken_zips(flips: list[tuple[float, int]], cut: float) -> None:
    data = bytearray(sample_zip())
    for where, mask in flips:
        data[-1 - int(where**2 * len(data))] ^= mask  # squared: the directory is at the end
    check_zip(bytes(data))
    check_zip(bytes(data[int(cut * len(data)) :]))


@hostile(100)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=6, unique=True))
def test_zip_names_of_any_kind(names: list[str]) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(f"{name}.png"), samples()["png"])
    check_zip(stream.getvalue())


def many_parts(kind: str, count: int) -> bytes:
    """A good picture with a great many empty parts before its pixels."""
    data = encode(Image.new("RGB", (8, 8)), kind.partition(" ")[0])
    empty = struct.pack(">I", 0) + b"abCd" + struct.pack(">I", zlib.crc32(b"abCd"))
    first = data.find(b",", 13)  # picture of a GIF
    parts = {
        "PNG": (33, empty),
        "PNG after": (len(data) - 12, empty),
        "JPEG": (2, b"\xff\xfe\0\2"),
        "JPEG filling": (2, b"\xff"),
        "GIF": (first, b"!\xfe\0"),
        "GIF strays": (first, b"x"),
    }
    at, part = parts[kind]
    return data[:at] + part * count + data[at:]


@pytest.mark.parametrize("kind", ["PNG", "PNG after", "JPEG", "JPEG filling", "GIF", "GIF strays"])
def test_a_file_that_is_nothing_but_parts(kind: str) -> None:
    """Each costs Pillow microseconds; a million comments of a GIF, half a minute."""
    assert check(many_parts(kind, 1000)) is not None
    began = time.process_time()
    assert refused(many_parts(kind, 1_000_000))
    assert time.process_time() - began < 1


def test_one_comment_of_a_great_many_blocks() -> None:
    data = encode(Image.new("RGB", (8, 8)), "GIF")
    at = data.index(b",", 13)
    assert refused(data[:at] + b"!\xfe" + b"\1x" * 100_000 + b"\0" + data[at:])


KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bits": ("PNG", "1", {}),
    "grey": ("PNG", "L", {}),
    "palette": ("PNG", "P", {}),
    "colour": ("PNG", "RGB", {}),
    "alpha": ("PNG", "RGBA", {}),
    "webp": ("WEBP", "RGB", {"method": 0}),
    "lossless": ("WEBP", "RGB", {"method": 0, "lossless": True}),
    "avif": ("AVIF", "RGB", {"speed": 10}),
    "jpeg 2000": ("JPEG2000", "RGB", {}),
    "jpeg": ("JPEG", "RGB", {}),
    "progressive": ("JPEG", "RGB", {"progressive": True, "subsampling": 0}),
    "cmyk": ("JPEG", "CMYK", {}),
    "jpeg 2000 with alpha": ("JPEG2000", "RGBA", {}),
    "tiff": ("TIFF", "RGB", {"compression": "tiff_deflate"}),
    "tiff of one strip": ("TIFF", "RGBA", {"compression": "tiff_deflate", "tiffinfo": {278: 9999}}),
    "tiff of floats": ("TIFF", "F", {"compression": "tiff_deflate"}),
    "tiff of integers": ("TIFF", "I", {"compression": "tiff_deflate"}),
    "deep grey": ("PNG", "I;16", {}),
    "gif": ("GIF", "P", {}),
    "bmp": ("BMP", "RGB", {}),
}
MEASURE = """
import sys
from pathlib import Path
from anytimecl.images import image_cost, load_image

def kib(name):
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith(name)).split()[1])

for name in sys.argv[1:]:
    data = Path(name).read_bytes()
    load_image(data, at_least=3000)  # code and tables are there now
    Path("/proc/self/clear_refs").write_text("5")
    before = kib("VmRSS")
    load_image(data, at_least=300)
    print(image_cost(data, at_least=300).held, 1024 * (kib("VmHWM") - before))
"""


def jpeg_in_scans(side: int, components: int, scans: int) -> bytes:
    """A grey JPEG, sequential all the same, whose components come together or one by one."""

    def segment(marker: int, content: bytes) -> bytes:
        return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content

    every = range(1, components + 1)
    frame = b"".join(bytes([one, 0x11, 0]) for one in every)
    parts = [
        b"\xff\xd8",
        segment(0xDB, bytes([0]) + bytes([1] * 64)),
        segment(0xC0, struct.pack(">BHHB", 8, side, side, components) + frame),
        *(segment(0xC4, bytes([table, 1, *[0] * 15, 0])) for table in (0x00, 0x10)),
    ]
    blocks = (-(-side // 8)) ** 2  # each of two bits: nothing changes
    for some in [[one] for one in every] if scans > 1 else [list(every)]:
        head = bytes([len(some)]) + b"".join(bytes([one, 0]) for one in some)
        parts += [segment(0xDA, head + b"\0\x3f\0"), bytes(-(-blocks * len(some) // 4))]
    return b"".join([*parts, b"\xff\xd9"])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the peak")
def test_no_format_needs_more_ram_than_it_is_said_to(tmp_path: Path) -> None:
    picture = Image.linear_gradient("L").resize((2000, 2000))
    for name, (kind, mode, options) in KINDS.items():
        (tmp_path / name).write_bytes(encode(picture.convert(mode), kind, **options))
    for scans in (1, 4):
        (tmp_path / f"scans {scans}").write_bytes(jpeg_in_scans(2000, 4, scans))
    names = [*KINDS, "scans 1", "scans 4"]
    files = [str(tmp_path / name) for name in names]
    told = subprocess.run(
        [sys.executable, "-c", MEASURE, *files], text=True, check=True, capture_output=True
    ).stdout
    slack = 16 << 20  # a strip in several forms, and what the allocator rounds up
    for name, line in zip(names, told.splitlines(), strict=True):
        held, peak = map(int, line.split())
        assert peak <= 4 * held + slack, name


@pytest.mark.parametrize("name", KINDS)
def test_what_will_be_made_smaller_anyway_looks_the_same(name: str) -> None:
    kind, mode, options = KINDS[name]
    noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((1200, 900), Image.Resampling.BICUBIC)
    data = encode(picture.convert(mode), kind, **options)
    whole, small = load_image(data), load_image(data, at_least=300)
    assert min(small.size) >= 300
    assert whole.width // small.width in (2, 3, 4)
    seen = [np.asarray(one.resize((100, 75)), dtype=float) for one in (whole, small)]
    assert np.abs(seen[0] - seen[1]).mean() < 2.5


def test_a_reduced_image_is_turned_and_laid_on_white() -> None:
    image = Image.new("RGBA", (400, 800), (255, 0, 0, 255))
    image.paste((0, 0, 0, 0), (0, 0, 400, 200))  # the upper quarter shows what is behind it
    exif = Image.Exif()
    exif[0x0112] = 6
    small = load_image(encode(image, "PNG", exif=exif), at_least=100)
    assert small.size == (200, 100)
    assert [small.getpixel((x, 50)) for x in (10, 190)] == [(255, 0, 0), (255, 255, 255)]


def test_a_jpeg_in_several_scans_is_kept_whole_by_its_reader() -> None:
    assert image_cost(jpeg_in_scans(4000, 3, scans=1), at_least=500).held == 250_000
    assert image_cost(jpeg_in_scans(4000, 3, scans=3), at_least=500).held == 32_250_000
    assert load_image(jpeg_in_scans(400, 3, scans=3)).getpixel((0, 0)) == (128, 128, 128)


def test_a_huge_jpeg_counts_at_the_size_it_is_decoded_at() -> None:
    data = encode(Image.new("RGB", (4000, 3000)), "JPEG")
    assert image_cost(data) == (4000, 3000, 12_000_000)
    assert image_cost(data, at_least=672) == (4000, 3000, 750_000)
    assert load_image(data, at_least=672).size == (1000, 750)
