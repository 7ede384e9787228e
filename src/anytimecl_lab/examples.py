"""Examples of a run: resident on the device or, if they do not fit, transferred in batches.

Results are the same, bit for bit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.errors import ModelError
from anytimecl.tail import TailInput, Tokens, look, pick

CHUNK = 512  # images per batch of the tail
WINDOW = 1 << 28  # bytes of examples transferred for the next online steps
SHARE = 2  # by default examples may take 1 / SHARE of the device's memory
HALF = 2  # bytes of a number in half precision

Kept = Tensor | TailInput  # in half precision, on the device
TokenArray = NDArray[np.float16]  # [image, token, width], in memory or on disk


class Streamed:
    """Examples on disk or in host memory; `read` returns some, in half precision."""

    def __init__(self, count: int, read: Callable[[Sequence[int]], Kept]) -> None:
        self._count, self._read = count, read
        # By batch size. Never replaced, since a captured step may still read them.
        self._windows: dict[int, Kept] = {}
        self._each = 0  # bytes of an example

    def __len__(self) -> int:
        return self._count

    def take(self, indices: Sequence[int]) -> Tensor | TailInput:
        """A batch of examples, on the device, in single precision."""
        return mapped(self._read(indices), Tensor.float)

    def bring(self, batches: Sequence[Sequence[int]], turn: int) -> None:
        """Transfer the batch of this step, and as many following ones as fit into the window."""
        size = len(batches[turn])
        window = self._window(size)
        steps = self._steps(size)
        if turn % steps:
            return
        coming = [i for batch in batches[turn : turn + steps] for i in batch]
        for start in range(0, len(coming), CHUNK):
            put(window, start, self._read(coming[start : start + CHUNK]))

    def brought(self, turn: Tensor, size: int) -> Tensor | TailInput:
        """The batch of a step [1], using data on the device only."""
        window = self._window(size)
        first = turn % self._steps(size) * size
        return pick(window, first + torch.arange(size, device=turn.device))

    def _steps(self, size: int) -> int:
        return max(1, WINDOW // (size * self._each))

    def _window(self, size: int) -> Kept:
        if size not in self._windows:
            like = self._read([0])
            self._each = bytes_of(like)
            rows = self._steps(size) * size
            self._windows[size] = mapped(like, lambda one: one.new_zeros(rows, *one.shape[1:]))
        return self._windows[size]


Examples = Tensor | TailInput | Streamed


def take(examples: Examples, indices: Sequence[int], device: torch.device | str) -> Kept:
    """A batch of examples, on the device, in single precision."""
    if isinstance(examples, Streamed):
        return examples.take(indices)
    return pick(examples, torch.tensor(indices, device=device))


def chunks(examples: Examples, size: int = CHUNK) -> Iterator[Tensor | TailInput]:
    """All examples in batches, on the device, in single precision."""
    count = len(examples.cls if isinstance(examples, TailInput) else examples)
    device = "cpu" if isinstance(examples, Streamed) else _tensors(examples)[0].device
    for start in range(0, count, size):
        yield take(examples, range(start, min(start + size, count)), device)


# ------------------------------------------------------------------------------ where they are


def check_device(device: str) -> None:
    """Raise if PyTorch has no such device here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        said = str(error).splitlines()[0]
        raise ModelError(f"The device {device!r} cannot be used here: {said}") from error


def default_room(device: str) -> int:
    """Bytes of the device's memory for examples."""
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory) // SHARE
    if not hasattr(os, "sysconf"):
        return 1 << 62
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // SHARE


def whole_size(count: int, spec: Spec) -> int:
    """Bytes of this many images' tokens."""
    return count * spec.tokens * spec.tail.width * HALF


def resident(tokens: Sequence[TokenArray], spec: Spec, device: str) -> Kept:
    """Arrays of tokens, concatenated, on the device."""
    count = sum(len(part) for part in tokens)
    shape = (count, spec.tokens, spec.tail.width)
    parts = torch.empty(shape, dtype=torch.float16, device=device)
    whole: Kept = parts
    if met_normalised(spec):
        cls = torch.empty(count, shape[2], dtype=torch.float16, device=device)
        whole = TailInput(cls, Tokens(parts))
    place = 0
    for array in tokens:
        for start in range(0, len(array), CHUNK):
            some = torch.from_numpy(np.array(array[start : start + CHUNK]))  # read from disk here
            put(whole, place, half(some.to(device), spec))
            place += len(some)
    return whole


def streamed(
    parts: Sequence[tuple[TokenArray, Sequence[int]]],  # of a split, and which of its images
    spec: Spec,
    device: str,
) -> Streamed:
    """The same, streamed from the arrays."""
    arrays = [torch.from_numpy(array) for array, _ in parts]
    chosen = [np.array(some) for _, some in parts]
    ends = np.cumsum([len(some) for some in chosen])
    pinned = device.startswith("cuda")  # for asynchronous copies

    def read(indices: Sequence[int]) -> Kept:
        wanted = np.array(indices)
        shape = (len(wanted), spec.tokens, spec.tail.width)
        rows = torch.empty(shape, dtype=torch.float16, pin_memory=pinned)
        part_of = np.searchsorted(ends, wanted, side="right")
        for part in np.unique(part_of):
            own = np.flatnonzero(part_of == part)
            first = ends[part] - len(chosen[part])
            images = chosen[part][wanted[own] - first]
            rows[torch.from_numpy(own)] = arrays[part][torch.from_numpy(images)]
        return half(rows.to(device, non_blocking=True), spec)

    return Streamed(int(ends[-1]), read)


def met_normalised(spec: Spec) -> bool:
    """Whether the tail uses tokens only after normalisation, so they can be stored normalised."""
    return spec.tail.blocks == 1 and spec.tail.pool == "cls"


def half(tokens: Tensor | TailInput, spec: Spec) -> Kept:
    """In half precision; normalised for a one-block tail."""
    if isinstance(tokens, Tensor) and met_normalised(spec):
        tokens = look(tokens.float(), spec.tail.norm_eps)
    return mapped(tokens, Tensor.half)


def bytes_of(kept: object) -> int:
    """Bytes on the device; 0 for anything but examples."""
    return sum(tensor.nbytes for tensor in _tensors(kept))


def mapped(kept: Tensor | TailInput, change: Callable[[Tensor], Tensor]) -> Tensor | TailInput:
    """Apply a function to every tensor."""
    return change(kept) if isinstance(kept, Tensor) else kept.map(change)


def put(whole: Kept, place: int, part: Kept) -> None:
    """Copy some examples to their place in a batch."""
    for into, some in zip(_tensors(whole), _tensors(part), strict=True):
        into[place : place + len(some)] = some


def _tensors(kept: object) -> list[Tensor]:
    if isinstance(kept, Tensor):
        return [kept]
    if not isinstance(kept, TailInput):
        return []
    shares = kept.tokens.coefficients
    return [kept.cls, kept.tokens.parts, *([] if shares is None else [shares])]
