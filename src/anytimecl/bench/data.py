"""Labelled images by the name of their data set: image folders, zips of them, and the hub.

A data set is looked for in a folder first, as `NAME.zip` or `NAME/`, laid out as
`<split>/<class>/<file>`. Otherwise `sets.toml` says which set of the Hugging Face hub it is, and
which prompts its labels are put into.
"""

from __future__ import annotations

import hashlib
import io
import re
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import PIL.Image

from anytimecl.errors import ImageError, ModelError
from anytimecl.images import ImageRef, iter_images, load_image

TRAIN, TEST = "train", "test"


@dataclass(frozen=True)
class Split:
    """Some images of a data set, none of them read yet."""

    key: str  # the same for the same images in the same order, and fit to be a file name
    labels: Sequence[str]  # [image]
    load: Callable[[int], PIL.Image.Image]
    file: Callable[[int], bytes]  # the image as a file, for a codec that keeps images

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class DataSet:
    """A task."""

    name: str
    train: Split | None  # None: the set is only ever asked about
    test: Split
    templates: tuple[str, ...] | None = None  # prompts; None: the model's own

    @property
    def names(self) -> list[str]:
        """Every label of the task, those without an example among them."""
        return sorted({*self.test.labels, *(self.train.labels if self.train else ())})


def open_set(name: str, folder: Path | None) -> DataSet:
    """The data set of that name, from the folder if it is there, else from the hub."""
    for place in (folder / f"{name}.zip", folder / name) if folder else ():
        if place.exists():
            return from_archive(name, place)
    if name in catalogue():
        return from_hub(name, catalogue()[name])
    known = ", ".join(catalogue())
    raise ImageError(
        f"There is no data set {name!r}"
        + (f" in {folder} (neither {name}.zip nor a folder {name})" if folder else "")
        + f", and none of that name on the list of hub sets: {known}."
    )


# ------------------------------------------------------------------------------ folders and zips


def from_archive(name: str, archive: Path) -> DataSet:
    """An image folder or zip; without a train split it is a set to ask about only."""
    parts: dict[str, list[ImageRef]] = {TRAIN: [], TEST: []}
    for ref in iter_images(archive):
        if ref.split in parts and ref.label is not None:
            parts[ref.split].append(ref)
    if not parts[TEST]:
        raise ImageError(
            f"{archive} has no test images: they are looked for as test/<class>/<file>."
        )
    train, test = (archive_split(archive, split, refs) for split, refs in parts.items())
    return DataSet(name, train if len(train) else None, test)


def archive_split(archive: Path, split: str, refs: Sequence[ImageRef]) -> Split:
    """Images of one split of a folder or zip."""
    labels = [str(ref.label) for ref in refs]
    key = f"{archive.stem}-{split}-{_digest(archive, refs)}"

    def file(i: int) -> bytes:
        if refs[i].member is None:
            return (archive / refs[i].name).read_bytes()
        with zipfile.ZipFile(archive) as opened:
            return opened.read(str(refs[i].member))

    return Split(key, labels, lambda i: refs[i].load(), file)


def _digest(archive: Path, refs: Sequence[ImageRef]) -> str:
    """Of names and contents: checksums where a zip has them, sizes in a folder."""
    if archive.is_dir():
        marks = {ref.name: (archive / ref.name).stat().st_size for ref in refs}
    else:
        with zipfile.ZipFile(archive) as file:
            checksums = {info.filename: info.CRC for info in file.infolist()}
        marks = {ref.name: checksums[str(ref.member)] for ref in refs}
    told = "\n".join(f"{name} {mark}" for name, mark in marks.items())
    return hashlib.sha256(told.encode()).hexdigest()[:12]


# ---------------------------------------------------------------------------------------- the hub


@dataclass(frozen=True)
class HubSet:
    """Where a data set is on the hub, and how it is read."""

    hub: str  # repository, or a folder laid out like one
    config: str | None = None
    image: str = "image"  # columns
    label: str = "label"
    train: str | None = "train"  # splits
    test: str = "test"
    names: tuple[str, ...] = ()  # by class number; none: the set's own, underscores as blanks
    templates: tuple[str, ...] = ("a photo of a {}.",)


@cache
def catalogue() -> dict[str, HubSet]:
    """The paper's eleven data sets and those of MTIL."""
    text = (resources.files(__package__) / "sets.toml").read_text(encoding="utf-8")
    return {name: _hub_set(values) for name, values in tomllib.loads(text).items()}


def _hub_set(values: dict[str, Any]) -> HubSet:
    every: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return HubSet(**every)


def from_hub(name: str, given: HubSet) -> DataSet:
    """A set of the hub; `datasets` fetches it once and keeps it."""
    try:
        import datasets
    except ImportError as error:
        raise ModelError(
            f"The data set {name!r} comes from the hub, and the package `datasets` is not "
            "installed: pip install -c constraints.txt '.[bench]'"
        ) from error

    def split(wanted: str) -> Split:
        try:
            rows = datasets.load_dataset(given.hub, given.config, split=wanted)
        except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            raise ImageError(
                f"The split {wanted!r} of {name!r} ({given.hub}) cannot be had: {error}"
            ) from error
        names = given.names or class_names(rows.features[given.label].names)
        labels = [names[number] for number in rows[given.label]]
        marks = f"{given.hub} {given.config} {wanted} {rows._fingerprint}"
        digest = hashlib.sha256(marks.encode()).hexdigest()[:12]

        def load(i: int) -> PIL.Image.Image:
            return load_image(rows[i][given.image])

        return Split(f"{name}-{wanted}-{digest}", labels, load, lambda i: as_jpeg(load(i)))

    return DataSet(
        name,
        split(given.train) if given.train else None,
        split(given.test),
        given.templates,
    )


def as_jpeg(image: PIL.Image.Image) -> bytes:
    """An image as a file, where its own is not to be had."""
    out = io.BytesIO()
    image.save(out, format="JPEG", quality=95)
    return out.getvalue()


def class_names(names: Sequence[str]) -> tuple[str, ...]:
    """Class names as people write them.

    >>> class_names(["aquarium_fish", "tench, Tinca tinca", "ApplyLipstick", "McLaren MP4-12C"])
    ('aquarium fish', 'tench', 'apply lipstick', 'McLaren MP4-12C')
    """
    first = [name.split(",")[0].replace("_", " ").strip() for name in names]
    return tuple(
        re.sub("(?<=[a-z])(?=[A-Z])", " ", name).lower() if _CAMEL.fullmatch(name) else name
        for name in first
    )


_CAMEL = re.compile("([A-Z][a-z]+){2,}")
