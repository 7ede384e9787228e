"""Decoded examples on a GPU, where decoding a record takes longer than a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anytimecl.codec import Codec
from anytimecl.tail import TailInput, pick

KEPT_BYTES = 1 << 31  # of decoded examples, and never more than a quarter of what is free
PARTS = 18  # of a compressed example: as many as our codec keeps


class ExampleCache:
    """Decoded examples on the device. Grows up to a limit, then is cleared."""

    def __init__(self, codec: Codec, device: torch.device, room: int | None = None) -> None:
        self._codec = codec
        self._device = device
        self._room = room  # bytes
        self._clear()

    def take(self, ids: Sequence[int], records: Sequence[bytes]) -> Tensor | TailInput:
        """What `codec.decode(records)` gives; `ids` say which examples they are."""
        given = dict(zip(ids, records, strict=True))  # a batch may hold one example twice
        new = {example: record for example, record in given.items() if example not in self._rows}
        if new and not self._put(new):
            self._clear()
            self._put(given)
        rows = torch.tensor([self._rows[example] for example in ids]).to(self._device)
        assert self._kept is not None
        return pick(self._kept, rows)

    def drop(self, example: int) -> None:
        """Remove an example, zeroing its row."""
        row = self._rows.pop(example, None)
        if row is not None and self._kept is not None:
            self._free.append(row)
            for tensor in tensors_of(self._kept):
                tensor[row].zero_()

    def _clear(self) -> None:
        self._rows: dict[int, int] = {}  # of each example
        self._free: list[int] = []  # rows, the next one last
        self._kept: Tensor | TailInput | None = None

    def _put(self, given: dict[int, bytes]) -> bool:
        """Add examples; returns False if there is no room or shapes differ."""
        decoded = self._codec.decode(list(given.values()), self._device)
        decoded = decoded.even(PARTS) if isinstance(decoded, TailInput) else decoded
        if self._kept is not None and shapes_of(self._kept) != shapes_of(decoded):
            return False
        if len(given) > len(self._free) and not self._grow(decoded, len(given)):
            return False
        assert self._kept is not None
        rows = [self._free.pop() for _ in given]
        places = torch.tensor(rows).to(self._device)
        for kept, found in zip(tensors_of(self._kept), tensors_of(decoded), strict=True):
            kept.index_copy_(0, places, found)
        self._rows |= zip(given, rows, strict=True)
        return True

    def _grow(self, like: Tensor | TailInput, needed: int) -> bool:
        """At least twice as many rows as before; a batch finds room in an empty cache always."""
        before = 0 if self._kept is None else len(tensors_of(self._kept)[0])
        most = self._most() // sum(4 * math.prod(shape) for shape in shapes_of(like))
        after = max(before + needed, min(2 * before, most))
        if before and after > most:
            return False

        def larger(old: Tensor) -> Tensor:
            return torch.cat([old, old.new_zeros(after - before, *old.shape[1:])])

        if self._kept is None:
            self._kept = _each(lambda tensor: tensor[:0], like)
        self._kept = _each(larger, self._kept)
        self._free = [*range(after - 1, before - 1, -1), *self._free]
        return True

    def _most(self) -> int:
        """Bytes."""
        if self._room is not None or self._device.type != "cuda":
            return self._room or KEPT_BYTES
        kept = 0 if self._kept is None else sum(tensor.nbytes for tensor in tensors_of(self._kept))
        return min(KEPT_BYTES, (torch.cuda.mem_get_info(self._device)[0] + kept) // 4)


def tensors_of(examples: Tensor | TailInput) -> list[Tensor]:
    if isinstance(examples, Tensor):
        return [examples]
    parts, shares = examples.tokens
    return [examples.cls, parts] if shares is None else [examples.cls, parts, shares]


def shapes_of(examples: Tensor | TailInput) -> tuple[tuple[int, ...], ...]:
    """Of one example."""
    return tuple(tuple(tensor.shape[1:]) for tensor in tensors_of(examples))


def _each(change: Callable[[Tensor], Tensor], examples: Tensor | TailInput) -> Tensor | TailInput:
    return change(examples) if isinstance(examples, Tensor) else examples.map(change)
