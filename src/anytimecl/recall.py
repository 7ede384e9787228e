"""What images of a label look like: a vote for the labels whose images the new one resembles.

A block learns a little from each example, so the first few of a label hardly show in it. But in the
eyes of the original model images of a label lie near each other from the start, whatever the label
is called. So the mean of each label's images is kept, and speaks beside the tuned model:

    m        mean of all images learned
    mu(y)    (sum of the n images of y - n m) / (n + 1): its way from m; with few examples, less
    vote(y)  STRENGTH * (|x - m|^2 - |x - m - mu(y)|^2) / (1 - |m|^2)  -  n / (n + 1), in logits

The first part is how much nearer an image `x` is to the mean of `y` than to that of all, in units
of how far images lie apart: a log-likelihood, if images of a label are spread alike in all
directions. The second asks more of labels that are known better, or whoever has examples would win
too often against those that have few, or none. A label never seen has no vote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

STRENGTH = 5.0
SUMS, COUNTS = "recall.sums", "recall.counts"  # in a checkpoint


class Means(NamedTuple):
    """Where the images of each label lie, as of some moment."""

    centre: Tensor  # [dim], of all images
    offsets: Tensor  # [row, dim], of a label's mean from the centre
    spread: Tensor  # [], mean square distance of images from the centre
    price: Tensor  # [row], what a label must offer to be voted for

    def votes(self, images: Tensor, rows: Sequence[int]) -> Tensor:
        """For unit vectors [image, dim] and labels, -1 for one never seen: [image, label]."""
        centre, offsets, spread, price = (part.to(images.device) for part in self)
        nearer = 2 * (images - centre) @ offsets.T - offsets.square().sum(1)
        known = STRENGTH * nearer / spread - price  # [image, row]
        return F.pad(known, (0, 1))[:, torch.tensor(rows, device=images.device)]


class Recall:
    """Sums of the images learned, by label; on the CPU, whatever the learner lives on.

    Images are unit vectors of the original model, so nothing that is learned later moves them.

    >>> recall = Recall(2)
    >>> recall.make_room(2)
    >>> recall.add([0, 1], torch.eye(2))
    >>> recall.means().votes(torch.tensor([[1.0, 0.0]]), [0, 1, -1]).argmax().item()
    0
    """

    def __init__(self, dim: int) -> None:
        self.sums = torch.zeros(0, dim)  # [row, dim]
        self.counts = torch.zeros(0)  # [row]

    def add(self, rows: Sequence[int], images: Tensor) -> None:
        """More images [image, dim], each of the label in its row; the same as one by one."""
        at = torch.tensor(rows)
        self.sums.index_add_(0, at, images)
        self.counts.index_add_(0, at, torch.ones(len(at)))

    def means(self) -> Means:
        """As they are now; what comes later does not change them."""
        total, count = self.sums.sum(0), self.counts.sum()
        centre = total / count.clamp_min(1)
        # With one example more than there are, or the first would be spread over nothing.
        spread = 1 - (total / (count + 1)).square().sum()
        share = 1 / (self.counts + 1)
        price = self.counts * share
        offsets = self.sums * share.unsqueeze(1) - price.unsqueeze(1) * centre
        return Means(centre, offsets, spread, price)

    def make_room(self, labels: int) -> None:
        """Rows for labels never seen before."""
        missing = labels - len(self.counts)
        if missing > 0:
            self.sums = F.pad(self.sums, (0, 0, 0, missing))
            self.counts = F.pad(self.counts, (0, missing))

    def drop(self, row: int) -> None:
        """A label was never seen."""
        self.sums = torch.cat([self.sums[:row], self.sums[row + 1 :]])
        self.counts = torch.cat([self.counts[:row], self.counts[row + 1 :]])

    def of(self, rows: Sequence[int]) -> Recall:
        """Of these labels alone, in this order."""
        some = Recall(self.sums.shape[1])
        some.restore({name: value[list(rows)] for name, value in self.state().items()})
        return some

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {SUMS: self.sums, COUNTS: self.counts}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Back from `state`."""
        self.sums, self.counts = state[SUMS].clone(), state[COUNTS].clone()
