"""Everything a person may hand over becomes the same upright RGB pixels, or one clear error."""

from __future__ import annotations

import base64
import colorsys
import io
import os
import pickle
import struct
import threading
import warnings
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from anytimecl.errors import ImageError
from anytimecl.images import ImageRef, _bytes, _decode, _zips, iter_images, load_image, load_many

Pixel = tuple[int, ...]

# Six different colours, so that no turn or flip of the picture looks like another.
PICTURE = np.array(
    [[[255, 0, 0], [0, 255, 0], [0, 0, 255]], [[255, 255, 0], [9, 99, 199], [255, 255, 255]]],
    dtype=np.uint8,
)  # [height, width, channel]


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def picture(kind: str = "PNG", **options: Any) -> bytes:
    return encode(Image.fromarray(PICTURE), kind, **options)


def pixels(image: Image.Image) -> np.ndarray[Any, Any]:
    assert type(image) is Image.Image
    assert image.mode == "RGB"
    return np.asarray(image)


def one(mode: str, value: Any) -> Image.Image:
    return Image.new(mode, (2, 2), value)


# --- modes --------------------------------------------------------------------------------------


def on_white(colour: Pixel, alpha: int) -> Pixel:
    return tuple(round(c * alpha / 255 + 255 * (255 - alpha) / 255) for c in colour)


def from_cmyk(c: int, m: int, y: int, k: int) -> Pixel:
    return tuple(round((255 - ink) * (255 - k) / 255) for ink in (c, m, y))


def from_ycbcr(y: int, cb: int, cr: int) -> Pixel:
    red = y + 1.402 * (cr - 128)
    green = y - 0.344136 * (cb - 128) - 0.714136 * (cr - 128)
    blue = y + 1.772 * (cb - 128)
    return tuple(round(min(255, max(0, c))) for c in (red, green, blue))


def from_hsv(h: int, s: int, v: int) -> Pixel:
    return tuple(round(255 * c) for c in colorsys.hsv_to_rgb(h / 255, s / 255, v / 255))


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("1", 0, (0, 0, 0)),
        ("1", 1, (255, 255, 255)),
        ("L", 77, (77, 77, 77)),
        ("LA", (77, 255), (77, 77, 77)),
        ("LA", (77, 0), (255, 255, 255)),
        ("LA", (77, 100), on_white((77, 77, 77), 100)),
        ("La", (40, 100), on_white((102, 102, 102), 100)),
        ("RGB", (1, 2, 3), (1, 2, 3)),
        ("RGBX", (1, 2, 3, 0), (1, 2, 3)),
        ("RGBA", (10, 200, 30, 255), (10, 200, 30)),
        ("RGBA", (10, 200, 30, 0), (255, 255, 255)),
        ("RGBA", (10, 200, 30, 64), on_white((10, 200, 30), 64)),
        ("RGBa", (10, 40, 30, 51), on_white((50, 200, 150), 51)),
        ("CMYK", (0, 0, 0, 0), (255, 255, 255)),
        ("CMYK", (10, 120, 230, 40), from_cmyk(10, 120, 230, 40)),
        ("YCbCr", (150, 90, 200), from_ycbcr(150, 90, 200)),
        ("HSV", (170, 200, 100), from_hsv(170, 200, 100)),
        ("LAB", (255, 128, 128), (255, 255, 255)),
        ("I;16", 65535, (255, 255, 255)),
        ("I;16", 0x1234, (18, 18, 18)),
        ("I;16B", 0x1234, (18, 18, 18)),
        ("I;16L", 0x1234, (18, 18, 18)),
        ("I", 0x1234, (18, 18, 18)),
        ("I", 200, (1, 1, 1)),  # 200 of 65535, not of 255
        ("F", 0.5, (128, 128, 128)),
        ("F", 1.0, (255, 255, 255)),
        ("F", 200.0, (200, 200, 200)),
    ],
)
def test_every_mode_becomes_rgb(mode: str, value: Any, expected: Pixel) -> None:
    got = load_image(one(mode, value)).getpixel((1, 1))
    assert isinstance(got, tuple)
    assert max(abs(g - e) for g, e in zip(got, expected, strict=True)) <= 2, (got, expected)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_a_transparent_colour_becomes_white(mode: str) -> None:
    image = Image.new(mode, (2, 1), 0)
    if mode == "P":
        image.putpalette([50, 60, 70, 80, 90, 100])
    image.putpixel((1, 0), (1, 1, 1) if mode == "RGB" else 1)
    data = encode(image, transparency=(0, 0, 0) if mode == "RGB" else 0)
    kept = {"1": 255, "L": 1, "RGB": 1}.get(mode)
    expected = [80, 90, 100] if kept is None else [kept] * 3
    assert pixels(load_image(data)).tolist() == [[[255, 255, 255], expected]]


