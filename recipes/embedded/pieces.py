"""Texts as word pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pieces:
    """What the encoder reads, each [..., piece]."""

    ids: Tensor
    mask: Tensor  # where the text is
    name: Tensor  # where the name is

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.ids, self.mask, self.name

    def at(self, *where: Tensor | int | slice) -> Pieces:
        """Some of them."""
        return Pieces(*(part[where] for part in self.parts))

    @classmethod
    def joined(cls, every: Sequence[Pieces]) -> Pieces:
        """One after the other."""
        return cls(*map(torch.cat, zip(*(each.parts for each in every), strict=True)))

    @classmethod
    def of(cls, ids: Tensor, lengths: Tensor) -> Pieces:
        """From padded ids, and how many pieces come before the name's end."""
        mask = (ids > 0).to(ids.dtype)
        return cls(ids, mask, mask * (torch.arange(ids.shape[-1], device=ids.device) < lengths))


class Forms:
    """Texts to draw from, in every template [template, name, piece], bare and with contexts."""

    def __init__(self, bare: Pieces, full: Pieces) -> None:
        self.bare, self.full = bare, full

    def draw(self, rows: Tensor, template: Tensor, share: float) -> tuple[Pieces, Pieces]:
        """The first `share` of the rows with context, the others bare."""
        count = round(share * len(rows))
        full = self.full.at(template[:count], rows[:count])
        return full, self.bare.at(template[count:], rows[count:])
