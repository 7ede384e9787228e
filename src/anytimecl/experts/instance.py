"""The instance expert: recognises learned images and near copies of them.

It keeps the latest `KEPT` images that the tuned model predicted wrongly before it learned them. The
distance `D` of a new image to the nearest is -2 times a log-likelihood ratio (`prior.view_space`):
two views of one image against two images of one label. With a normal distribution of log D for
copies (from the prior) and for the nearest other image (from the prior and the distances between
the images kept),

    k = P(copy | D),   where one image in fifty is a copy,

is the weight of the nearest image's label in the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from anytimecl.backbone.prior import LEAST, Prior, view_space
from anytimecl.errors import CheckpointError
from anytimecl.threads import one_thread

KEPT = 2048
COPIES = 0.02  # prior probability of a copy
TRUST = 8.0  # images that the prior's distance between images counts as
ROUNDING = 0.1  # rounding error of a log-distance near `LEAST`
CHUNK = 256  # images compared at once


class InstanceExpert:
    """Kept images, and the probability that another image is a copy of one.

    >>> expert = InstanceExpert(2)
    >>> expert.add([1], [0], torch.tensor([[1.0, 0.0]]))
    >>> expert.nearest(torch.eye(2), [0])[0].tolist()
    [0.0, 0.0]

    Without a prior it keeps nothing, and the probability is 0.
    """

    def __init__(self, dim: int, prior: Prior | None = None) -> None:
        self.prior = prior
        self._space: Tensor | None = None
        self._examples = torch.zeros(0, dtype=torch.long)
        self._rows = torch.zeros(0, dtype=torch.long)
        self._images = torch.zeros(0, dim)  # projected by `view_space`
        self._apart = torch.zeros(0)  # log-distance of each to the nearest earlier one; inf: none

    @one_thread()
    def add(self, examples: Sequence[int], rows: Sequence[int], images: Tensor) -> None:
        """Keep images that the tuned model predicted wrongly, in order."""
        if self.prior is None:
            return
        for start in range(0, len(examples), CHUNK):
            some = slice(start, start + CHUNK)
            before = len(self._images)
            self._examples = torch.cat([self._examples, torch.tensor(examples[some])])
            self._rows = torch.cat([self._rows, torch.tensor(rows[some])])
            self._images = torch.cat([self._images, self._placed(images[some])])
            new = torch.arange(before, len(self._images))
            self._apart = torch.cat([self._apart, self._to_nearest(new)])
            self._keep(torch.arange(len(self._images)) >= len(self._images) - KEPT)

    def remove(self, examples: Collection[int]) -> None:
        """Remove examples."""
        self._keep(~torch.isin(self._examples, torch.tensor(list(examples), dtype=torch.long)))

    def move(self, example: int, row: int) -> bool:
        """Relabel an example; returns whether it is kept."""
        mine = self._examples == example
        self._rows = torch.where(mine, row, self._rows)
        return bool(mine.any())

    @property
    def examples(self) -> list[int]:
        """Ids of the kept examples."""
        found: list[int] = self._examples.tolist()
        return found

    def drop(self, row: int) -> None:
        """A label was removed: later rows move up."""
        self._rows = self._rows - (self._rows > row).long()

    def nearest(self, images: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """k [image], and the label of the nearest kept image, as an index into `rows` [image]."""
        place = {row: at for at, row in enumerate(rows) if row >= 0}
        labelled = [(i, place[row]) for i, row in enumerate(self._rows.tolist()) if row in place]
        if self.prior is None or not labelled:
            return images.new_zeros(len(images)), torch.zeros(len(images), dtype=torch.long)
        asked, places = zip(*labelled, strict=True)
        kept = self._images if len(asked) == len(self._images) else self._images[list(asked)]
        far, which = self._distances(self._placed(images), kept).min(1)
        copy, spread, other, width = self._near()
        far = far.clamp(max=other)  # beyond both means, the wider normal would win
        odds = ((far - other) / width).square() / 2 - ((far - copy) / spread).square() / 2
        odds = odds + (width / spread).log() + math.log(COPIES / (1 - COPIES))
        return odds.sigmoid(), torch.tensor(places)[which]

    def state(self) -> dict[str, Tensor]:
        """State for a checkpoint."""
        return {
            "instance.examples": self._examples,
            "instance.rows": self._rows,
            "instance.images": self._images,
            "instance.apart": self._apart,
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore from `state`."""
        mine = self.state()
        if {n: t.shape[1:] for n, t in state.items()} != {n: t.shape[1:] for n, t in mine.items()}:
            raise CheckpointError("The checkpoint has images of another model.")
        self._examples, self._rows, self._images, self._apart = (
            state[name].clone() for name in mine
        )

    def _keep(self, left: Tensor) -> None:
        """Keep only these, a mask [kept], and recompute distances to removed images."""
        if left.all():
            return
        gone = self._images[~left]
        self._examples, self._rows = self._examples[left], self._rows[left]
        self._images, self._apart = self._images[left], self._apart[left]
        if len(self._images):
            were_near = self._distances(self._images, gone).amin(1) <= self._apart + ROUNDING
            alone = were_near.nonzero().flatten()
            self._apart[alone] = self._to_nearest(alone)

    def _to_nearest(self, places: Tensor) -> Tensor:
        """Log-distances of some kept images to the nearest earlier one; inf: none."""
        apart = self._distances(self._images[places], self._images)
        later = torch.arange(len(self._images)) >= places.unsqueeze(1)
        return apart.masked_fill(later, torch.inf).amin(1)

    def _near(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean and standard deviation of log D for a copy, then for the nearest other image."""
        assert self.prior is not None
        copy, spread, other, width = self.prior.near.float()
        own = self._apart[self._apart.isfinite()]
        total = TRUST + len(own)
        mean = (TRUST * other + own.sum()) / total
        square = TRUST * (width**2 + (other - mean) ** 2) + (own - mean).square().sum()
        return copy, spread, mean, (square / total).sqrt()

    def _placed(self, images: Tensor) -> Tensor:
        assert self.prior is not None
        if self._space is None:
            with one_thread():
                self._space = view_space(self.prior.within, self.prior.view).float()
        return images @ self._space

    @staticmethod
    def _distances(placed: Tensor, kept: Tensor) -> Tensor:
        """Log-distances [image, kept]."""
        square = placed.square().sum(1, keepdim=True) + kept.square().sum(1) - 2 * placed @ kept.T
        return square.clamp_min(LEAST).log()
