"""Data sets by name: image folders, zips, and the Hugging Face hub.

A data set is first looked for in a folder, as `NAME.zip` or `NAME/` with the layout
`<split>/<class>/<file>`. Otherwise `sets.toml` has its name on the hub and its prompt templates.
"""

from __future__ import annotations

import hashlib
import io
import re
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from anytimecl.errors import ImageError, ModelError
from anytimecl.images import ImageRef, iter_images, load_image

TRAIN, TEST = "train", "test"


@dataclass(frozen=True)
class Split:
    """A split of a data set; images are read on demand."""

    key: str  # identifies images and their order; valid as a file name
    labels: Sequence[str]  # [image]
    load: Callable[[int], PIL.Image.Image]
    file: Callable[[int], bytes]  # the image as a file, for a codec that keeps images

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class DataSet:
    """A task: a data set with its label names and prompts."""

    name: str
    train: Split | None  # None: the set is only evaluated on
    test: Split
    templates: tuple[str, ...] | None = None  # prompts; None: the model's own
    known: frozenset[str] | None = None  # labels that are learned and evaluated; None: all

    @property
    def names(self) -> list[str]:
        """Every label of the task, including those without an example."""
        every = {*self.test.labels, *(self.train.labels if self.train else ())}
        return sorted(every if self.known is None else every & self.known)

    def kept(self, split: Split) -> list[int]:
        """Indices of the images of a split whose label is in the task."""
        return [i for i, y in enumerate(split.labels) if self.known is None or y in self.known]


@dataclass(frozen=True)
class Cut:
    """A task made of some classes of an archive with a single split.

    Classes are numbered in order of folder names; a leading number and everything after a comma are
    removed from their names.
    """

    archive: str
    split: str
    first: int  # class
    last: int  # exclusive
    test: int  # test images per class: the last by name


def by_code(given: DataSet) -> DataSet:
    """The same images with meaningless labels: item 000, item 001, in order of the names."""
    return renamed(given, {y: f"item {number:03}" for number, y in enumerate(given.names)})


def renamed(given: DataSet, names: Mapping[str, str]) -> DataSet:
    """The same images with other label names; labels outside the task keep theirs."""

    def own(split: Split) -> Split:
        return replace(split, labels=[names.get(label, label) for label in split.labels])

    known = given.known and frozenset(names.get(label, label) for label in given.known)
    return replace(given, train=given.train and own(given.train), test=own(given.test), known=known)


def open_set(
    name: str,
    folder: Path | None,
    cuts: Mapping[str, Cut] | None = None,
    *,
    published: bool = False,
) -> DataSet:
    """Load a data set from the folder if it exists there, else from the hub.

    With `published`, a set from the folder gets the class names and prompts in `sets.toml`; else
    its folders' names and the model's prompts.
    """
    if cuts and name in cuts:
        return from_cut(name, folder, cuts[name])
    for place in (folder / f"{name}.zip", folder / name) if folder else ():
        if place.exists():
            found = from_archive(name, place)
            listed = catalogue().get(name) if published else None
            return found if listed is None else as_published(found, listed)
    if name in catalogue():
        return from_hub(name, catalogue()[name])
    known = ", ".join(catalogue())
    raise ImageError(
        f"There is no data set {name!r}"
        + (f" in {folder} (neither {name}.zip nor a folder {name})" if folder else "")
        + f", and none of that name on the list of hub sets: {known}."
    )


def as_published(given: DataSet, listed: HubSet) -> DataSet:
    """A set from a folder with the classes, their names, and the prompts of its hub entry.

    Names in `sets.toml` are in the order of class numbers, which is that of the folders' names.
    """
    folders = [folder for folder in given.names if folder not in listed.without]
    names = listed.names or class_names(folders)
    if len(folders) != len(names):
        raise ImageError(
            f"The data set {given.name!r} has {len(folders)} classes, and {len(names)} "
            "names are listed for it: it is another set than the published one."
        )
    known = frozenset(folders) if listed.without else None
    published = replace(given, templates=listed.templates, known=known)
    return renamed(published, dict(zip(folders, names, strict=True)))


# ------------------------------------------------------------------------------ folders and zips


def from_archive(name: str, archive: Path) -> DataSet:
    """An image folder or zip; without a train split it is only evaluated on."""
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


