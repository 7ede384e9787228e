"""Sources of labelled images, divided into blocks that can be read independently."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

from anytimecl.errors import AnytimeError, ImageError
from anytimecl.images import MAX_BYTES, ImageRef, is_image_name, iter_images
from anytimecl.scale.encoding import tars

TRAIN = "train"


class Picture(NamedTuple):
    """An image read from a source."""

    name: str  # as its owner knows it
    label: str | None
    data: bytes | ImageError


class Block(NamedTuple):
    """Images that are read, encoded and written together."""

    images: int
    what: Any  # JSON: the source's references to them


class Source(Protocol):
    """Images with labels, in a deterministic order."""

    def blocks(self, size: int) -> Iterator[Block]:
        """List all images, without reading them."""
        ...

    def read(self, what: Any) -> Iterator[Picture]:
        """Read the images of a block."""
        ...


@dataclass(frozen=True)
class Reading:
    """Options for reading a source."""

    split: str | None = None  # of folders; None: train, where there is one
    shuffle: int | None = None  # the seed of a random order; None: as they lie
    insist: bool = False  # on that order, which Parquet files and tars do not have
    image_column: str = "image"  # of Parquet files
    label_column: str = "label"
    classes: tuple[str, ...] | None = None  # names of labels that are numbers


def open_source(address: str, reading: Reading) -> Source:
    """The source at a path or an address that fsspec knows (`s3://bucket/photos`).

    Raises
    ------
    AnytimeError
        If there is nothing to read, or more than one kind of thing.
    """
    path = Path(address)
    if "://" not in address and path.suffix.lower() == ".zip":
        return Folder(path, reading)
    fs, root = _store(address)
    names = _names(fs, root)
    kinds = {suffix: [n for n in names if n.endswith(suffix)] for suffix in (".parquet", ".tar")}
    found = [suffix for suffix, files in kinds.items() if files]
    if len(found) > 1:
        raise AnytimeError(f"{address} holds Parquet files and tars: name one kind, as in */*.tar.")
    if found and reading.shuffle is not None and reading.insist:
        raise AnytimeError(
            f"The {found[0]} files in {address} are read in their order: shuffle what made them."
        )
    if found == [".parquet"]:
        return ParquetFiles(address, kinds[".parquet"], reading)
    if found == [".tar"]:
        return Tars(address, kinds[".tar"], reading)
    return FileStore(address, reading) if "://" in address else Folder(path, reading)


def _store(address: str) -> tuple[Any, str]:
    """The fsspec file system of an address, and the path in it."""
    import fsspec

    try:
        fs, root = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise AnytimeError(f"{address} cannot be reached: {error}") from error
    return fs, str(root)


def _names(fs: Any, root: str) -> list[str]:
    """All files below a root or matching a pattern, sorted by path."""
    try:
        if any(letter in root for letter in "*?["):
            found = [name for name in fs.glob(root) if not fs.isdir(name)]
        elif fs.isfile(root):
            found = [root]
        else:
            found = fs.find(root)
    except (OSError, ValueError) as error:
        raise AnytimeError(f"{root} cannot be listed: {error}") from error
    if not found:
        raise AnytimeError(f"There is nothing in {root}.")
    return sorted(map(str, found), key=lambda name: PurePosixPath(name).parts)


def chosen_split(splits: Iterable[str | None], wanted: str | None, where: object) -> str | None:
    """The split to use; by default train, if there is one."""
    known = sorted({split for split in splits if split is not None})
    if wanted is None:
        return TRAIN if TRAIN in known else None
    if wanted not in known:
        told = f"It has {', '.join(known)}." if known else "It has none."
        raise AnytimeError(f"{where} has no split {wanted!r}. {told}")
    return wanted


class _Listed:
    """A source whose blocks are lists of references to single images."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def listed(self) -> list[list[Any]]:
        """References to all images, in order."""
        raise NotImplementedError

    def blocks(self, size: int) -> Iterator[Block]:
        """Blocks of `size` images."""
        rest = self.listed()
        if self._reading.shuffle is not None:
            random.Random(self._reading.shuffle).shuffle(rest)
        for start in range(0, len(rest), size):
            some = rest[start : start + size]
            yield Block(len(some), some)


class Folder(_Listed):
    """A folder or zip on this machine, as `anytimecl learn` reads it."""

    def __init__(self, path: Path, reading: Reading) -> None:
        super().__init__(reading)
        self._path = path

    def listed(self) -> list[list[Any]]:
        refs = list(iter_images(self._path))
        split = chosen_split((ref.split for ref in refs), self._reading.split, self._path)
        chosen = refs if split is None else [ref for ref in refs if ref.split == split]
        return [[ref.name, ref.label, ref.member] for ref in chosen]

    def read(self, what: Any) -> Iterator[Picture]:
        """Each file."""
        for name, label, member in what:
            ref = ImageRef(name, label, None, self._path, member)
            yield Picture(str(self._path / name), label, _read(ref.read))