def test_palette_with_an_alpha_for_each_colour() -> None:
    image = Image.new("P", (2, 1), 0)
    image.putpalette([50, 60, 70, 80, 90, 100])
    image.putpixel((1, 0), 1)
    expected = [list(on_white((50, 60, 70), 128)), [80, 90, 100]]
    assert pixels(load_image(encode(image, transparency=b"\x80\xff"))).tolist() == [expected]
    assert pixels(load_image(image.convert("PA"))).tolist() == [[[50, 60, 70], [80, 90, 100]]]


def test_all_sixteen_bits_are_rounded_not_clipped() -> None:
    values = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    expected = [round(int(v) / 65535 * 255) for v in values.ravel()]
    as_image = Image.fromarray(values)
    big_endian = values.astype(">u2")
    for source in (values, values[:, :, None], big_endian, as_image, as_image.convert("I")):
        assert pixels(load_image(source))[:, :, 1].ravel().tolist() == expected
    for data in (encode(as_image, "PNG"), encode(as_image, "TIFF"), encode(as_image, "PPM")):
        assert pixels(load_image(data))[:, :, 1].ravel().tolist() == expected


@pytest.mark.parametrize(
    ("mode", "values", "expected"),
    [
        ("I", [-55, 45, 200], [0, 100, 255]),
        ("I", [0, 50000, 100000], [0, 128, 255]),
        ("F", [0.0, 0.2, 1.0], [0, 51, 255]),
        ("F", [0.0, 0.6, 254.4], [0, 1, 254]),
        ("F", [-2.0, -1.0, 0.0], [0, 128, 255]),
        ("F", [0.0, 1e30, 2.55e30], [0, 100, 255]),
        ("F", [-2e38, 0.0, 3.1e38], [0, 100, 255]),  # further apart than a float32 reaches
        ("F", [float("nan"), float("inf"), 0.6], [0, 0, 153]),
        ("F", [-3.0, -3.0, -3.0], [0, 0, 0]),
        ("F", [float("nan")] * 3, [0, 0, 0]),
    ],
)
def test_greyscale_out_of_range_is_stretched(
    mode: str, values: list[float], expected: list[int]
) -> None:
    array = np.array([values], dtype=np.int32 if mode == "I" else np.float32)
    image = Image.fromarray(array)
    assert image.mode == mode
    assert pixels(load_image(image))[0, :, 0].tolist() == expected


# --- files --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "tolerance"),
    [
        ("PNG", {}, 0),
        ("BMP", {}, 0),
        ("GIF", {}, 0),
        ("TIFF", {}, 0),
        ("TIFF", {"compression": "tiff_lzw"}, 0),
        ("TIFF", {"big_tiff": True}, 0),
        ("PPM", {}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("JPEG2000", {}, 0),
        ("JPEG2000", {"no_jp2": True}, 0),
        ("JPEG", {"quality": 100, "subsampling": 0}, 6),
        ("AVIF", {"quality": 100, "subsampling": "4:4:4"}, 6),
    ],
)
def test_every_format_gives_its_pixels(
    kind: str, options: dict[str, Any], tolerance: int, tmp_path: Path
) -> None:
    data = picture(kind, **options)
    path = tmp_path / "a file without suffix"
    path.write_bytes(data)
    sources = (path, str(path), data, bytearray(data), memoryview(data), io.BytesIO(data))
    for source in sources:
        difference = np.abs(pixels(load_image(source)).astype(int) - PICTURE)
        assert difference.max() <= tolerance


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_files(kind: str) -> None:
    got = load_image(encode(one("CMYK", (10, 120, 230, 40)), kind)).getpixel((0, 0))
    assert isinstance(got, tuple)
    expected = from_cmyk(10, 120, 230, 40)
    assert max(abs(g - e) for g, e in zip(got, expected, strict=True)) <= 4


def test_an_open_file_is_read_from_its_start_and_stays_open(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture())
    with (tmp_path / "a.png").open("rb") as file:
        file.read(5)
        assert (pixels(load_image(file)) == PICTURE).all()
        assert not file.closed


