"""The instance expert: an image that was taught, or a near copy, is answered as it was taught.

Images that the tuned model had wrong when they were taught are kept, the newest `KEPT` of them. A
new image's distance `D` to the nearest is a log-likelihood ratio (`prior.view_space`): another
picture of that scene, against another image of its label. How it is distributed for each is known,
for copies from the prior, for other images from the prior and from how far those kept lie apart:

    log D ~ Normal(near copies)   or   Normal(other images),   one image in fifty being a copy

and the answer is that of the nearest with the probability that it is a copy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from anytimecl.backbone.prior import Prior, view_space
from anytimecl.errors import CheckpointError
from anytimecl.threads import one_thread

KEPT = 2048
COPIES = 0.02  # of images asked about, before anything is known of them
TRUST = 8.0  # images that the prior's distance between images stands for
LEAST = 1e-3  # of a distance, so that it has a logarithm
ROUNDING = 0.1  # that a log-distance may be off, near `LEAST`
CHUNK = 256  # images that are compared with those kept in one go


class InstanceExpert:
    """Images that had to be taught, and how near another one is to them.

    >>> expert = InstanceExpert(2)
    >>> expert.add(1, 0, torch.tensor([1.0, 0.0]))
    >>> expert.nearest(torch.eye(2), [0])[0].tolist()
    [0.0, 0.0]

    Without a prior there is nothing to tell a copy by.
    """

    def __init__(self, dim: int, prior: Prior | None = None) -> None:
        self.prior = prior
        self._space: Tensor | None = None
        self._examples = torch.zeros(0, dtype=torch.long)
        self._rows = torch.zeros(0, dtype=torch.long)
        self._images = torch.zeros(0, dim)  # in the space of views
        self._apart = torch.zeros(0)  # log-distance of each to the nearest before it, inf: none

    @one_thread()
    def add(self, example: int, row: int, image: Tensor) -> None:
        """Keep an image that had to be taught."""
        self._add([example], [row], image.unsqueeze(0))

    @one_thread()
    def add_many(self, examples: Sequence[int], rows: Sequence[int], images: Tensor) -> None:
        """The same for several, in order."""
        self._add(examples, rows, images)

    def _add(self, examples: Sequence[int], rows: Sequence[int], images: Tensor) -> None:
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
        """Take them back."""
        self._keep(~torch.isin(self._examples, torch.tensor(list(examples), dtype=torch.long)))

    def move(self, example: int, row: int) -> bool:
        """It has another label now; whether it is kept at all."""
        mine = self._examples == example
        self._rows = torch.where(mine, row, self._rows)
        return bool(mine.any())

    @property
    def examples(self) -> list[int]:
        """Those that are kept."""
        found: list[int] = self._examples.tolist()
        return found

    def drop(self, row: int) -> None:
        """Rows behind a label that is gone move up."""
        self._rows = self._rows - (self._rows > row).long()

    def nearest(self, images: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The probability [image] that it is a copy, and of which of these labels [image]."""
        place = {row: at for at, row in enumerate(rows) if row >= 0}
        labelled = [(i, place[row]) for i, row in enumerate(self._rows.tolist()) if row in place]
        if self.prior is None or not labelled:
            return images.new_zeros(len(images)), torch.zeros(len(images), dtype=torch.long)
        asked, places = zip(*labelled, strict=True)
        kept = self._images if len(asked) == len(self._images) else self._images[list(asked)]
        far, which = self._distances(self._placed(images), kept).min(1)
        copy, spread, other, width = self._near()
        far = far.clamp(max=other)  # the wider of two bells would win far outside of both
        odds = ((far - other) / width).square() / 2 - ((far - copy) / spread).square() / 2
        odds = odds + (width / spread).log() + math.log(COPIES / (1 - COPIES))
        return odds.sigmoid(), torch.tensor(places)[which]

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {
            "instance.examples": self._examples,
            "instance.rows": self._rows,
            "instance.images": self._images,
            "instance.apart": self._apart,
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Back from `state`."""
        mine = self.state()
        if state.keys() != mine.keys() or any(
            state[name].shape[1:] != value.shape[1:] for name, value in mine.items()
        ):
            raise CheckpointError("The checkpoint has images of another model.")
        self._examples, self._rows, self._images, self._apart = (
            state[name].clone() for name in mine
        )

    def _keep(self, left: Tensor) -> None:
        """These [kept]; and nobody knows any more how far the others were."""
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
        """Log-distances of some of those kept to the nearest before each; inf: none."""
        apart = self._distances(self._images[places], self._images)
        later = torch.arange(len(self._images)) >= places.unsqueeze(1)
        return apart.masked_fill(later, torch.inf).amin(1)

    def _near(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean and spread of the log-distance of a copy, and of the nearest other image."""
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
        """Logarithms [image, kept]."""
        square = placed.square().sum(1, keepdim=True) + kept.square().sum(1) - 2 * placed @ kept.T
        return square.clamp_min(LEAST).log()
