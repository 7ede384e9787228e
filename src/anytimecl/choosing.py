"""Which of many images would teach most, if somebody said what it shows.

There are two things to find out, and how much of each is left follows from the answers so far. The
chance that the next image has a label never seen is about the share of examples that are the only
one of theirs (Good, 1953; Turing): so often the question is which labels there are, and otherwise
what the images of each look like.

- *Which there are*: the image that would explain most of the others, had it a label of its own.
  Every image is explained by the label that it fits best, or by none: what adds most to the
  likelihood of them all is one step of facility location, dense places first, and each once.
- *What they look like*: an expert knows a label by the mean of its examples, and a random few have
  it only roughly. The images without a label tell where it should be: those that look like a label
  are counted to it as far as they do, a few times over (expectation and maximisation: Nigam,
  McCallum, Thrun and Mitchell, 2000). An answer is worth how much nearer it is expected to bring
  the labels' means to those of all images (herding: Welling, ICML 2009), times the doubt there is
  about it now. At first all are in doubt, and what counts is the mean; later, the borders. Doubt
  alone would ask about odd images, and the mean alone about those known already.

Both are worked out by the Gaussian expert in closed form; no model is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from anytimecl.experts import GaussianExpert
from anytimecl.experts.gaussian import Space
from anytimecl.experts.statistics import FIXED
from anytimecl.pool import START, TINY

ROUNDS = 4  # of counting images to the labels that they look like
NAMED = START["original"] / START["gaussian"]  # weight of what the original model says


class Beliefs(NamedTuple):
    """What the experts say of some images."""

    images: Tensor  # [image, dim]
    original: Tensor  # [image, label], log-probabilities of the original model
    scores: Tensor  # [image, label], log-probabilities

    def pick(self, places: Tensor) -> Beliefs:
        """Of some of the images."""
        return Beliefs(*(part[places] for part in self))

    @property
    def doubt(self) -> Tensor:
        """Between the two likeliest labels [image], up to 1; none over no label."""
        best = self.scores.exp().topk(min(2, self.scores.shape[1]), 1).values
        return 1 - (best[:, :1].sum(1) - best[:, 1:].sum(1))


class Groups(NamedTuple):
    """Images of each label: how many, and their sums in the expert's space, from its centre."""

    space: Space
    counts: Tensor  # [label]
    sums: Tensor  # [label, dim]

    @classmethod
    def learned(cls, expert: GaussianExpert, rows: Sequence[int]) -> Groups:
        """The examples; -1 is a label never seen."""
        seen, space = torch.tensor(rows) >= 0, expert.space
        at = torch.tensor(rows).clamp_min(0)
        counts = expert.now.counts[at].float() * seen
        sums = (expert.now.sums[at].double() / FIXED).float() * seen.unsqueeze(1)
        return cls(space, counts, sums @ space.whiten - counts.unsqueeze(1) * space.centre)

    def joined(self, images: Tensor, shares: Tensor) -> Groups:
        """With images [image, dim], each shared out among the labels [image, label]."""
        return self._replace(counts=self.counts + shares.sum(0), sums=self.sums + shares.T @ images)

    def shares(self, images: Tensor, original: Tensor) -> Tensor:
        """[image, label]: how likely an image looks like each, however many each label has."""
        known = self.counts.unsqueeze(1) * self.space.ratio
        variance = 1 + self.space.ratio / (known + 1)
        mean = self.weight() * self.sums
        pull = mean / variance
        off = images.square() @ (1 / variance).T - 2 * images @ pull.T + (mean * pull).sum(1)
        return (NAMED * original - 0.5 * off).softmax(1)

    def weight(self, more: int = 0) -> Tensor:
        """[label, dim]: times the sum is the expert's mean, of a label with so many examples."""
        return self.space.ratio / ((self.counts.unsqueeze(1) + more) * self.space.ratio + 1)


def believed(
    expert: GaussianExpert,
    images: Tensor,  # [image, dim]
    original: Tensor,  # [image, label], log-probabilities of the original model
    rows: Sequence[int],  # [label], -1: never seen
) -> Beliefs:
    """As a pool of these two has it before any evidence.

    What the pool's weights are fitted on later are images that were asked about: they are no
    random ones, and say little of the others.
    """
    scores = START["gaussian"] * expert.scores(images, rows) + START["original"] * original
    return Beliefs(images, original, scores.log_softmax(1))


def most_telling(
    expert: GaussianExpert,
    asked: Beliefs,
    rows: Sequence[int],  # [label], -1: never seen
    chance: float,  # drawn between 0 and 1
) -> int:
    """The place of the image to ask about, among all those without a label or many of them."""
    if chance < unseen(expert):
        return int(explained(expert, asked.images).argmax())
    return int((expected_gain(expert, asked, rows).clamp_min(0) * asked.doubt).argmax())


def unseen(expert: GaussianExpert) -> float:
    """The chance that another image is of a label never seen, after Good and Turing."""
    counts = expert.now.counts
    total = int(counts.sum())
    return int((counts == 1).sum()) / total if total else 1.0


def explained(expert: GaussianExpert, asked: Tensor) -> Tensor:
    """How much likelier all become together, had an image [asked] a label of its own."""
    known = expert.scores(asked, range(expert.now.rows))
    known = torch.cat([known, known.new_zeros(len(asked), 1)], 1).amax(1, keepdim=True)
    space, (whitened, unknown) = expert.space, expert.whitened(asked)
    mean, variance = space.predictive(torch.ones(1), whitened + space.centre)
    pull = mean / variance
    offset = (pull * mean).sum(1) + variance.log().sum() - (1 + space.ratio).log().sum()
    distance = whitened.square() @ (1 / variance).T - 2 * whitened @ pull.T + offset
    return (-0.5 * distance - unknown.unsqueeze(1) - known).clamp_min(0).sum(0)


def expected_gain(
    expert: GaussianExpert,
    asked: Beliefs,
    rows: Sequence[int],  # [label], -1: never seen
) -> Tensor:
    """How much nearer [asked] an answer brings the labels' means to those of all images.

    In squares, times the images of the label, over the labels that it may have.
    """
    learned = every = Groups.learned(expert, rows)
    images = expert.whitened(asked.images)[0]
    for _ in range(ROUNDS):
        every = learned.joined(images, every.shares(images, asked.original))
    goal = every.sums / every.counts.clamp_min(TINY).unsqueeze(1)
    before = (learned.weight() * learned.sums - goal).square().sum(1)
    weight = learned.weight(1)
    off = weight * learned.sums - goal
    after = off.square().sum(1) + 2 * images @ (weight * off).T
    after = after + images.square() @ weight.square().T
    return (every.shares(images, asked.original) * every.counts * (before - after)).sum(1)
