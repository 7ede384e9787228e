"""Training examples compressed by a codec: encoded once, cached on disk, decoded on the device.

Encoding runs on CPUs, one image at a time, in several processes.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.backbone.spec import Spec
from anytimecl.backbone.text import cache_folder
from anytimecl.codec import Codec
from anytimecl.errors import ModelError
from anytimecl.registry import Named
from anytimecl.tail import TailInput, Tokens
from anytimecl_lab._progress import track
from anytimecl_lab.codecs import CODECS, FittedCodec, make_codec
from anytimecl_lab.examples import CHUNK, Examples, Streamed, TokenArray, bytes_of, half
from anytimecl_lab.features import trunk_key

SOME = 64  # images per task of a process
FEW = 256  # up to this many images, starting processes does not pay


@dataclass(eq=False)
class Coded:
    """Records of a run's training examples, in its order."""

    codec: Codec
    spec: Spec
    device: torch.device
    records: list[bytes]

    @property
    def bytes(self) -> float:
        """Mean size of a record."""
        return float(np.mean([len(record) for record in self.records]))

    def examples(self, room: float) -> Examples:
        """Decoded, in half precision; streamed if they take more than `room` bytes.

        Low-rank tokens are small, and always decoded at once.
        """
        first = self._decoded([0])
        low_rank = isinstance(first, TailInput) and first.tokens.coefficients is not None
        if not low_rank and len(self.records) * bytes_of(first) > room:
            return Streamed(len(self.records), self._decoded)
        every = range(len(self.records))
        return joined([self._decoded(every[at : at + CHUNK]) for at in every[::CHUNK]])

    def _decoded(self, indices: Sequence[int]) -> Tensor | TailInput:
        records = [self.records[i] for i in indices]
        return half(self.codec.decode(records, self.device), self.spec)


def component_codec(
    choice: str | Named, spec: Spec, tail: dict[str, Tensor], components: int | None
) -> Codec:
    """A codec, with another number of components per image if given."""
    named = CODECS.named(choice)
    if components is not None:
        # No budget: the number of components limits the record.
        budget = {"budget": 1_000_000} if named.name == "attention-pca" else {}
        named = Named(named.name, {**budget, **named.options, "components": components})
    return make_codec(named, spec, tail)


def coded(
    backbone: Backbone,
    choice: str | Named,
    components: int | None,
    parts: Sequence[tuple[str, Sequence[int]]],  # key of a split, and which of its images
    tokens: Sequence[TokenArray],  # of each whole split
) -> Coded:
    """Records of some images of some splits, encoded unless cached on disk."""
    name = CODECS.named(choice).name
    if name == "image":
        raise ModelError("An image codec keeps images, not tokens: its accuracy is tokens-fp16's.")
    folder = cache_folder() / "records" / trunk_key(backbone)
    folder.mkdir(parents=True, exist_ok=True)
    codec = component_codec(choice, backbone.spec, _on_cpu(backbone), components)
    file = folder / f"{name}-{_key(codec, parts, tokens)}.records"
    fit = file.with_suffix(".safetensors")
    if isinstance(codec, FittedCodec):
        if not (file.exists() and fit.exists()):
            codec.fit(_batches(parts, tokens))
            codec.save(fit)
        codec.load(fit)
    if not file.exists():
        write_records(file, _encoded(choice, codec, components, fit, backbone, parts, tokens))
    return Coded(codec, backbone.spec, backbone.device, read_records(file))


def _on_cpu(backbone: Backbone) -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in backbone.tail.items()}


def _key(
    codec: Codec, parts: Sequence[tuple[str, Sequence[int]]], tokens: Sequence[TokenArray]
) -> str:
    """Digest of the images and of the codec: its settings, and its record of the first image."""
    told = [repr(getattr(codec, "config", None)), *(f"{key} {tuple(some)}" for key, some in parts)]
    if not isinstance(codec, FittedCodec):
        first = torch.from_numpy(np.array(tokens[0][parts[0][1][0]])).float()
        told.append(codec.encode(first).hex())
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]


def _batches(
    parts: Sequence[tuple[str, Sequence[int]]], tokens: Sequence[TokenArray]
) -> Iterator[Tensor]:
    for (_, chosen), array in zip(parts, tokens, strict=True):
        for start in range(0, len(chosen), CHUNK):
            yield torch.from_numpy(np.array(array[list(chosen[start : start + CHUNK])])).float()


