"""Anything a person has (path, bytes, file, array, folder, zip, row) to a checked RGB image.

Files come from strangers: the format is chosen by signature from a short list of readers that run
inside the process, and the size is checked before a pixel is decoded. Whatever is wrong with an
image becomes one `ImageError` that names it.
"""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import threading
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
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

from anytimecl.errors import ImageError

ImageSource: TypeAlias = (
    "str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes]"
    " | Image.Image | NDArray[Any] | Mapping[str, Any]"
)

DEFAULT_MAX_PIXELS = 2**27  # 134 million: a 108-megapixel phone fits; half a gigabyte once decoded
MAX_BYTES = 2**28
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

# HEIC cannot be read, but a folder of phone photographs must say so rather than seem empty.
_SUFFIX = re.compile(
    r"\.(jpe?g|jpe|jfif|a?png|webp|gif|bmp|dib|tiff?|p[pgbn]m|pfm|avifs?|jp[2fxc]|j2[kc]|hei[cf])",
    re.IGNORECASE,
)

_UPRIGHT = {  # EXIF orientation -> what undoes it
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class _Refusal(Exception):
    """Why an image is refused and what to do about it; the image is named further out."""


def load_image(source: ImageSource, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> Image.Image:
    """Read one image as upright 8-bit RGB, or raise `ImageError` saying what is wrong with it.

    `source` is a path, the bytes of a file, an open binary file (read from its start), a PIL image,
    an array ([height, width], [.., 1], [.., 3] or [.., 4] of uint8, or uint16 greyscale), or a
    Hugging Face dataset row or image value. An animation gives its first frame; transparency is
    laid on white; 16-bit and float greyscale is scaled. The result shares no memory with `source`.

    >>> load_image(np.full((2, 3), 7, dtype=np.uint8)).getpixel((0, 0))
    (7, 7, 7)
    >>> load_image(b"not an image")
    Traceback (most recent call last):
    anytimecl.errors.ImageError: cannot read image (bytes of length 12): it is not JPEG, PNG, WebP,
    GIF, BMP, TIFF, binary PPM, AVIF or JPEG 2000; convert it to one of these
    """
    path = None
    if isinstance(source, Mapping):
        with _errors_named(f"in {type(source).__name__}"):  # a lazy row decodes when it is asked
            source, path = _unwrap(source)
    with _errors_named(repr(path) if path else _describe(source)):
        return _to_rgb(_open(source, max_pixels))


@dataclass(frozen=True)
class ImageRef:
    """An image in a folder or zip, not read yet.

    >>> ImageRef("train/cat/1.png", label="cat", split="train", root=Path("photos")).load()
    Traceback (most recent call last):
    anytimecl.errors.ImageError: cannot read image 'photos/train/cat/1.png': there is no such file;
    check the path
    """

    name: str  # posix path below the root
    label: str | None  # the folder that holds it
    split: str | None  # the first folder, when there are exactly two
    root: Path
    member: str | None = None  # the entry as the zip spells it; None in a folder

    def load(self, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> Image.Image:
        """Read the image as `load_image` does."""
        path = self.root / self.name
        if self.member is None:
            return load_image(path, max_pixels=max_pixels)
        with _errors_named(_describe(path)):
            return _to_rgb(_decode(_read_member(self.root, self.member), max_pixels))


def iter_images(folder_or_zip: str | os.PathLike[str]) -> Iterator[ImageRef]:
    """Every image below a folder or inside a zip, in the order of its path, none of them read yet.

    Layouts: `<file>`, `<class>/<file>`, `<split>/<class>/<file>`; deeper, the folder that holds the
    file is the label. Hidden files and files without an image suffix are passed over.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("train/cat/2.png", "train/ant/1.png", "readme.txt"):
    ...         path = Path(folder, name)
    ...         path.parent.mkdir(parents=True, exist_ok=True)
    ...         path.touch()
    ...     [(ref.name, ref.label, ref.split) for ref in iter_images(folder)]
    [('train/ant/1.png', 'ant', 'train'), ('train/cat/2.png', 'cat', 'train')]
    """
    root = Path(folder_or_zip)
    with _errors_named(_describe(root), what="images of"):
        if stat.S_ISDIR(root.stat().st_mode):
            return _walk_folder(root, sorted(root.iterdir(), reverse=True))
        if not (root.is_file() and zipfile.is_zipfile(root)):
            raise _Refusal("it is neither a folder nor a zip; read one image with load_image")
        return _walk_zip(root, _open_zip(root).namelist())


def load_many(refs: Iterable[ImageRef]) -> Iterator[tuple[ImageRef, Image.Image | ImageError]]:
    """Each reference with its image, or with the error to report: one bad file stops nothing.

    >>> [(ref, image)] = load_many([ImageRef("a.png", label=None, split=None, root=Path("no"))])
    >>> print(image)
    cannot read image 'no/a.png': there is no such file; check the path
    """
    for ref in refs:
        image: Image.Image | ImageError
        try:
            image = ref.load()
        except ImageError as error:  # the caught one would keep the bytes of its file alive
            image = ImageError(*error.args)
        yield ref, image


# --- errors -------------------------------------------------------------------------------------


@contextmanager
def _errors_named(name: str, what: str = "image") -> Iterator[None]:
    try:
        with _pillow_quiet():
            yield
    except (ImageError, MemoryError):
        raise
    except Exception as error:  # Pillow's readers raise nearly every type there is on broken files
        raise ImageError(f"cannot read {what} {name}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, _Refusal):
        return str(error)
    if isinstance(error, FileNotFoundError):
        return "there is no such file; check the path"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}; check the path and its permissions"
    detail = " ".join(str(error).split()) or type(error).__name__  # one line, for reports
    return f"it is broken or cut short ({detail}); export or download it again"


_PILLOW_NOISE = ("ignore", None, Warning, re.compile(r"PIL\."), 0)  # as `warnings.filters` has it


@contextmanager
def _pillow_quiet() -> Iterator[None]:
    """Silence what Pillow says about odd metadata, in a way that threads may do at once.

    `catch_warnings` puts back a snapshot and so undoes what another thread did meanwhile. Adding
    one entry to the list and taking it out of the same list again cannot.
    """
    filters = cast("list[Any]", warnings.filters)
    filters.insert(0, _PILLOW_NOISE)
    try:
        yield
    finally:
        with suppress(ValueError):  # someone reset the filters meanwhile
            filters.remove(_PILLOW_NOISE)


def _describe(source: Any) -> str:
    if isinstance(source, str | os.PathLike):
        return repr(os.fspath(source))  # repr: a name may hold line breaks
    if isinstance(source, bytes | bytearray | memoryview):
        return f"(bytes of length {memoryview(source).nbytes})"
    if isinstance(source, Image.Image):
        return f"(PIL image of mode {source.mode}, size {source.width}x{source.height})"
    if isinstance(source, np.ndarray):
        return f"(array of shape {source.shape}, type {source.dtype})"
    name = getattr(source, "name", None)
    return repr(name) if isinstance(name, str) else f"({type(source).__name__})"


# --- reading ------------------------------------------------------------------------------------


def _unwrap(row: Mapping[str, Any]) -> tuple[Any, str | None]:
    """The image inside a dataset row or value, and its path where that is given beside it."""
    value: Any = row
    path = None
    for _ in range(2):  # a row, then its value; no further, in case a mapping holds itself
        if isinstance(value, Mapping):
            path = value.get("path")
            keys = (key for key in ("image", "img", "bytes", "path") if value.get(key) is not None)
            value = value.get(next(keys, ""), value)
    return value, path if isinstance(path, str) else None


def _open(source: Any, max_pixels: int) -> Image.Image:
    if isinstance(source, str | os.PathLike):
        return _decode(_read_path(os.fspath(source)), max_pixels)
    if isinstance(source, bytes | bytearray | memoryview):
        _check_bytes(memoryview(source).nbytes)
        return _decode(bytes(source), max_pixels)
    if isinstance(source, Image.Image):
        _check_size(source.size, max_pixels)
        source.load()
        return source
    if isinstance(source, np.ndarray):
        return _from_array(source, max_pixels)
    if callable(getattr(source, "read", None)):
        with suppress(AttributeError, OSError, ValueError):  # a pipe: read from where it is
            source.seek(0)
        return _decode(_read_stream(source), max_pixels)
    raise _Refusal(
        "it is no image; give a path, bytes, an open file, a PIL image, a NumPy array or a dataset"
        " row with 'image', 'img', 'bytes' or 'path'"
    )


def _read_path(path: str) -> bytes:
    if "://" in path:
        raise _Refusal("addresses are not fetched; download it and give the file")
    status = Path(path).stat()
    if stat.S_ISDIR(status.st_mode):
        raise _Refusal("it is a folder; check its permissions, and go through it with iter_images")
    if not stat.S_ISREG(status.st_mode):  # a pipe or a device could block for ever
        raise _Refusal("it is not a regular file; give a file")
    _check_bytes(status.st_size)
    with Path(path).open("rb") as file:
        return _read_stream(file)


def _read_stream(file: IO[Any]) -> bytes:
    data = bytearray()
    while chunk := file.read(2**20):
        if isinstance(chunk, str):
            raise _Refusal("the file is open as text; open it with mode 'rb'")
        data += chunk
        _check_bytes(len(data))
    return bytes(data)


def _check_bytes(count: int) -> None:
    if count > MAX_BYTES:
        raise _Refusal(f"it is larger than {MAX_BYTES} bytes; make it smaller")


def _decode(data: bytes, max_pixels: int) -> Image.Image:
    if not data:
        raise _Refusal("it is empty (0 bytes); export or download it again")
    reader = next((reader for signature, reader in _READERS if re.match(signature, data)), None)
    if reader is None:
        raise _Refusal(
            "it is not JPEG, PNG, WebP, GIF, BMP, TIFF, binary PPM, AVIF or JPEG 2000; convert it"
            " to one of these"
        )
    if reader is WebPImageFile:  # it sets the canvas aside as soon as it is opened
        _check_size(_webp_canvas(data), max_pixels)
    if reader is JpegImageFile and _jpeg_scans(data) > MAX_SCANS:
        raise _Refusal(f"it is a JPEG of more than {MAX_SCANS} scans; export it again")
    image = reader(io.BytesIO(data))
    _check_size(image.size, max_pixels)
    _check_tiles(image, data, max_pixels)
    image.load()
    return image


def _webp_canvas(data: bytes) -> tuple[int, int]:
    kind, head = data[12:16], int.from_bytes(data[20:30].ljust(10, b"\0"), "little")
    if kind == b"VP8X":
        return (head >> 32 & 0xFFFFFF) + 1, (head >> 56 & 0xFFFFFF) + 1
    if kind == b"VP8L":
        return (head >> 8 & 0x3FFF) + 1, (head >> 22 & 0x3FFF) + 1
    return head >> 48 & 0x3FFF, head >> 64 & 0x3FFF


def _jpeg_scans(data: bytes) -> int:
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
        width, height = _tiff_tile(data, image.size)
        if width * height > max_pixels:
            raise _Refusal(f"its tiles are {width}x{height}; save it again with smaller ones")
    if isinstance(image, Jpeg2KImageFile):
        for found in re.finditer(rb"(?s)\xff\x4f\xff\x51.{4}(.{32})", data):
            right, bottom, _, _, width, height, left, top = struct.unpack(">8I", found[1])
            if -((left - right) // width) * -((top - bottom) // height) > MAX_TILES:
                raise _Refusal(f"it has more than {MAX_TILES} tiles; save it again with fewer")


def _tiff_tile(data: bytes, whole: tuple[int, int]) -> tuple[int, int]:
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


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    found = f"its size is {width}x{height}"
    if width <= 0 or height <= 0:
        raise _Refusal(f"{found}; give an image that has pixels")
    if width * height > max_pixels:
        advice = "make it smaller, or raise max_pixels if you trust it"
        raise _Refusal(f"{found}, more than {max_pixels} pixels; {advice}")
    if max(size) > MAX_ASPECT * min(size):
        raise _Refusal(f"{found}, one side over {MAX_ASPECT} times the other; crop it")


# --- pixels -------------------------------------------------------------------------------------


def _from_array(array: NDArray[Any], max_pixels: int) -> Image.Image:
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    shaped = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))
    wide = array.ndim == 2 and array.dtype.kind == "u" and array.dtype.itemsize == 2
    if not (wide or (shaped and array.dtype == np.uint8)):
        raise _Refusal(
            "an array must be [height, width] or [height, width, 1, 3 or 4] of uint8, or greyscale"
            " of uint16; move channels last, and scale floats to 0..255 and make them uint8"
        )
    _check_size((array.shape[1], array.shape[0]), max_pixels)
    return Image.fromarray(np.ascontiguousarray(_grey8(array) if wide else array))


def _to_rgb(image: Image.Image) -> Image.Image:
    with suppress(Exception):  # EXIF that cannot be read costs the turn, not the image
        turn = _UPRIGHT.get(image.getexif().get(0x0112, 1))
        image = image if turn is None else image.transpose(turn)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = Image.fromarray(_grey8(np.asarray(image)))
    if image.mode in ("La", "RGBa"):  # alpha already multiplied in
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    if image.has_transparency_data:
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        rgb = Image.new("RGB", image.size, "white")
        rgb.paste(rgba, mask=rgba)
    else:
        rgb = image.convert("RGB")  # a copy, when it is RGB already
    rgb.info = {}  # the orientation has been applied: nobody shall apply it twice
    return rgb


def _grey8(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Greyscale of any depth as 8 bits; `values` is [height, width].

    Integers count as 16-bit, floats as 0..1 or else as 0..255, where all of them fit; what fits
    nowhere is stretched from its own minimum to its own maximum. Infinities and NaN count as 0.
    """
    values = np.nan_to_num(values, nan=0, posinf=0, neginf=0)
    low, high = float(values.min()), float(values.max())
    for top in (65535,) if values.dtype.kind in "iu" else (1, 255):
        if low >= 0 and high <= top:
            low, high = 0.0, float(top)
            break
    grey = np.empty(values.shape, dtype=np.uint8)
    for row, line in enumerate(values):  # by row: an image as large as allowed, eightfold, is a lot
        grey[row] = np.rint((line.astype(np.float64) - low) * (255 / ((high - low) or 1)))
    return grey


# --- folders and zips ---------------------------------------------------------------------------


def _walk_folder(root: Path, todo: list[Path]) -> Iterator[ImageRef]:
    seen = {root.resolve()}  # each folder once, however many links lead to it
    while todo:
        path = todo.pop()
        if _hidden(path.name):
            continue
        parts = path.relative_to(root).parts
        try:
            if not path.is_dir():
                if _SUFFIX.fullmatch(path.suffix):
                    yield _ref(root, parts)
            elif (real := path.resolve()) not in seen:
                seen.add(real)
                todo += sorted(path.iterdir(), reverse=True)
        except OSError:
            yield _ref(root, parts)  # loading it says why: a folder must not vanish in silence


def _walk_zip(root: Path, members: Iterable[str]) -> Iterator[ImageRef]:
    entries = []
    for member in set(members):
        # Entries are read in place and never written out; still, keep their names below the root.
        path = PurePosixPath(re.sub(r"^([A-Za-z]:)?/*", "", member.replace("\\", "/")))
        if _SUFFIX.fullmatch(path.suffix) and not member.endswith("/"):
            entries.append((path.parts, member))
    for parts, member in sorted(entries):
        if not any(map(_hidden, parts)):
            yield _ref(root, parts, member)


def _hidden(part: str) -> bool:
    return part.startswith(".") or part == "__MACOSX"  # ".." too


def _ref(root: Path, parts: tuple[str, ...], member: str | None = None) -> ImageRef:
    label = parts[-2] if len(parts) > 1 else None
    split = parts[0] if len(parts) == 3 else None
    return ImageRef("/".join(parts), label, split, root, member)


def _read_member(root: Path, member: str) -> bytes:
    archive = _open_zip(root)
    entry = archive.getinfo(member)
    # Other methods inflate all that is given to them at once, with no bound.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _Refusal("its compression is not supported in a zip; zip it with deflate")
    if entry.flag_bits & 1:
        raise _Refusal("it is encrypted; zip it without a password")
    _check_bytes(entry.file_size)
    with archive.open(entry) as file:
        return _read_stream(file)


def _open_zip(root: Path) -> zipfile.ZipFile:
    status = root.stat()
    version = (status.st_mtime_ns, status.st_size, status.st_ino)
    # An open zip has one file position: neither threads nor forked processes may share it.
    return _cached_zip(root, version, os.getpid(), threading.get_ident())


@lru_cache(maxsize=32)
def _cached_zip(root: Path, version: object, process: int, thread: int) -> zipfile.ZipFile:
    return zipfile.ZipFile(root)
