"""Listing of the images in a folder or zip."""

from __future__ import annotations

import os
import re
import stat
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from PIL import Image

from anytimecl.errors import ImageError
from anytimecl.images._bytes import read_path
from anytimecl.images._decode import decode
from anytimecl.images._errors import Refusal
from anytimecl.images._load import DEFAULT_MAX_PIXELS, describe, errors_named
from anytimecl.images._pixels import to_rgb
from anytimecl.images._zips import open_zip, read_member

_SUFFIX = re.compile(
    r"\.(jpe?g|jpe|jfif|a?png|webp|gif|bmp|dib|tiff?|p[pgbn]m|pfm|avifs?|jp[2fxc]|j2[kc]|hei[cf])",
    re.IGNORECASE,
)


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

    def read(self) -> bytes:
        """The bytes of the file."""
        with errors_named(describe(self.root / self.name)):
            return self._bytes()

    def load(self, *, max_pixels: int = DEFAULT_MAX_PIXELS) -> Image.Image:
        """Read the image as `load_image` does."""
        with errors_named(describe(self.root / self.name)):
            return to_rgb(decode(self._bytes(), max_pixels))

    def _bytes(self) -> bytes:
        if self.member is None:
            return read_path(os.fspath(self.root / self.name))
        return read_member(self.root, self.member)


def is_image_name(name: str) -> bool:
    """Whether a file name has the suffix of an image.

    >>> is_image_name("train/cat/1.PNG"), is_image_name("notes.txt")
    (True, False)
    """
    return _SUFFIX.fullmatch(PurePosixPath(name).suffix) is not None


def iter_images(
    folder_or_zip: str | os.PathLike[str], *, passed: Counter[str] | None = None
) -> Iterator[ImageRef]:
    """References to every image in a folder or zip, recursively, ordered by path.

    Layouts: `<file>`, `<class>/<file>`, `<split>/<class>/<file>`; deeper, the folder that holds the
    file is the label. Hidden files and files without an image suffix are passed over; `passed`
    counts them by reason.

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
    passed = Counter() if passed is None else passed
    with errors_named(describe(root), what="images of"):
        if stat.S_ISDIR(root.stat().st_mode):
            return _walk_folder(root, sorted(root.iterdir(), reverse=True), passed)
        if not (root.is_file() and zipfile.is_zipfile(root)):
            if root.suffix.lower() == ".zip":
                raise Refusal("it is not a whole zip; export or download it again")
            raise Refusal("it is neither a folder nor a zip; read one image with load_image")
        return _walk_zip(root, open_zip(root).namelist(), passed)


def load_many(refs: Iterable[ImageRef]) -> Iterator[tuple[ImageRef, Image.Image | ImageError]]:
    """Load each reference; yields an ImageError for those that cannot be read.

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


def _walk_folder(root: Path, todo: list[Path], passed: Counter[str]) -> Iterator[ImageRef]:
    seen = {root.resolve()}  # each folder once, however many links lead to it
    while todo:
        path = todo.pop()
        if _hidden(path.name):
            passed["hidden"] += 1
            continue
        parts = path.relative_to(root).parts
        try:
            if not path.is_dir():
                if _SUFFIX.fullmatch(path.suffix):
                    yield _ref(root, parts)
                else:
                    passed[_no_image(path.suffix)] += 1
            elif (real := path.resolve()) not in seen:
                seen.add(real)
                todo += sorted(path.iterdir(), reverse=True)
        except OSError:
            yield _ref(root, parts)  # loading it raises the reason


def _no_image(suffix: str) -> str:
    return f"no image ({suffix.lower()})" if suffix else "no image (no suffix)"


def _walk_zip(root: Path, members: Iterable[str], passed: Counter[str]) -> Iterator[ImageRef]:
    entries = []
    for member in set(members):
        # Entries are read in place and never written out; still, keep their names below the root.
        path = PurePosixPath(re.sub(r"^([A-Za-z]:)?/*", "", member.replace("\\", "/")))
        if member.endswith("/"):
            continue
        if _SUFFIX.fullmatch(path.suffix):
            entries.append((path.parts, member))
        else:
            passed[_no_image(path.suffix)] += 1
    for parts, member in sorted(entries):
        if any(map(_hidden, parts)):
            passed["hidden"] += 1
        else:
            yield _ref(root, parts, member)


def _hidden(part: str) -> bool:
    return part.startswith(".") or part == "__MACOSX"  # ".." too


def _ref(root: Path, parts: tuple[str, ...], member: str | None = None) -> ImageRef:
    label = parts[-2] if len(parts) > 1 else None
    split = parts[0] if len(parts) == 3 else None
    return ImageRef("/".join(parts), label, split, root, member)