class FileStore(_Listed):
    """A folder in a store that fsspec reaches."""

    def __init__(self, address: str, reading: Reading) -> None:
        super().__init__(reading)
        self._address = address
        self._fs, self._root = _store(address)

    def listed(self) -> list[list[Any]]:
        root = PurePosixPath(self._root)
        found = []
        for name in _names(self._fs, self._root):
            parts = PurePosixPath(name).relative_to(root).parts
            if is_image_name(name) and not any(part.startswith(".") for part in parts):
                label = parts[-2] if len(parts) > 1 else None
                found.append(([name, label], parts[0] if len(parts) == 3 else None))
        split = chosen_split((one for _, one in found), self._reading.split, self._address)
        return [what for what, its in found if split is None or its == split]

    def read(self, what: Any) -> Iterator[Picture]:
        """Each object."""
        for name, label in what:
            yield Picture(name, label, _read(lambda name=name: _bounded(self._fs, name)))


class ParquetFiles:
    """Rows of Parquet files: images as bytes, or as Hugging Face datasets keep them."""

    def __init__(self, address: str, files: Sequence[str], reading: Reading) -> None:
        self._fs, _ = _store(address)
        self._files, self._reading = files, reading

    def blocks(self, size: int) -> Iterator[Block]:
        """Rows of one file each."""
        for name in self._files:
            with self._fs.open(name) as raw, _parquet(raw, name) as file:
                self._check(file.schema_arrow.names, name)
                rows = file.metadata.num_rows
            for start in range(0, rows, size):
                stop = min(start + size, rows)
                yield Block(stop - start, [name, start, stop])

    def _check(self, columns: Sequence[str], name: str) -> None:
        for wanted in (self._reading.image_column, self._reading.label_column):
            if wanted not in columns:
                raise AnytimeError(
                    f"{name} has no column {wanted!r}: name it with --image-column or "
                    f"--label-column. It has: {', '.join(columns)}."
                )

    def read(self, what: Any) -> Iterator[Picture]:
        """The rows, read by the row groups they are in."""
        name, start, stop = what
        image, label = self._reading.image_column, self._reading.label_column
        with self._fs.open(name) as raw, _parquet(raw, name) as file:
            names = self._reading.classes or _class_names(file.schema_arrow, label)
            at = 0
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                low, high = max(start - at, 0), min(stop - at, rows)
                if low < high:
                    table = file.read_row_group(group, columns=[image, label])
                    for number, row in enumerate(table.slice(low, high - low).to_pylist()):
                        told = f"{name}, row {at + low + number}"
                        yield Picture(told, named(row[label], names), _image_in(row[image], told))
                at += rows


class Tars:
    """WebDataset tars: files of one name with different endings are one sample."""

    def __init__(self, address: str, files: Sequence[str], reading: Reading) -> None:
        self._fs, _ = _store(address)
        self._files, self._reading = files, reading

    def blocks(self, size: int) -> Iterator[Block]:
        """Samples of one tar each; only the tar's own headers are read."""
        for name in self._files:
            with self._fs.open(name) as raw:
                starts = iter(tars.starts(raw, name))
                while some := list(islice(starts, size)):
                    yield Block(len(some), [name, some[0], len(some)])

    def read(self, what: Any) -> Iterator[Picture]:
        """The samples from a byte of the tar on."""
        name, start, count = what
        with self._fs.open(name) as raw:
            raw.seek(start)
            for sample in islice(tars.samples(raw, name), count):
                label = named(sample.label, self._reading.classes)
                yield Picture(f"{name}, {sample.key}", label, sample.data)


def named(label: object, names: Sequence[str] | None) -> str | None:
    """A label as text; a number is the place of its name, where names are known.

    >>> named(1, ("cat", "dog")), named("fox", None), named(None, None), named(7, None)
    ('dog', 'fox', None, '7')
    >>> named(b"fox", None)  # Parquet files of some makers have no texts
    'fox'
    """
    if label is None:
        return None
    if isinstance(label, bytes):
        label = label.decode("utf-8", "replace")
    if names is not None and str(label).lstrip("-").isdigit():
        place = int(str(label))
        return names[place] if 0 <= place < len(names) else None
    return str(label)


def _class_names(schema: Any, column: str) -> tuple[str, ...] | None:
    """The names that a Hugging Face dataset gives to its numbers."""
    try:
        told = json.loads(schema.metadata[b"huggingface"])["info"]["features"][column]["names"]
        return tuple(map(str, told))
    except (KeyError, TypeError, ValueError):
        return None


def _image_in(value: Any, name: str) -> bytes | ImageError:
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes):
        return ImageError(f"{name} holds no bytes of an image.")
    return data


def _parquet(raw: Any, name: str) -> Any:
    from anytimecl.memory.exporting import pyarrow_parquet

    try:
        return pyarrow_parquet().ParquetFile(raw)
    except (OSError, ValueError) as error:
        raise AnytimeError(f"{name} cannot be read as Parquet: {error}") from error


def _bounded(fs: Any, name: str) -> bytes:
    try:
        if (size := fs.size(name)) is not None and size > MAX_BYTES:
            raise ImageError(f"{name} has {size:,} bytes, and an image may have {MAX_BYTES:,}.")
        return bytes(fs.cat_file(name))
    except (FileNotFoundError, PermissionError) as error:
        raise ImageError(f"{name} cannot be read: {error}") from error
    except OSError as error:  # of the store, which says nothing of the image
        told = "What is done is kept: the same command goes on when it can be."
        raise AnytimeError(f"{name} cannot be read now: {error}. {told}") from error


def _read(read: Any) -> bytes | ImageError:
    try:
        return bytes(read())
    except ImageError as error:
        return ImageError(str(error))