def test_a_pipe_is_read_to_its_end() -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, picture())
    os.close(write_end)
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        assert (pixels(load_image(pipe)) == PICTURE).all()


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_an_animation_gives_its_first_frame(kind: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "green", "blue")]
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert load_image(data).getpixel((0, 0)) == (255, 0, 0)


def test_a_stereo_photograph_gives_its_first_picture() -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("white", "black")]
    data = encode(frames[0], "MPO", save_all=True, append_images=frames[1:])
    assert load_image(data).getpixel((0, 0)) == (255, 255, 255)


# What a camera stores at each orientation, as array operations on the upright picture.
STORED: dict[int, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.transpose(1, 0, 2),
    6: lambda upright: upright.transpose(1, 0, 2)[::-1],
    7: lambda upright: upright.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda upright: upright.transpose(1, 0, 2)[:, ::-1],
}


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied_once(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](PICTURE)))
    options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
    data = encode(stored, kind, exif=exif, **options)
    loaded = load_image(data)
    assert (pixels(loaded) == PICTURE).all()
    assert (pixels(load_image(loaded)) == PICTURE).all()
    assert (pixels(load_image(Image.open(io.BytesIO(data)))) == PICTURE).all()


def test_exif_that_cannot_be_written_again_does_not_cost_the_turn() -> None:
    lying = struct.pack("<HHII", 0x0112, 3, 1, 6)
    # A description that is a number, as no writer expects it.
    odd = struct.pack("<HHIf", 0x010E, 11, 1, 1.5)
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 2) + lying + odd + bytes(16)
    stored = Image.fromarray(np.ascontiguousarray(STORED[6](PICTURE)))
    data = encode(stored, "PNG", exif=exif)
    with pytest.raises(AttributeError):  # what Pillow makes of it
        ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert (pixels(load_image(data)) == PICTURE).all()


