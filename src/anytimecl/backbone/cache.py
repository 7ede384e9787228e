"""Listing and deletion of cached models, all of which can be downloaded again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from anytimecl.backbone import card_of, embedded, hub_name, wheel
from anytimecl.backbone.embedded import assemble
from anytimecl.backbone.text import cache_folder
from anytimecl.errors import ModelError


class Kept(NamedTuple):
    """A file or folder in the cache."""

    path: Path
    what: str
    bytes: int


def kept() -> list[Kept]:
    """Every cached file or folder of a model, the largest first."""
    root = cache_folder()
    kinds = {"models": "a model", "wheels": "a wheel", "priors": "a prior"}
    found = [
        Kept(path, what, size_of(path))
        for folder, what in kinds.items()
        for path in sorted((root / folder).glob("*"))
        if path.suffix != ".lock"
    ]
    labels = root / "labels.sqlite3"
    if labels.is_file():
        found.append(Kept(labels, "vectors of labels", size_of(labels)))
    return sorted(found, key=lambda one: -one.bytes)


def remove(name: str) -> int:
    """Delete a model, by its name for `load`; returns the bytes freed."""
    card = card_of(name)
    if card.loader == "embedded":
        folder = embedded.folder()
    elif card.loader == "wheel":
        folder = wheel.folder(card.source)
    elif card.loader == "hub" and not Path(card.source).is_dir():
        return _remove_from_hub(card.source)
    else:
        raise ModelError(f"{name} lies outside the cache: what is yours is not deleted here.")
    if not folder.is_dir():
        raise ModelError(f"{card.name} is not in the cache (looked for {folder}).")
    return _delete([folder])


def prune() -> tuple[list[Path], int]:
    """Delete wheels of converted models and incomplete files; returns them and the bytes freed."""
    gone = [path for path in _idle() if path.exists()]
    if embedded.is_ready() and (older := assemble.superseded(embedded.folder())):
        assemble.forget_superseded(embedded.folder())
        gone += older
    return gone, _delete(gone)


def drop_wheels() -> int:
    """Delete the wheels of the embedded model if it was converted; returns the bytes freed."""
    return _delete(list(_wheels_used())) if embedded.is_ready() else 0


def size_of(path: Path) -> int:
    """Size of a file, or of all files in a folder, in bytes."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def _idle() -> Iterator[Path]:
    root = cache_folder()
    for folder in ("models", "wheels"):
        yield from sorted((root / folder).glob("*.partial"))
        yield from sorted((root / folder).glob(".*.part"))
    if embedded.is_ready():
        yield from _wheels_used()
    for one in embedded.fetch.catalogue()[1].values():
        if one.optional and (wheel.folder(one.name) / "config.json").is_file():
            yield embedded.wheel_folder() / one.file


def _wheels_used() -> Iterator[Path]:
    for one in embedded.fetch.catalogue()[1].values():
        if not one.optional:
            yield embedded.wheel_folder() / one.file


def _remove_from_hub(source: str) -> int:
    """Delete a repository, or one revision, from the cache of huggingface_hub."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    asked = hub_name.parse(source)
    assert asked is not None
    try:
        cached = scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        raise ModelError(f"{asked} is not in the Hugging Face cache: there is none.") from None
    commits = [
        revision.commit_hash
        for one in cached.repos
        if one.repo_type == "model" and one.repo_id == asked.repository
        for revision in one.revisions
        if asked.revision in (None, revision.commit_hash, *revision.refs)
    ]
    if not commits:
        raise ModelError(f"{asked} is not in the Hugging Face cache.")
    strategy = cached.delete_revisions(*commits)
    strategy.execute()
    return int(strategy.expected_freed_size)


def _delete(paths: list[Path]) -> int:
    freed = 0
    for path in paths:
        freed += size_of(path)
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise ModelError(f"{path} cannot be deleted: {error.strerror}.") from error
    return freed