# ------------------------------------------------------------------------------- in many processes


class _Work(NamedTuple):
    """Images to encode; small, since it is sent between processes."""

    choice: str | Named
    spec: Spec
    components: int | None
    tail: str  # files
    fit: str
    tokens: str
    chosen: Sequence[int]


def _encoded(
    choice: str | Named,
    codec: Codec,
    components: int | None,
    fit: Path,
    backbone: Backbone,
    parts: Sequence[tuple[str, Sequence[int]]],
    tokens: Sequence[TokenArray],
) -> list[bytes]:
    if sum(len(chosen) for _, chosen in parts) <= FEW:
        images = (image for batch in _batches(parts, tokens) for image in batch)
        return [codec.encode(image) for image in images]
    tail = fit.with_name("tail.safetensors")
    save_file({name: value.contiguous() for name, value in _on_cpu(backbone).items()}, tail)
    about = (choice, backbone.spec, components, str(tail), str(fit))
    work = [
        _Work(*about, str(array.filename), chosen[start : start + SOME])  # type: ignore[attr-defined]
        for (_, chosen), array in zip(parts, tokens, strict=True)
        for start in range(0, len(chosen), SOME)
    ]
    found = track(processes().map(_encode_some, work), f"encoding {fit.stem}")
    return [record for records in found for record in records]


def begin_process() -> None:
    """Make the first steps of a pool's process: one thread, and an end with the process's parent.

    If the parent is killed, a process would finish its work, and then keep its memory and wait.
    """
    torch.set_num_threads(1)
    parent = parent_process()

    def end_with_parent() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=end_with_parent, daemon=True).start()


@cache
def processes() -> ProcessPoolExecutor:
    """A pool with one process per core, shared by all codecs since starting them is slow."""
    return ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), begin_process)


def end_processes() -> None:
    """Shut down the pool, to free its memory."""
    if processes.cache_info().currsize:
        processes().shutdown()
        processes.cache_clear()


def _encode_some(work: _Work) -> list[bytes]:
    codec = _codec(*work[:5])
    tokens = np.load(work.tokens, mmap_mode="r")
    return [codec.encode(torch.from_numpy(np.array(tokens[i])).float()) for i in work.chosen]


@lru_cache(maxsize=1)
def _codec(choice: str | Named, spec: Spec, components: int | None, tail: str, fit: str) -> Codec:
    codec = component_codec(choice, spec, load_file(tail), components)
    if isinstance(codec, FittedCodec):
        codec.load(fit)
    return codec


# ---------------------------------------------------------------------------------------- on disk


def write_records(file: Path, records: Sequence[bytes]) -> None:
    """Write count, lengths and records, atomically."""
    part = file.with_suffix(".part")
    with part.open("wb") as out:
        out.write(struct.pack("<I", len(records)))
        out.write(np.array([len(record) for record in records], "<u4").tobytes())
        out.writelines(records)
    part.replace(file)


def read_records(file: Path) -> list[bytes]:
    """Inverse of `write_records`."""
    raw = file.read_bytes()
    (count,) = struct.unpack_from("<I", raw)
    lengths = np.frombuffer(raw, "<u4", count, offset=4)
    ends = 4 + 4 * count + np.cumsum(lengths, dtype=np.int64)
    return [raw[end - length : end] for end, length in zip(ends, lengths, strict=True)]


# ----------------------------------------------------------------------------------- on the device


def joined(parts: Sequence[Tensor | TailInput]) -> Tensor | TailInput:
    """Concatenate batches; low-rank ones are padded with zeros to the highest rank."""
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if tensors:
        return torch.cat(tensors)
    seen = [part for part in parts if isinstance(part, TailInput)]
    cls, tokens = torch.cat([part.cls for part in seen]), [part.tokens for part in seen]
    if all(its.coefficients is None for its in tokens):
        return TailInput(cls, Tokens(torch.cat([its.parts for its in tokens])))
    most = max(its.parts.shape[1] for its in tokens)
    parts_of, shares = zip(*(its.filled(most) for its in tokens), strict=True)
    return TailInput(cls, Tokens(torch.cat(parts_of), torch.cat(shares)))
