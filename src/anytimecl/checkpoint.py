"""Checkpoints: safetensors and a JSON manifest, replaced atomically; no pickle."""

from __future__ import annotations

import json
import os
import shutil
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from anytimecl.errors import CheckpointError
from anytimecl.files import sync

VERSION = 3
MANIFEST, WEIGHTS = "manifest.json", "learner.safetensors"
TRIES = 20  # attempts to read while the owner saves
PAUSE = 0.01  # seconds between attempts


@dataclass(frozen=True)
class Checkpoint:
    """The model's state at one event of the journal."""

    event: int
    fingerprint: str  # of the backbone
    config: dict[str, Any]
    tensors: Mapping[str, Tensor]
    state: dict[str, Any]  # accuracies, sampler, labels and more, as JSON values


def save(checkpoint: Checkpoint, folder: Path) -> None:
    """Write a checkpoint as `folder`, atomically replacing an older one."""
    folder = _followed(folder)
    draft = _draft(folder)
    try:
        shutil.rmtree(draft, ignore_errors=True)  # left by a crash
        draft.mkdir(parents=True)
        tensors = {name: value.contiguous() for name, value in checkpoint.tensors.items()}
        save_file(tensors, draft / WEIGHTS)
        manifest = {
            "format": "anytimecl checkpoint",
            "version": VERSION,
            "event": checkpoint.event,
            "fingerprint": checkpoint.fingerprint,
            "config": checkpoint.config,
            "state": checkpoint.state,
        }
        manifest["crc32"] = _checksum(draft / WEIGHTS, manifest)
        (draft / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        for path in (draft / WEIGHTS, draft / MANIFEST, draft):
            sync(path)
        _swap(draft, folder)
    except (OSError, SafetensorError) as error:  # SafetensorError: a full disk
        raise CheckpointError(
            f"The checkpoint {folder} could not be written ({error}). The older one, if any, is "
            "as it was, and every example is in the memory: make room and go on."
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def load(folder: Path) -> Checkpoint | None:
    """Load the checkpoint, None if there is none; raises CheckpointError if it is damaged."""
    folder = _followed(folder)
    try:
        _finish_swap(folder)
    except OSError as error:
        raise CheckpointError(f"{_old(folder)} cannot be renamed to {folder}: {error}.") from error
    return _read(folder) if folder.exists() else None


def load_beside_owner(folder: Path) -> Checkpoint | None:
    """Like `load`, for a read-only process, while the owner may be saving."""
    folder = _followed(folder)
    for attempt in range(TRIES):
        place = folder if folder.exists() else _old(folder)
        if place.exists():
            try:
                return _read(place)
            except CheckpointError:  # it may have been replaced during reading
                if attempt == TRIES - 1:
                    raise
        elif not _draft(folder).exists() and not folder.exists():
            return None  # and no swap is in progress
        time.sleep(PAUSE)
    return None


def _read(folder: Path) -> Checkpoint:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest.get("format") != "anytimecl checkpoint":
            raise CheckpointError(f"{folder} is not a checkpoint of anytimecl.")
        if manifest["version"] != VERSION:
            raise CheckpointError(
                f"{folder} has version {manifest['version']} and this anytimecl reads {VERSION}. "
                "Use the anytimecl that wrote it, or delete it: the memory holds every example, "
                "and learning is repeated from it."
            )
        if manifest.pop("crc32") != _checksum(folder / WEIGHTS, manifest):
            raise CheckpointError(
                f"{folder} is damaged. Delete it: learning is repeated from the memory."
            )
        return Checkpoint(
            event=int(manifest["event"]),
            fingerprint=manifest["fingerprint"],
            config=manifest["config"],
            tensors=load_file(folder / WEIGHTS),
            state=manifest["state"],
        )
    except CheckpointError:
        raise
    # A file that is replaced during reading raises RuntimeError too: "unable to open file".
    except (OSError, ValueError, KeyError, AttributeError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} is not a whole checkpoint ({error}). Delete it: learning is repeated from "
            "the memory."
        ) from error


def _swap(draft: Path, folder: Path) -> None:
    """Replace the folder by the draft. Two renames: `load` completes an interrupted swap."""
    old = _old(folder)
    _finish_swap(folder)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    draft.rename(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _finish_swap(folder: Path) -> None:
    if not folder.exists() and _old(folder).exists():
        _old(folder).rename(folder)


def _followed(folder: Path) -> Path:
    """Where the folder is, if a link puts it elsewhere: drafts and renames are beside it."""
    return Path(os.path.realpath(folder))


def _draft(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-new")


def _old(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-old")


def _checksum(path: Path, manifest: Mapping[str, Any]) -> int:
    """CRC-32 of the manifest and the weights."""
    value = zlib.crc32(json.dumps(manifest, sort_keys=True).encode())
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            value = zlib.crc32(chunk, value)
    return value
