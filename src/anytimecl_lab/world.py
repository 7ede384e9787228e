"""The input of every method of a run: model, examples, label embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone.prior import Prior
from anytimecl.backbone.spec import Spec
from anytimecl.tail import Params, TailInput, embed
from anytimecl_lab.examples import Examples, chunks, take


@dataclass(frozen=True, eq=False)
class Second:
    """The same examples encoded by another encoder, in the label space of the model."""

    name: str  # to load it by
    spec: Spec
    tail: dict[str, Tensor]
    examples: Examples


@dataclass(frozen=True, eq=False)
class World:
    """A run's examples: half-precision tokens, or input of a one-block tail."""

    spec: Spec
    tail: dict[str, Tensor]
    examples: Examples  # all training examples of the run
    labels: Sequence[str]  # [example]
    vectors: Mapping[str, Tensor] = field(repr=False)  # label -> unit vector
    seed: int = 0
    arriving: Sequence[int] = ()  # all examples of the stream, in order
    prior: Prior | None = None  # of the model's image vectors
    second: Second | None = None
    known: Callable[[], Tensor] | None = field(default=None, repr=False)  # original vectors

    @property
    def device(self) -> torch.device:
        """Device of all tensors."""
        return next(iter(self.tail.values())).device

    def label_vectors(self, names: Sequence[str]) -> Tensor:
        """Embeddings of labels, [label, dim]."""
        return torch.stack([self.vectors[name] for name in names])

    def take(self, indices: Sequence[int]) -> Tensor | TailInput:
        """Some training examples, in float32."""
        return take(self.examples, indices, self.device)

    def image_vectors(self, params: Params, tokens: Tensor | TailInput) -> Tensor:
        """Unit embeddings [image, dim] of a batch with given weights of the tail."""
        return F.normalize(embed(params, self.spec.tail, tokens), dim=-1)

    def logits(self, images: Tensor, names: Sequence[str]) -> Tensor:
        """Logits [image, label] of unit embeddings [image, dim], at the model's scale."""
        return self.spec.logit_scale * images @ self.label_vectors(names).T

    @cached_property
    def original_vectors(self) -> Tensor:
        """Unit embeddings [example, dim] of every training example by the original model."""
        if self.known is not None:  # cached
            return self.known()
        with torch.no_grad():
            return torch.cat(
                [self.image_vectors(self.tail, part) for part in chunks(self.examples)]
            )
