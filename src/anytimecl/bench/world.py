"""What every method of a run is given: the model, all examples on the device, label vectors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from anytimecl.backbone.spec import Spec
from anytimecl.tail import Params, Seen, Tokens, embed, look, pick

CHUNK = 512  # images that a tail looks at in one go


@dataclass(frozen=True, eq=False)
class World:
    """A run's examples, resident: half-precision tokens, or what a one-block tail sees of them."""

    spec: Spec
    tail: dict[str, Tensor]
    examples: Tensor | Seen  # all training examples of the run
    labels: Sequence[str]  # [example]
    vectors: Mapping[str, Tensor] = field(repr=False)  # label -> unit vector
    seed: int = 0
    arriving: Sequence[int] = ()  # every example that the run will bring, in order

    @property
    def device(self) -> torch.device:
        """Where everything is."""
        return next(iter(self.tail.values())).device

    def label_vectors(self, names: Sequence[str]) -> Tensor:
        """[label, dim]."""
        return torch.stack([self.vectors[name] for name in names])

    def take(self, indices: Sequence[int]) -> Tensor | Seen:
        """Some training examples, in single precision."""
        return pick(self.examples, torch.tensor(indices, device=self.device))

    def image_vectors(self, params: Params, tokens: Tensor | Seen) -> Tensor:
        """Unit vectors [image, dim] of a batch under some weights of the tail."""
        return F.normalize(embed(params, self.spec.tail, tokens), dim=-1)

    @cached_property
    def original_vectors(self) -> Tensor:
        """Unit vectors [example, dim] of every training example under the original weights."""
        with torch.no_grad():
            return torch.cat(
                [self.image_vectors(self.tail, part) for part in chunks(self.examples)]
            )


def resident(tokens: Sequence[NDArray[np.float16]], spec: Spec, device: str) -> Tensor | Seen:
    """Arrays of tokens [image, token, width], one after the other, as one batch on the device.

    A one-block tail meets tokens normalised only, so they are kept that way.
    """
    count = sum(len(part) for part in tokens)
    shape = (count, spec.tokens, spec.tail.width)
    if spec.tail.blocks > 1 or spec.tail.pool != "cls":
        whole = torch.empty(shape, dtype=torch.float16, device=device)
        for start, part in _pieces(tokens):
            whole[start : start + len(part)] = part.to(device)
        return whole
    cls = torch.empty(count, shape[2], dtype=torch.float16, device=device)
    normalised = torch.empty(shape, dtype=torch.float16, device=device)
    for start, part in _pieces(tokens):
        seen = look(part.to(device).float(), spec.tail.norm_eps)
        cls[start : start + len(part)] = seen.cls
        normalised[start : start + len(part)] = seen.tokens.parts
    return Seen(cls, Tokens(normalised))


def _pieces(tokens: Sequence[NDArray[np.float16]]) -> Iterator[tuple[int, Tensor]]:
    """Each part with the place of its first image in the whole."""
    place = 0
    for array in tokens:
        for start in range(0, len(array), CHUNK):
            part = np.array(array[start : start + CHUNK])  # read from disk here
            yield place, torch.from_numpy(part)
            place += len(part)


def chunks(examples: Tensor | Seen, size: int = CHUNK) -> Iterator[Tensor | Seen]:
    """All of them, a batch at a time, in single precision."""
    some = examples if isinstance(examples, Tensor) else examples.cls
    for start in range(0, len(some), size):
        yield pick(examples, torch.arange(start, min(start + size, len(some)), device=some.device))