@pytest.mark.parametrize("kind", ["JPEG", "AVIF"])
def test_exif_orientation_of_lossy_formats(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying: its left column is the upright top row
    stored = Image.new("RGB", (16, 32), "black")
    stored.paste("white", (0, 0, 8, 32))
    loaded = load_image(encode(stored, kind, exif=exif))
    assert loaded.size == (32, 16)
    assert pixels(loaded)[2].min() > 200
    assert pixels(loaded)[13].max() < 50


@pytest.mark.parametrize("exif", [b"nonsense", b"II*\0\x08\0\0\0\xff\xff\x12\x01"])
def test_unreadable_exif_costs_the_turn_and_not_the_picture(exif: bytes) -> None:
    data = picture("PNG", exif=b"Exif\0\0" + exif)
    assert (pixels(load_image(data)) == PICTURE).all()


# --- pictures in memory -------------------------------------------------------------------------


def test_arrays() -> None:
    assert (pixels(load_image(PICTURE)) == PICTURE).all()
    assert (pixels(load_image(PICTURE[::-1, ::-1])) == PICTURE[::-1, ::-1]).all()
    grey = PICTURE[:, :, 0]
    for source in (grey, grey[:, :, None]):
        assert (pixels(load_image(source)) == grey[:, :, None]).all()
    alpha = np.full((2, 3, 1), 255, dtype=np.uint8)
    alpha[0, 0] = 0
    seen = PICTURE.copy()
    seen[0, 0] = 255
    assert (pixels(load_image(np.concatenate([PICTURE, alpha], axis=2))) == seen).all()


@pytest.mark.parametrize(
    "array",
    [
        PICTURE.astype(np.float32) / 255,
        PICTURE.astype(np.int64),
        PICTURE.astype(np.uint16),
        PICTURE.astype(bool),
        PICTURE.astype(np.int8),
        PICTURE.transpose(2, 0, 1)[:, :, :2],
        PICTURE[None],
        PICTURE[0, 0],
        PICTURE[:, :, :2],
        np.array(3, dtype=np.uint8),
        np.array([["a"]], dtype=object),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_other_arrays_are_refused(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(ImageError, match="an array must be"):
        load_image(array)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (0, 5, 3)])
def test_nothing_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ImageError, match="that has pixels"):
        load_image(np.zeros(shape, dtype=np.uint8))


def test_the_result_is_a_copy_and_the_source_stays_as_it_was() -> None:
    for source in (Image.fromarray(PICTURE), PICTURE.copy()):
        loaded = load_image(source)
        loaded.putpixel((0, 0), (1, 2, 3))
        assert (np.asarray(source) == PICTURE).all()
    rotated = Image.open(io.BytesIO(picture(exif=b"Exif\0\0" + turned_exif(6))))
    before = rotated.info.copy()
    assert load_image(rotated).info == {}
    assert rotated.info == before
    assert rotated.size == (3, 2)


def turned_exif(orientation: int) -> bytes:
    return struct.pack("<2sHIHHHIHHI", b"II", 42, 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def test_dataset_rows_and_values(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(picture())
    value = {"bytes": picture(), "path": "gone.png"}
    for source in (
        value,
        {"bytes": None, "path": str(path)},
        {"image": value, "label": 3},
        {"img": Image.fromarray(PICTURE), "path": "gone.png"},
        {"image": None, "img": PICTURE},
    ):
        assert (pixels(load_image(source)) == PICTURE).all()
    with pytest.raises(ImageError, match=r"'gone\.png': it is not JPEG"):
        load_image({"image": {"bytes": b"?", "path": "gone.png"}})
    for row in ({}, {"label": 3}, {"bytes": None, "path": None}):
        with pytest.raises(ImageError, match="it is no image"):
            load_image(row)
    endless: dict[str, Any] = {}
    endless["image"] = endless
    with pytest.raises(ImageError, match="it is no image"):
        load_image(endless)


# --- errors -------------------------------------------------------------------------------------


def refusal(source: Any, **options: Any) -> str:
    with pytest.raises(ImageError) as caught:
        load_image(source, **options)
    return str(caught.value)


def test_errors_name_the_source_the_reason_and_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "cut.png"
    path.write_bytes(picture()[:60])
    assert refusal(path).startswith(f"cannot read image {str(path)!r}: it is broken or cut short (")
    assert refusal(path).endswith("export or download it again")
    assert "(bytes of length 60): it is broken" in refusal(picture()[:60])
    assert "(bytes of length 8)" in refusal(memoryview(bytes(8)).cast("f"))
    assert "(bytes of length 0): it is empty" in refusal(b"")
    assert "'x.png': there is no such file" in refusal("x.png")
    assert "is a folder" in refusal(tmp_path)
    assert "addresses are not fetched" in refusal("https://example.org/a.png")
    assert "open it with mode 'rb'" in refusal(io.StringIO("text"))
    assert "(NoneType): it is no image" in refusal(None)
    assert "(array of shape (2,), type int64)" in refusal(np.array([1, 2]))
    assert "\n" not in refusal("two\nlines.png")
    assert "broken or cut short (embedded null byte)" in refusal("a\0b.png")
    with Image.open(io.BytesIO(picture())) as image, io.BytesIO(picture()) as stream:
        pass
    for closed in (image, stream):
        assert "it was closed before it was read; open it again" in refusal(closed)
    with (tmp_path / "cut.png").open("rb") as file:
        assert repr(str(path)) in refusal(file)
    closed = Image.new("L", (3, 2))
    closed.close()
    assert "(PIL image of mode L, size 3x2)" in refusal(closed)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_named_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    assert "not a regular file" in refusal(tmp_path / "pipe.png")


def test_formats_off_the_list_are_refused_whatever_has_been_imported() -> None:
    Image.init()  # registers every format that Pillow knows
    for kind in ("EPS", "PDF", "ICO", "TGA", "PCX", "SGI"):
        assert "convert it to one of these" in refusal(picture(kind))
    assert "broken or cut short" in refusal(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    assert "convert it" in refusal(b"P3 1 1 255 1 2 3")


# 64x48, the left half red and the right half blue; encoded by pillow-heif.
HEIC = base64.b64decode(
    "AAAAHGZ0eXBoZWljAAAAAG1pZjFoZWljbWlhZgAAAX1tZXRhAAAAAAAAACFoZGxyAAAAAAAAAABwaWN0AAAA"
    "AAAAAAAAAAAAAAAAACJpbG9jAAAAAERAAAEAAQAAAAABoQABAAAAAAAAACQAAAAjaWluZgAAAAAAAQAAABVp"
    "bmZlAgAAAAABAABodmMxAAAAAA5waXRtAAAAAAABAAAA/WlwcnAAAADdaXBjbwAAAHZodmNDAQNwAAAAkAAA"
    "AAAAHvAA/P34+AAADwNgAAEAGEABDAH//wNwAAADAJAAAAMAAAMAHroCQGEAAQAqQgEBA3AAAAMAkAAAAwAA"
    "AwAeoCCBBZbq5Ka5uAhoMCAAAAMDIAAAAwAhYgABAAZEAcFzwIkAAAATY29scm5jbHgAAQANAAaAAAAAFGlz"
    "cGUAAAAAAAAAQAAAAEAAAAAoY2xhcAAAAEAAAAABAAAAMAAAAAEAAAAAAAAAAv////AAAAACAAAAEHBpeGkA"
    "AAAAAwgICAAAABhpcG1hAAAAAAAAAAEAAQWBAgMFhAAAACxtZGF0AAAAICgBrxmA70mlv//f4x/19q/4pshf"
    "/58Qd9UJn/CLo21v"
)


@pytest.mark.parametrize("brand", [b"heic", b"mif1"])
def test_photographs_of_phones_are_read(tmp_path: Path, brand: bytes) -> None:
    path = tmp_path / "cat" / "IMG_0001.HEIC"
    path.parent.mkdir()
    path.write_bytes(HEIC.replace(b"ftypheic", b"ftyp" + brand))
    [(_, image)] = load_many(iter_images(tmp_path))
    assert isinstance(image, Image.Image)
    assert image.size == (64, 48)
    assert_near(image.getpixel((5, 5)), (200, 30, 30))
    assert_near(image.getpixel((60, 40)), (20, 40, 220))


def assert_near(found: object, wanted: tuple[int, int, int]) -> None:
    assert np.abs(np.subtract(found, wanted)).max() < 8  # type: ignore[call-overload]


def test_a_photograph_of_a_phone_is_refused_by_its_head_alone() -> None:
    huge = struct.pack(">II", 20_000, 20_000)
    assert "more than" in refusal(HEIC.replace(struct.pack(">II", 64, 64), huge))
    assert "broken or cut short" in refusal(HEIC[:-20])


class Faulty(io.RawIOBase):
    """A file whose disk has gone."""

    def read(self, size: int = -1) -> bytes:
        raise OSError(5, "Input/output error")


class Endless:
    """A stream that has no end."""

    def read(self, size: int) -> bytes:
        return bytes(size)


def test_streams_that_fail_or_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_bytes, "MAX_BYTES", 2**21)
    assert "Input/output error" in refusal(Faulty())
    assert "(Endless): it is larger than 2097152 bytes" in refusal(Endless())


def test_a_file_over_the_byte_cap_is_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = picture()
    (tmp_path / "a.png").write_bytes(data)
    monkeypatch.setattr(_bytes, "MAX_BYTES", len(data))
    assert load_image(tmp_path / "a.png").size == load_image(data).size == (3, 2)
    monkeypatch.setattr(_bytes, "MAX_BYTES", len(data) - 1)
    monkeypatch.setattr(_bytes, "read_stream", lambda file: pytest.fail("it was read"))
    assert "larger than" in refusal(tmp_path / "a.png")
    assert "larger than" in refusal(data)


def test_memory_errors_are_not_the_images_fault() -> None:
    class Exhausted:
        def read(self, size: int) -> bytes:
            raise MemoryError

    with pytest.raises(MemoryError):
        load_image(Exhausted())  # type: ignore[arg-type]


# --- caps ---------------------------------------------------------------------------------------


def test_the_pixel_cap_is_exact_and_holds_for_every_kind_of_source() -> None:
    for source in (picture(), picture("WEBP"), PICTURE, Image.fromarray(PICTURE)):
        assert load_image(source, max_pixels=6).size == (3, 2)
        assert "its size is 3x2, more than 5 pixels" in refusal(source, max_pixels=5)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("lossless", [True, False])
def test_the_webp_canvas_is_known_before_pillow_sees_the_file(mode: str, lossless: bool) -> None:
    for size in ((1, 1), (300, 200), (200, 300), (2, 16383 // 100)):
        data = encode(Image.new(mode, size, (9, 8, 7, 6)[: len(mode)]), "WEBP", lossless=lossless)
        assert _decode.webp_canvas(data) == size


def test_nothing_is_decoded_beyond_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        pytest.fail("it was decoded")

    for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "WEBP", "AVIF", "JPEG2000"):
        data = picture(kind)
        reader = type(Image.open(io.BytesIO(data)))
        with monkeypatch.context() as patch:
            # The WebP reader sets its canvas aside when it opens a file.
            patch.setattr(reader, "_open" if kind == "WEBP" else "load", fail)
            assert "more than 5 pixels" in refusal(data, max_pixels=5)


def test_pillows_own_limit_is_neither_used_nor_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for kind in ("PNG", "JPEG", "GIF", "BMP", "PPM", "AVIF", "JPEG2000"):
            assert load_image(picture(kind)).size == (3, 2)
    assert caught == []
    assert Image.MAX_IMAGE_PIXELS == 2


def test_absurd_shapes_are_refused() -> None:
    assert load_image(np.zeros((200, 1), dtype=np.uint8)).size == (1, 200)
    for shape in ((201, 1), (1, 201)):
        assert "one side over 200 times" in refusal(np.zeros(shape, dtype=np.uint8))


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("kind", "HI")
def test_the_tile_of_a_tiff_is_found(order: str, kind: str) -> None:
    code, pad = (3, 2) if kind == "H" else (4, 0)
    entries = [
        struct.pack(f"{order}HHI{kind}{pad}x", *entry)
        for entry in ((322, code, 1, 640), (256, code, 1, 7), (323, code, 1, 16))
    ]
    start = b"II*\0" if order == "<" else b"MM\0*"
    data = start + struct.pack(f"{order}IxxH", 10, 3) + b"".join(entries)
    assert _decode.tiff_tile(data, (1, 2)) == (640, 16)
    assert _decode.tiff_tile(data[:20], (1, 2)) == (1, 2)
    eight = struct.pack("<HHQQ", 322, 16, 1, 2**40) + struct.pack("<HHQHxxxxxx", 323, 3, 1, 9)
    data = b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 2) + eight
    assert _decode.tiff_tile(data, (1, 2)) == (2**40, 9)
    strips = b"II*\0" + struct.pack("<IHHHII", 8, 1, 278, 4, 1, 5)
    assert [_decode.tiff_tile(strips, (7, height)) for height in (9, 3)] == [(7, 5), (7, 3)]


@pytest.mark.parametrize("count", [4096, 4160])
def test_a_jpeg_2000_of_very_many_tiles_is_refused(count: int) -> None:
    data = encode(
        Image.new("L", (64, count // 64)), "JPEG2000", tile_size=(1, 1), num_resolutions=1
    )
    if count > 4096:
        assert "more than 4096 tiles" in refusal(data)
    else:
        assert load_image(data).size == (64, 64)


def scans_of(image: bytes, extra: int) -> bytes:
    """The progressive JPEG `image`, its last scan done `extra` times more."""
    last = image.rfind(b"\xff\xc4", 0, image.rfind(b"\xff\xda"))
    return image[:-2] + image[last:-2] * extra + image[-2:]


def test_a_jpeg_of_very_many_scans_is_refused() -> None:
    image = encode(Image.new("L", (64, 64), 128), "JPEG", progressive=True)
    few = image.count(b"\xff\xda")
    assert load_image(scans_of(image, 100 - few)).size == (64, 64)
    assert "more than 100 scans" in refusal(scans_of(image, 101 - few))
    # Bytes that only look like scans: in a comment, and behind the end of the picture.
    comment = b"\xff\xfe" + struct.pack(">H", 402) + b"\xff\xda" * 200
    assert load_image(image[:2] + comment + image[2:] + b"\xff\xda" * 200).size == (64, 64)
    # A marker without a length must not hide what follows it.
    assert "more than 100 scans" in refusal(image[:2] + b"\xff\x01" + scans_of(image, 200)[2:])


# --- warnings -----------------------------------------------------------------------------------


def noisy_tiff() -> bytes:
    """A readable TIFF with one tag that Pillow warns about."""
    entries = [(256, 1, 2), (257, 1, 1), (258, 1, 8), (259, 1, 1), (262, 1, 1), (273, 1, 8)]
    entries += [(278, 1, 1), (279, 1, 2), (305, 60000, 60000)]
    directory = b"".join(
        struct.pack("<HHII", tag, 2 if tag == 305 else 4, count, value)
        for tag, count, value in entries
    )
    head = struct.pack("<2sHI", b"II", 42, 10) + b"\x10\x20"
    return head + struct.pack("<H", len(entries)) + directory + bytes(4)


def test_pillow_does_warn_about_this_file() -> None:
    with pytest.warns(UserWarning):  # noqa: PT030  which ones, depends on Pillow's version
        Image.open(io.BytesIO(noisy_tiff())).load()


def test_no_warning_leaves_and_others_are_left_alone() -> None:
    class Warns(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            warnings.warn("the disk is slow", UserWarning, stacklevel=1)
            return super().read(size)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        filters = list(warnings.filters)
        assert pixels(load_image(Warns(noisy_tiff())))[0, :, 0].tolist() == [16, 32]
        assert list(warnings.filters) == filters
    assert {str(warning.message) for warning in caught} == {"the disk is slow"}


def test_many_threads_leave_the_warning_filters_as_they_were() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        filters = list(warnings.filters)
        gate = threading.Barrier(8)

        def work(_: int) -> list[tuple[int, int]]:
            gate.wait()
            return [load_image(noisy_tiff()).size for _ in range(50)]

        with ThreadPoolExecutor(8) as pool:
            assert all(sizes == [(2, 1)] * 50 for sizes in pool.map(work, range(8)))
        assert list(warnings.filters) == filters
    assert caught == []


# --- folders and zips ---------------------------------------------------------------------------

LAYOUT = {
    "flat.png": (None, None),
    "cat/1.PNG": ("cat", None),
    "cat/2.jpeg": ("cat", None),
    "cat-dog/1.png": ("cat-dog", None),
    "train/big cat/1.png": ("big cat", "train"),
    "a/b/c/1.tif": ("c", None),
}
CLUTTER = (
    ".hidden.png",
    ".cache/1.png",
    "cat/._1.png",
    "__MACOSX/cat/1.png",
    "cat/notes.txt",
    "cat/Thumbs.db",
    "cat/png",
    "cat/1.png.part",
)


def make_folder(root: Path) -> Path:
    for name in (*LAYOUT, *CLUTTER):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture())
    return root


def make_zip(path: Path, entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def test_a_folder_and_its_zip_give_the_same_in_the_same_order(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "photos")
    names = [*LAYOUT, *CLUTTER, "cat/folder.png/"]
    archive = make_zip(tmp_path / "photos.zip", dict.fromkeys(reversed(names), picture()))
    expected = [(name, *LAYOUT[name]) for name in sorted(LAYOUT, key=lambda name: name.split("/"))]
    for root in (folder, str(folder), archive):
        refs = list(iter_images(root))
        assert [(ref.name, ref.label, ref.split) for ref in refs] == expected
        assert all((pixels(ref.load()) == PICTURE).all() for ref in refs)
        assert pickle.loads(pickle.dumps(refs)) == refs == list(iter_images(root))


def test_load_many_reports_the_broken_and_goes_on(tmp_path: Path) -> None:
    entries = {
        "a/1.png": picture(),
        "a/2.png": picture()[:50],
        "a/3.heic": b"",
        "b/4.png": picture(),
    }
    for name, data in entries.items():
        (tmp_path / "f" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "f" / name).write_bytes(data)
    for root in (tmp_path / "f", make_zip(tmp_path / "z.zip", entries)):
        results = list(load_many(iter_images(root)))
        assert [ref.name for ref, _ in results] == list(entries)
        good = [ref.name for ref, image in results if isinstance(image, Image.Image)]
        assert good == ["a/1.png", "b/4.png"]
        for ref, error in results[1:3]:
            assert isinstance(error, ImageError)
            assert f"cannot read image {str(root / ref.name)!r}: it is" in str(error)
            assert error.__traceback__ is None  # which would hold the bytes of the file
            assert error.__cause__ is error.__context__ is None


def test_links_are_followed_once(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "photos")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "1.png").write_bytes(picture())
    (root / "cat" / "up").symlink_to(root)
    (root / "self").symlink_to(root / "self")
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "linked again").symlink_to(tmp_path / "elsewhere")
    (root / "self.png").symlink_to(root / "self.png")
    (root / "gone.png").symlink_to(root / "nowhere.png")
    results = {ref.name: image for ref, image in load_many(iter_images(root))}
    assert set(results) == {*LAYOUT, "linked/1.png", "self.png", "gone.png"}
    assert "there is no such file" in str(results["gone.png"])
    assert "symbolic links" in str(results["self.png"])


def test_a_folder_that_cannot_be_listed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder(tmp_path / "photos")
    listing = Path.iterdir

    def iterdir(path: Path) -> Any:
        if path.name == "train":
            raise PermissionError(13, "Permission denied")
        return listing(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    results = {ref.name: image for ref, image in load_many(iter_images(root))}
    assert "check its permissions" in str(results["train"])
    assert isinstance(results["flat.png"], Image.Image)
    with pytest.raises(ImageError, match="Permission denied"):
        iter_images(root / "train")


def test_roots_that_are_no_roots_fail_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture())
    broken = make_zip(tmp_path / "b.zip", {"a.png": picture()})
    broken.write_bytes(b"PK" + broken.read_bytes()[-30:])
    for name, reason in {
        "a.png": "neither a folder nor a zip",
        "b.zip": "broken or cut short",
        "gone": "no such file",
        "nul\0": "embedded null byte",
    }.items():
        with pytest.raises(ImageError, match=reason):
            iter_images(tmp_path / name)


def test_zip_names_stay_below_the_root(tmp_path: Path) -> None:
    names = {
        "../../up.png": None,
        "cat/../../up.png": None,
        "/etc/abs.png": "etc/abs.png",
        "//host/share.png": "host/share.png",
        "C:\\Users\\win.png": "Users/win.png",
        "dog\\back.png": "dog/back.png",
        "./here/now.png": "here/now.png",
    }
    archive = make_zip(tmp_path / "z.zip", dict.fromkeys(names, picture()))
    refs = list(iter_images(archive))
    assert {ref.name for ref in refs} == {name for name in names.values() if name}
    assert all((pixels(ref.load()) == PICTURE).all() for ref in refs)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_methods_without_a_bound_are_refused(tmp_path: Path, method: int) -> None:
    [ref] = iter_images(make_zip(tmp_path / "z.zip", {"a.png": picture()}, method))
    with pytest.raises(ImageError, match="zip it with deflate"):
        ref.load()


def patched(path: Path, field: int, value: bytes) -> ImageRef:
    """The only entry of the zip, one field of its central directory replaced."""
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2") + field
    data[at : at + len(value)] = value
    path.write_bytes(data)
    [ref] = iter_images(path)
    return ref


def test_zip_entries_that_lie_or_are_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = {"a.png": picture() + bytes(2**26)}
    longer = patched(make_zip(tmp_path / "1.zip", bomb), 24, struct.pack("<I", 200))
    huge = patched(make_zip(tmp_path / "2.zip", bomb), 24, struct.pack("<I", 2**32 - 2))
    locked = patched(make_zip(tmp_path / "3.zip", {"a.png": picture()}), 8, b"\1")
    with pytest.raises(ImageError, match="Bad CRC-32"):
        longer.load()
    with pytest.raises(ImageError, match="without a password"):
        locked.load()
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("it was read"))
    with pytest.raises(ImageError, match="larger than"):
        huge.load()


def test_a_reference_gives_the_bytes_of_its_file(tmp_path: Path) -> None:
    data = picture()
    (tmp_path / "folder" / "cat").mkdir(parents=True)
    (tmp_path / "folder" / "cat" / "a.png").write_bytes(data)
    for place in (tmp_path / "folder", make_zip(tmp_path / "z.zip", {"cat/a.png": data})):
        [ref] = iter_images(place)
        assert ref.read() == data
        with pytest.raises(ImageError, match=r"cannot read image .*cat/b\.png"):
            replace(ref, name="cat/b.png", member=ref.member and "cat/b.png").read()
    (tmp_path / "folder" / "cat" / "a.png").write_bytes(b"junk")
    [ref] = iter_images(tmp_path / "folder")
    assert ref.read() == b"junk"  # whether it is an image is for `load` to say


def test_a_zip_that_changes_is_read_anew(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "z.zip", {"a.png": picture()})
    [ref] = iter_images(archive)
    assert ref.load().size == (3, 2)
    make_zip(archive, {"a.png": encode(Image.new("RGB", (7, 7)))})
    assert ref.load().size == (7, 7)
    make_zip(archive, {"b.png": picture()})
    with pytest.raises(ImageError, match=r"a\.png"):
        ref.load()


def test_threads_read_one_zip_at_once(tmp_path: Path) -> None:
    entries = {
        f"{n}.png": encode(Image.new("RGB", (40, 40), (n, 0, 0)), compress_level=0)
        for n in range(64)
    }
    refs = list(iter_images(make_zip(tmp_path / "z.zip", entries)))
    with ThreadPoolExecutor(8) as pool:
        loaded = list(pool.map(ImageRef.load, refs * 4))
    for ref, image in zip(refs * 4, loaded, strict=True):
        assert image.getpixel((20, 20)) == (int(ref.name.removesuffix(".png")), 0, 0)


def test_each_thread_opens_the_zip_for_itself(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "z.zip", {"a.png": picture()})
    mine = _zips.open_zip(archive)
    assert _zips.open_zip(archive) is mine
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(_zips.open_zip, archive).result() is not mine


def test_a_forked_process_opens_the_zip_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make_zip(tmp_path / "z.zip", {"a.png": picture()})
    mine = _zips.open_zip(archive)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert _zips.open_zip(archive) is not mine
