"""Checkpoints: safetensors and a manifest, whole or not there at all, never a pickle."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from anytimecl.errors import CheckpointError

VERSION = 1
MANIFEST, WEIGHTS = "manifest.json", "learner.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A learner, as of one event of its memory's journal."""

    event: int
    fingerprint: str  # of the backbone
    config: dict[str, Any]
    tensors: Mapping[str, Tensor]
    state: dict[str, Any]  # estimates, sampler, labels: plain JSON values


def save(checkpoint: Checkpoint, folder: Path) -> None:
    """Write it as `folder`, in place of an older one, so that a crash leaves one or the other."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        tensors = {name: value.contiguous() for name, value in checkpoint.tensors.items()}
        save_file(tensors, draft / WEIGHTS)
        manifest = {
            "format": "anytimecl checkpoint",
            "version": VERSION,
            "event": checkpoint.event,
            "fingerprint": checkpoint.fingerprint,
            "config": checkpoint.config,
            "crc32": _checksum(draft / WEIGHTS),
            "state": checkpoint.state,
        }
        (draft / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        for name in (WEIGHTS, MANIFEST):
            _sync(draft / name)
        _swap(draft, folder)
    except OSError as error:
        raise CheckpointError(
            f"The checkpoint {folder} could not be written ({error}). The older one, if any, is "
            "as it was, and every example is in the memory: make room and go on."
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def load(folder: Path) -> Checkpoint | None:
    """The checkpoint there, or None; one that is damaged or foreign is refused."""
    _finish_swap(folder)
    if not folder.exists():
        return None
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
        if _checksum(folder / WEIGHTS) != manifest["crc32"]:
            raise CheckpointError(
                f"{folder} is damaged. Delete it: learning is repeated from the memory."
            )
        return Checkpoint(
            event=manifest["event"],
            fingerprint=manifest["fingerprint"],
            config=manifest["config"],
            tensors=load_file(folder / WEIGHTS),
            state=manifest["state"],
        )
    except (OSError, ValueError, KeyError, AttributeError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} is not a whole checkpoint ({error}). Delete it: learning is repeated from "
            "the memory."
        ) from error


def _swap(draft: Path, folder: Path) -> None:
    """Put the draft in the folder's place. Two renames: `load` finishes a swap cut between."""
    old = _old(folder)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    draft.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _finish_swap(folder: Path) -> None:
    if not folder.exists() and _old(folder).exists():
        _old(folder).rename(folder)


def _old(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-old")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            value = zlib.crc32(chunk, value)
    return value
