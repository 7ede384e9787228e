"""What images of a label look like: a vote for the labels whose images the new one resembles.

A block learns a little from each example, so the first few of a label hardly show in it. But in the
eyes of the original model images of a label lie near each other from the start, whatever the label
is called. So the mean of each label's images is kept, and speaks beside the tuned model:

    m        mean of all images learned
    mu(y)    (sum of the n images of y - n m) / (n + 1): its way from m; with few examples, less
    vote(y)  STRENGTH * (|x - m|^2 - |x - m - mu(y)|^2) / (1 - |m|^2)  -  n / (n + 1), in logits

The first part is how much nearer an image `x` is to the mean of `y` than to that of all, in units
of how far images lie apart: a log-likelihood, if images of a label are spread alike in all
directions. (An image that lies `FAR` away from all of them is like none: it has a larger unit, by
its own distance.) The second asks more of labels that are known better, or whoever has examples
would win too often against those that have few, or none. A label never seen has no vote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.errors import CheckpointError

STRENGTH = 5.0
FAR = 3.0  # square distances from the centre, in units of their mean; none of a known kind is there
SUMS, COUNTS = "recall.sums", "recall.counts"  # in a checkpoint


class Means(NamedTuple):
    """Where the images of some labels lie, as of some moment."""

    centre: Tensor  # [dim], of all images
    offsets: Tensor  # [known, dim], of a label's mean from the centre
    price: Tensor  # [known], what a label must offer to be voted for
    spread: Tensor  # [], mean square distance of images from the centre
    places: Tensor  # [label], each asked label among the known ones; behind them: never seen

    def votes(self, images: Tensor) -> Tensor:
        """For unit vectors [image, dim]: [image, label]."""
        centre, offsets, price, spread, places = (part.to(images.device) for part in self)
        way = images - centre
        nearer = 2 * way @ offsets.T - offsets.square().sum(1)
        unit = torch.maximum(spread, way.square().sum(1, keepdim=True) / FAR)
        known = STRENGTH * nearer / unit - price  # [image, known]
        return F.pad(known, (0, 1))[:, places]


class Recall:
    """Sums of the images learned, by label; on the CPU, whatever the learner lives on.

    Images are unit vectors of the original model, so nothing that is learned later moves them.

    >>> recall = Recall(2)
    >>> recall.make_room(2)
    >>> recall.add([0, 1], torch.eye(2))
    >>> means = recall.means([0, 1, -1])
    >>> means.votes(torch.tensor([[1.0, 0.0]])).argmax().item()
    0
    """

    def __init__(self, dim: int) -> None:
        # [row, dim], with rows to spare; in single precision a million images would not add up.
        self._sums = torch.zeros(16, dim, dtype=torch.float64)
        self._counts = torch.zeros(16, dtype=torch.long)  # [row]
        self._rows = 0
        self.whole = True  # no: it went on from who did not recall, and what came before is missing

    @property
    def sums(self) -> Tensor:
        """[row, dim], one for each label."""
        return self._sums[: self._rows]

    @property
    def counts(self) -> Tensor:
        """[row], images in each sum."""
        return self._counts[: self._rows]

    def add(self, rows: Sequence[int], images: Tensor) -> None:
        """More images [image, dim], each of the label in its row; the same as one by one."""
        at = torch.tensor(rows, dtype=torch.long)
        self.sums.index_add_(0, at, images.double())
        self.counts.index_add_(0, at, torch.ones_like(at))

    def replace(self, row: int, images: Tensor) -> None:
        """The label has these images [image, dim] and no other."""
        self.sums[row] = 0
        self.counts[row] = 0
        self.add([row] * len(images), images)

    def means(self, rows: Sequence[int]) -> Means | None:
        """Of these labels, -1 for one never seen. What comes later does not change them.

        None while there are images of one label at most: they resemble each other, but more or
        less than what?
        """
        if (self.counts > 0).sum() < 2:
            return None
        known = [row for row in dict.fromkeys(rows) if row >= 0]
        place = {row: i for i, row in enumerate(known)}
        total, count = self.sums.sum(0), self.counts.sum()
        centre = total / count
        # With one example more than there are, or the first few would be spread over too little.
        spread = 1 - (total / (count + 1)).square().sum()
        sums, counts = self.sums[known], self.counts[known]
        share = 1 / (counts + 1)
        price = counts * share
        offsets = sums * share.unsqueeze(1) - price.unsqueeze(1) * centre
        places = torch.tensor([place.get(row, len(known)) for row in rows], dtype=torch.long)
        return Means(centre.float(), offsets.float(), price.float(), spread.float(), places)

    def make_room(self, labels: int) -> None:
        """Rows for labels never seen before; twice as many as there are, when there are too few."""
        if labels > len(self._counts):
            missing = max(labels, 2 * len(self._counts)) - len(self._counts)
            self._sums = F.pad(self._sums, (0, 0, 0, missing))
            self._counts = F.pad(self._counts, (0, missing))
        self._rows = max(self._rows, labels)

    def drop(self, row: int) -> None:
        """A label was never seen."""
        left = [i for i in range(self._rows) if i != row]
        self._take(self.sums[left], self.counts[left])

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint; nothing, if it is not whole."""
        return {SUMS: self.sums, COUNTS: self.counts} if self.whole else {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Back from `state`, for as many labels as there are rows."""
        self.whole = bool(state)
        mine = self.state()
        if state.keys() != mine.keys() or any(
            (state[name].shape, state[name].dtype) != (value.shape, value.dtype)
            for name, value in mine.items()
        ):
            raise CheckpointError("The checkpoint holds means of other labels or another model.")
        if self.whole:
            self._take(state[SUMS].clone(), state[COUNTS].clone())

    def _take(self, sums: Tensor, counts: Tensor) -> None:
        self._sums, self._counts, self._rows = sums, counts, len(counts)
