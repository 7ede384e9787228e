"""WebDataset tars: consecutive members that differ in their endings alone are one sample."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from itertools import groupby
from typing import IO, NamedTuple

from anytimecl.errors import AnytimeError, ImageError
from anytimecl.images import MAX_BYTES, is_image_name

LABELS = ("cls", "txt", "label")  # endings of files that are a label, as text
TEXT_BYTES = 1 << 16  # a label or a sample's JSON has no more


class Sample(NamedTuple):
    """One image and what is said of it."""

    key: str
    label: str | None
    data: bytes | ImageError


def starts(raw: IO[bytes], name: str) -> Iterator[int]:
    """The byte at which each sample begins."""
    with _opened(raw, name) as tar:
        for _, members in groupby(_files(tar, name), key=_key):
            yield next(members).offset


def samples(raw: IO[bytes], name: str) -> Iterator[Sample]:
    """Every sample from where the file is now."""
    with _opened(raw, name) as tar:
        for key, members in groupby(_files(tar, name), key=_key):
            yield _sample(tar, key, list(members))


def _opened(raw: IO[bytes], name: str) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=raw, mode="r:")
    except tarfile.TarError as error:
        raise AnytimeError(f"{name} is no tar, or a compressed one: {error}.") from error


def _files(tar: tarfile.TarFile, name: str) -> Iterator[tarfile.TarInfo]:
    try:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # a large tar's list would fill the RAM
            if member.isfile():
                yield member
    except tarfile.TarError as error:
        raise AnytimeError(f"{name} is damaged: {error}.") from error


def _key(member: tarfile.TarInfo) -> str:
    """The name up to the first dot of its last part, as WebDataset has it."""
    folder, slash, last = member.name.rpartition("/")
    return f"{folder}{slash}{last.partition('.')[0]}"


def _sample(tar: tarfile.TarFile, key: str, members: list[tarfile.TarInfo]) -> Sample:
    label: str | None = None
    data: bytes | ImageError = ImageError(f"The sample {key!r} has no image.")
    for member in members:
        ending = member.name.rpartition("/")[2].partition(".")[2].lower()
        if ending in LABELS and label is None:
            label = _text(tar, member)
        elif ending == "json" and label is None:
            label = _in_json(_text(tar, member))
        elif is_image_name(member.name):
            data = _bytes(tar, member, MAX_BYTES)
    return Sample(key, label, data)


def _text(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str | None:
    data = _bytes(tar, member, TEXT_BYTES)
    return None if isinstance(data, ImageError) else data.decode("utf-8", "replace").strip()


def _in_json(text: str | None) -> str | None:
    try:
        told = json.loads(text or "")["label"]
    except (ValueError, KeyError, TypeError):
        return None
    return None if told is None else str(told)


def _bytes(tar: tarfile.TarFile, member: tarfile.TarInfo, most: int) -> bytes | ImageError:
    if member.size > most:
        return ImageError(f"{member.name!r} has {member.size:,} bytes; {most:,} are the most.")
    file = tar.extractfile(member)
    return ImageError(f"{member.name!r} cannot be read.") if file is None else file.read()