def from_cut(name: str, folder: Path | None, cut: Cut) -> DataSet:
    """Some classes of an archive: the first images of each for training, the last for tests."""
    archive = (folder or Path()) / f"{cut.archive}.zip"
    if not archive.exists():
        raise ImageError(f"The data set {name!r} is cut from {archive}, which is not there.")
    classes: dict[str, list[ImageRef]] = {}
    for ref in iter_images(archive):
        if ref.split == cut.split and ref.label is not None:
            classes.setdefault(ref.label, []).append(ref)
    chosen = [classes[label] for label in sorted(classes)[cut.first : cut.last]]
    parts = {
        TRAIN: [ref for refs in chosen for ref in refs[: -cut.test]],
        TEST: [ref for refs in chosen for ref in refs[-cut.test :]],
    }
    train, test = (
        replace(split, labels=[_class_name(label) for label in split.labels])
        for split in (archive_split(archive, f"{name}-{p}", refs) for p, refs in parts.items())
    )
    return DataSet(name, train, test)


def _class_name(folder: str) -> str:
    """Name of a class from its folder.

    >>> _class_name("0000 tench, Tinca tinca")
    'tench'
    """
    return re.sub(r"^\d+ ", "", folder).split(",")[0]


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
    """Digest of names and contents: checksums in a zip, sizes in a folder."""
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
    """A data set on the hub, and how to read it."""

    hub: str  # repository, or a folder laid out like one
    config: str | None = None
    image: str = "image"  # columns
    label: str = "label"
    train: str | None = "train"  # splits
    test: str = "test"
    share: float | None = None  # training share of the images in `train`; the rest is the test set
    video: str = ""  # column with the video's id: only the middle frame of each is used
    without: tuple[str, ...] = ()  # classes to leave out, by the set's own name
    names: tuple[str, ...] = ()  # by class number; default: the set's own, underscores as spaces
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
    """Load a data set of the hub, cached by `datasets`."""
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
        own, numbers = rows.features[given.label].names, rows[given.label]
        names = given.names or class_names(own)
        kept = [i for i, number in enumerate(numbers) if own[number] not in given.without]
        if given.video:
            videos = rows[given.video]
            kept = middle_frames([videos[i] for i in kept], kept)
        marks = f"{given.hub} {given.config} {wanted} {rows._fingerprint}"
        if len(kept) < len(numbers):
            marks += f" {given.video} {given.without}"
        digest = hashlib.sha256(marks.encode()).hexdigest()[:12]

        def load(i: int) -> PIL.Image.Image:
            return load_image(rows[kept[i]][given.image])

        key = f"{name}-{wanted.replace('+', '-')}-{digest}"
        labels = [names[numbers[i]] for i in kept]
        return Split(key, labels, load, lambda i: as_jpeg(load(i)))

    if given.share is not None and given.train:
        train, test = shared_out(split(given.train), given.share)
        return DataSet(name, train, test, given.templates)
    return DataSet(
        name,
        split(given.train) if given.train else None,
        split(given.test),
        given.templates,
    )


def middle_frames(videos: Sequence[object], rows: Sequence[int]) -> list[int]:
    """Row of the middle frame of each video, in order.

    >>> middle_frames(["a", "a", "a", "b"], [4, 5, 6, 9])
    [5, 9]
    """
    every: dict[object, list[int]] = {}
    for video, row in zip(videos, rows, strict=True):
        every.setdefault(video, []).append(row)
    return [own[len(own) // 2] for own in every.values()]


def shared_out(whole: Split, share: float) -> tuple[Split, Split]:
    """A fixed random split into training and test images."""
    order = np.random.default_rng(0).permutation(len(whole)).tolist()
    cut = round(share * len(whole))
    train, test = (_some(whole, sorted(part)) for part in (order[:cut], order[cut:]))
    return replace(train, key=f"{whole.key}-first"), replace(test, key=f"{whole.key}-rest")


def _some(split: Split, rows: Sequence[int]) -> Split:
    return replace(
        split,
        labels=[split.labels[i] for i in rows],
        load=lambda i: split.load(rows[i]),
        file=lambda i: split.file(rows[i]),
    )


def as_jpeg(image: PIL.Image.Image) -> bytes:
    """Encode an image as JPEG, if its file is not available."""
    out = io.BytesIO()
    image.save(out, format="JPEG", quality=95)
    return out.getvalue()


def class_names(names: Sequence[str]) -> tuple[str, ...]:
    """Readable class names.

    >>> class_names(["aquarium_fish", "tench, Tinca tinca", "ApplyLipstick", "McLaren MP4-12C"])
    ('aquarium fish', 'tench', 'apply lipstick', 'McLaren MP4-12C')
    """
    first = [name.split(",")[0].replace("_", " ").strip() for name in names]
    return tuple(
        re.sub("(?<=[a-z])(?=[A-Z])", " ", name).lower() if _CAMEL.fullmatch(name) else name
        for name in first
    )


_CAMEL = re.compile("([A-Z][a-z]+){2,}")
