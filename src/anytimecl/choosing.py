"""Active learning: which unlabelled image to have labelled next.

A query either discovers a label or refines the seen ones. Discovery is chosen with the probability
that the next image has an unseen label, estimated as the share of examples that are the only one of
their label (Good, 1953; Turing).

- *Discovery*: the image that would increase the likelihood of all images most if it had a label of
  its own, where each image counts with its best label or none. This is one greedy step of facility
  location: dense regions first, each once.
- *Refinement*: the means of the labels that a few random examples give are rough. Better ones are
  estimated from the unlabelled images by a few rounds of expectation maximisation (Nigam,
  McCallum, Thrun and Mitchell, 2000). An image's value is how much closer its label is expected to
  bring the expert's means to those (herding: Welling, ICML 2009), times its uncertainty (margin).
  At first all are uncertain and the means count; later, the decision boundaries. Uncertainty alone
  would pick outliers, and the means alone images that are classified well already.

Both are computed by the Gaussian expert in closed form; no model is trained.
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

ROUNDS = 4  # of expectation maximisation
NAMED = START["original"] / START["gaussian"]  # weight of the original model's log-probabilities


class Beliefs(NamedTuple):
    """Scores of the experts for unlabelled images."""

    images: Tensor  # [image, dim]
    original: Tensor  # [image, label], log-probabilities of the original model
    scores: Tensor  # [image, label], log-probabilities

    def pick(self, places: Tensor) -> Beliefs:
        """A subset of the images."""
        return Beliefs(*(part[places] for part in self))

    @property
    def doubt(self) -> Tensor:
        """1 minus the margin between the two most probable labels, [image]."""
        best = self.scores.exp().topk(min(2, self.scores.shape[1]), 1).values
        return 1 - (best[:, :1].sum(1) - best[:, 1:].sum(1))


class Groups(NamedTuple):
    """Counts and sums of the images of each label, in the Gaussian expert's space."""

    space: Space
    counts: Tensor  # [label]
    sums: Tensor  # [label, dim]

    @classmethod
    def learned(cls, expert: GaussianExpert, rows: Sequence[int]) -> Groups:
        """From learned examples; row -1 is an unseen label."""
        seen, space = torch.tensor(rows) >= 0, expert.space
        at = torch.tensor(rows).clamp_min(0)
        counts = expert.now.counts[at].float() * seen
        sums = (expert.now.sums[at].double() / FIXED).float() * seen.unsqueeze(1)
        return cls(space, counts, sums @ space.whiten - counts.unsqueeze(1) * space.centre)

    def joined(self, images: Tensor, shares: Tensor) -> Groups:
        """With images [image, dim] added by soft assignment `shares` [image, label]."""
        return self._replace(counts=self.counts + shares.sum(0), sums=self.sums + shares.T @ images)

    def shares(self, images: Tensor, original: Tensor) -> Tensor:
        """Soft assignment [image, label], with equal label priors."""
        known = self.counts.unsqueeze(1) * self.space.ratio
        variance = 1 + self.space.ratio / (known + 1)
        mean = self.weight() * self.sums
        pull = mean / variance
        off = images.square() @ (1 / variance).T - 2 * images @ pull.T + (mean * pull).sum(1)
        return (NAMED * original - 0.5 * off).softmax(1)

    def weight(self, more: int = 0) -> Tensor:
        """Factor [label, dim] from a label's sum to its shrunken mean, with `more` examples."""
        return self.space.ratio / ((self.counts.unsqueeze(1) + more) * self.space.ratio + 1)


def believed(
    expert: GaussianExpert,
    images: Tensor,  # [image, dim]
    original: Tensor,  # [image, label], log-probabilities of the original model
    rows: Sequence[int],  # [label], -1: unseen
) -> Beliefs:
    """The pool of both with its prior weights.

    Weights fitted on queried images would be biased: these are not a random sample.
    """
    scores = START["gaussian"] * expert.scores(images, rows) + START["original"] * original
    return Beliefs(images, original, scores.log_softmax(1))


def most_telling(
    expert: GaussianExpert,
    asked: Beliefs,
    rows: Sequence[int],  # [label], -1: unseen
    chance: float,  # a uniform random number in [0, 1)
) -> int:
    """Index of the image to have labelled, among unlabelled images or a sample of them."""
    if chance < unseen(expert):
        return int(explained(expert, asked.images).argmax())
    return int((expected_gain(expert, asked, rows).clamp_min(0) * asked.doubt).argmax())


def unseen(expert: GaussianExpert) -> float:
    """Good-Turing estimate of the probability that the next image has an unseen label."""
    counts = expert.now.counts
    total = int(counts.sum())
    return int((counts == 1).sum()) / total if total else 1.0


def explained(expert: GaussianExpert, asked: Tensor) -> Tensor:
    """Gain in the log-likelihood of all images if an image had a label of its own, [asked]."""
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
    rows: Sequence[int],  # [label], -1: unseen
) -> Tensor:
    """Expected decrease of the squared distance from labels' means to their estimates, [asked].

    Weighted by the estimated number of images of the label, in expectation over its label.
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
