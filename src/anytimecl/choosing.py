"""Which of many images would teach most, if somebody said what it shows.

There are two things to find out, and how much of each is left follows from the answers so far. The
chance that the next image has a label never seen is about the share of examples that are the only
one of theirs (Good, 1953; Turing): so often the question is which labels there are, and otherwise
which is which.

- *Which there are*: the image that would explain most of the others, had it a label of its own.
  Every image is explained by the label that it fits best, or by none: what adds most to the
  likelihood of them all is one step of facility location, dense places first, and each once.
- *Which is which*: the image whose answer is expected to change most what is said of the others,
  over the labels that it may have (expected model output change: Freytag, Rodner and Denzler, ECCV
  2014). Changes count by their squares: where beliefs are right on average, the square by which a
  probability is expected to change is what its Brier score is expected to gain. Doubt alone would
  ask about odd images, and density alone about those known already.

Both are worked out by the Gaussian expert in closed form; no model is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anytimecl.experts import GaussianExpert
from anytimecl.experts.gaussian import Space
from anytimecl.experts.statistics import FIXED, Statistics
from anytimecl.pool import START

SHORT = 300  # images in doubt, whose answers are thought through
LIKELY = 0.03  # probability from which an answer is thought through
SURE = 1 - 1e-6  # the highest probability that is told from 1


class Supposed(NamedTuple):
    """Images, and others that labels might have as well; whitened once for all labels."""

    now: Statistics
    space: Space
    images: Tensor  # [image, dim]
    unknown: Tensor  # [image]
    others: Tensor  # [other, dim]

    @classmethod
    def of(cls, expert: GaussianExpert, images: Tensor, others: Tensor) -> Supposed:
        """What the expert would say of the images, had a label one of the others too."""
        whitened, unknown = expert.whitened(images)
        return cls(expert.now, expert.space, whitened, unknown, expert.whitened(others)[0])

    def scores(self, row: int, who: Tensor | None = None) -> Tensor:
        """[image, other]: of a label, with one of the others in it.

        Row -1 is a label never seen; `who` are places among the others, all unless given.
        """
        space, now = self.space, self.now
        count = float(now.counts[row]) if row >= 0 else 0.0
        total = self.others if who is None else self.others[who]
        if row >= 0:
            learned = (now.sums[row].double() / FIXED).float() @ space.whiten
            total = total + (learned - count * space.centre)
        mean, variance = space.predictive(
            torch.tensor([count + 1]), total / (count + 1) + space.centre
        )
        pull = mean / variance
        offset = (pull * mean).sum(1) + variance.log().sum() - (1 + space.ratio).log().sum()
        distance = self.images.square() @ (1 / variance).T - 2 * self.images @ pull.T + offset
        return -0.5 * distance - self.unknown.unsqueeze(1)


class Beliefs(NamedTuple):
    """What the experts say of some images."""

    images: Tensor  # [image, dim]
    original: Tensor  # [image, label], log-probabilities of the original model
    scores: Tensor  # [image, label], log-probabilities
    level: Tensor  # [image, 1], what was added to the experts' scores to make them such

    def pick(self, places: Tensor) -> Beliefs:
        """Of some of the images."""
        return Beliefs(*(part[places] for part in self))

    @property
    def doubt(self) -> Tensor:
        """Between the two likeliest labels [image], up to 1; none over no label."""
        best = self.scores.exp().topk(min(2, self.scores.shape[1]), 1).values
        return 1 - (best[:, :1].sum(1) - best[:, 1:].sum(1))


def believed(
    expert: GaussianExpert,
    images: Tensor,  # [image, dim]
    original: Tensor,  # [image, label], log-probabilities of the original model
    rows: Sequence[int],  # [label], -1: never seen
) -> Beliefs:
    """As a pool of these two has it before any evidence.

    What the pool's weights are fitted on later are images that were asked about because they were
    hard to tell: they say little of the others.
    """
    scores = START["gaussian"] * expert.scores(images, rows) + START["original"] * original
    level = -scores.logsumexp(1, keepdim=True)
    return Beliefs(images, original, scores + level, level)


def most_telling(
    expert: GaussianExpert,
    asked: Beliefs,
    others: Beliefs,
    rows: Sequence[int],  # [label], -1: never seen
    chance: float,  # drawn between 0 and 1
) -> int:
    """The place among `asked` of the image to ask about."""
    if chance < unseen(expert):
        return int(explained(expert, asked.images, others.images).argmax())
    short = asked.doubt.topk(min(SHORT, len(asked.images))).indices
    change = expected_change(expert, asked.pick(short), others, rows)
    return int(short[change.argmax()])


def unseen(expert: GaussianExpert) -> float:
    """The chance that another image is of a label never seen, after Good and Turing."""
    counts = expert.now.counts
    total = int(counts.sum())
    return int((counts == 1).sum()) / total if total else 1.0


def explained(expert: GaussianExpert, asked: Tensor, others: Tensor) -> Tensor:
    """How much likelier the others become in all, had an image [asked] a label of its own."""
    known = expert.scores(others, range(expert.now.rows))
    known = torch.cat([known, known.new_zeros(len(others), 1)], 1).amax(1, keepdim=True)
    return (Supposed.of(expert, others, asked).scores(-1) - known).clamp_min(0).sum(0)


def expected_change(
    expert: GaussianExpert,
    asked: Beliefs,
    others: Beliefs,
    rows: Sequence[int],  # [label], -1: never seen
) -> Tensor:
    """The square by which an answer [asked] changes probabilities of the others, in expectation."""
    total = torch.zeros(len(asked.images))
    chances, before = asked.scores.exp(), others.scores.exp()
    supposed = Supposed.of(expert, others.images, asked.images)
    for column, row in enumerate(rows):
        who = (chances[:, column] > LIKELY).nonzero().flatten()
        if not len(who):
            continue
        taught = START["gaussian"] * supposed.scores(row, who) + others.level
        taught = taught + START["original"] * others.original[:, column : column + 1]
        had = before[:, column : column + 1]
        # All other labels together lose what this one gains.
        after = taught - torch.logaddexp(torch.log1p(-had.clamp(max=SURE)), taught)
        total[who] += chances[who, column] * (after.exp() - had).square().sum(0)
    return total
