"""The Gaussian expert: probabilistic LDA on the original model's image embeddings.

With `W` such that `W' Sw W = 1` and `W' Sb W = diag(lambda)`, and `u = W'(x - m)`:

    y     n examples with mean ubar: u ~ Normal(mu, v),   mu = ubar n lambda / (n lambda + 1)
                                                          v  = 1 + lambda / (n lambda + 1)
    new   an unseen label:           u ~ Normal(0, 1 + lambda)
    G(y)  log p(u | y) - log p(u | new)

`Sw` is the within-label covariance: the prior's, counting as `STRENGTH` examples, plus the scatter
of the learned examples and a `ridge` that falls with their number. `Sb`, the between-label
covariance, is the prior's plus `FLOOR` times `Sw`. With one example, the prior shrinks each
direction of the mean separately; with many, the classifier is LDA.

(Ioffe, "Probabilistic Linear Discriminant Analysis", ECCV 2006; Hayes and Kanan, "Lifelong Machine
Learning with Deep Streaming Linear Discriminant Analysis", CVPRW 2020.)
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone.prior import Prior, isotropic
from anytimecl.errors import CheckpointError
from anytimecl.experts.statistics import FIXED, Statistics
from anytimecl.threads import one_thread

STRENGTH = 500.0  # nu0: examples that the prior's within-label covariance counts as
FLOOR = 0.05  # added to lambda: a prior from few images finds no variance in some directions
ANCHOR = 20.0  # examples that the prior's mean counts as
BLOCK = 64  # rows computed together, always as many, so that rounding is the same
LEFT = 0.05  # lower bound of the share of a variance that is left without an example


class Space(NamedTuple):
    """The projection in which `Sw` is the identity and `Sb` diagonal."""

    whiten: Tensor  # [dim, dim]
    centre: Tensor  # [dim], m, projected
    ratio: Tensor  # [dim], lambda: between-label variance in units of the within-label one

    def predictive(self, counts: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance [label, dim] of the next image, from projected means of examples."""
        known = counts.unsqueeze(1) * self.ratio
        return (means - self.centre) * known / (known + 1), 1 + self.ratio / (known + 1)

    def unknown(self, whitened: Tensor) -> Tensor:
        """Log-density [image] under an unseen label, up to a constant."""
        return -0.5 * (whitened.square() @ (1 / (1 + self.ratio)))


class _Block(NamedTuple):
    """Predictive distributions of `BLOCK` labels."""

    precision: Tensor  # [row, dim]
    pull: Tensor  # [row, dim], mean times precision
    offset: Tensor  # [row]
    expected: Tensor  # [row], T: expected score of an image of the label

    def distance(self, whitened: Tensor) -> Tensor:
        """-2 log-densities [image, row], minus that of an unseen label at its mean."""
        off = whitened.square() @ self.precision.T - 2 * whitened @ self.pull.T
        return off + self.offset


class _Gone(NamedTuple):
    """`Sw` without one example each: `Sw - share away away'`, by Sherman and Morrison."""

    away: Tensor  # [example, dim], difference from the label's mean, projected
    share: Tensor  # [example, 1]

    def more(self, cross: Tensor, along: Tensor) -> Tensor:
        """The resulting change of -2 log-density, for `d' V^-1 away` and `away' V^-1 away`."""
        share = self.share if cross.ndim == 2 else self.share[:, 0]
        left = (1 - share * along).clamp_min(LEFT)
        return share * cross.square() / left + left.log()

    def distance(self, whitened: Tensor, block: _Block) -> Tensor:
        """-2 log-densities [example, row]."""
        cross = (whitened * self.away) @ block.precision.T - self.away @ block.pull.T
        along = self.away.square() @ block.precision.T
        return block.distance(whitened) + self.more(cross, along)


class GaussianExpert:
    """Count and mean of each label's image embeddings, scored as log-likelihood ratios.

    The space is recomputed only at the examples numbered 8, 16, ... 128, 160, 200, ..., to amortise
    the eigendecomposition. It depends on which examples there are, not on the order in which they
    were added and removed.

    >>> expert = GaussianExpert(2)
    >>> for row, image in enumerate(torch.eye(2)):
    ...     expert.enter()
    ...     expert.add(row + 1, row, image)
    >>> expert.scores(torch.tensor([[1.0, 0.0]]), [0, 1]).argmax().item()
    0
    """

    def __init__(self, dim: int, prior: Prior | None = None) -> None:
        self.dim, self.prior = dim, prior
        self.now = Statistics(dim)
        self.settled = Statistics(dim)  # of the examples before `step`; the space is theirs
        self.step = 0
        self._space_of: Space | None = None
        self._blocks: dict[int, _Block] = {}

    def advance(self, example: int) -> bool:
        """Before an example is learned: update the space if it is due; returns whether it was."""
        step = last_step(example)
        if step <= self.step:
            return False
        self.step, self.settled = step, copy.deepcopy(self.now)
        self._follow()
        return True

    def add(self, example: int, row: int, image: Tensor) -> None:
        """Learn an example; a relabelled one was removed before."""
        self.add_many([row], image.unsqueeze(0))
        if example < self.step:
            self.settled.add([row], image.unsqueeze(0))
            self._follow()

    def add_many(self, rows: Sequence[int], images: Tensor) -> None:
        """Learn examples that no update of the space lies between."""
        for block in {row // BLOCK for row in rows}:
            self._blocks.pop(block, None)
        self.now.add(rows, images)

    def count(
        self, examples: Sequence[int], rows: Sequence[int], images: Tensor, labels: int
    ) -> None:
        """Recompute the statistics from these examples [example, dim] and no others.

        The space stays at the step it had reached: the example that led to it may be gone.
        """
        last = max(self.step, last_step(examples[-1]) if examples else 0)
        self.now, self.settled, self.step = Statistics(self.dim), Statistics(self.dim), 0
        for _ in range(labels):
            self.enter()
        early = sum(example < last for example in examples)
        self.add_many(rows[:early], images[:early])
        self.advance(last)
        self.add_many(rows[early:], images[early:])
        self._follow()

    def remove(self, example: int, row: int, image: Tensor) -> None:
        """Remove an example, exactly."""
        self.now.add([row], image.unsqueeze(0), -1)
        self._blocks.pop(row // BLOCK, None)
        if example < self.step:
            self.settled.add([row], image.unsqueeze(0), -1)
            self._follow()

    def enter(self) -> None:
        """Add a label."""
        for part in (self.now, self.settled):
            part.enter()
        self._blocks.pop((self.now.rows - 1) // BLOCK, None)

    def drop(self, row: int) -> None:
        """Remove a label; later rows move up."""
        for part in (self.now, self.settled):
            part.drop(row)
        self._blocks = {}

    @property
    def space(self) -> Space:
        """The projection, from the examples before `step`."""
        if self._space_of is None:
            self._space_of = _space(self.settled, self.prior)
        return self._space_of

    def whitened(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Projected images [image, dim], and their log-density under an unseen label [image]."""
        whitened = images @ self.space.whiten - self.space.centre
        return whitened, self.space.unknown(whitened)

    def scores(self, images: Tensor, rows: Sequence[int]) -> Tensor:
        """G, [image, label]."""
        return self.judged(images, rows)[0]

    def judged(self, images: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """G [image, label], and T [label], its expected value for an image of the label."""
        wanted = sorted({row // BLOCK for row in rows if row >= 0})
        found, expected = [images.new_zeros(len(images), 1)], [images.new_zeros(1)]
        whitened, unknown = self.whitened(images)
        for number in wanted:
            block = self._block(number)
            found.append(-0.5 * block.distance(whitened) - unknown.unsqueeze(1))
            expected.append(block.expected)
        start = {number: 1 + BLOCK * place for place, number in enumerate(wanted)}
        at = [start[row // BLOCK] + row % BLOCK if row >= 0 else 0 for row in rows]
        return torch.cat(found, 1)[:, at], torch.cat(expected)[at]

    def typical(self) -> Tensor:
        """T of each label with an example, [label]."""
        expected = torch.cat([block.expected for block in self._every_block()])
        return expected[self.now.counts.nonzero().flatten()]

    def left_out(
        self, images: Tensor, rows: Sequence[int], examples: Sequence[int] | None = None
    ) -> Tensor:
        """Leave-one-out scores [example, row] of learned examples."""
        return self.judged_left_out(images, rows, examples)[0]

    def judged_left_out(
        self, images: Tensor, rows: Sequence[int], examples: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Leave-one-out `judged`: G and T of learned examples, [example, row] both.

        The example is left out of its label's mean and of `Sw`: `Sw - share r r'`, with `r` its
        difference from that mean. (Examples from number `step` on are not in `Sw` yet.) The label
        keeps its count, as if an average image replaced the example: with one fewer, the true label
        would stand out wherever all labels have equally many. For the only example of a label both
        are 0: its score would say nothing about how good the expert is on labels it knows.
        """
        own, space = torch.tensor(rows), self.space
        whitened, _ = self.whitened(images)
        count, total = self.now.counts[own], self.now.sums[own].double() / FIXED
        rest = count - 1
        away = (images - total / count.clamp_min(1).unsqueeze(1)).float() @ space.whiten
        learned = self.settled.counts
        freedom = STRENGTH + int(learned.sum()) - int((learned > 0).sum())
        share = (rest > 0) * count / (rest.clamp_min(1) * freedom)
        if examples is not None:
            share = share * (torch.tensor(examples) < self.step)
        gone = _Gone(away, share.float().unsqueeze(1))

        blocks = self._every_block()
        everyone = torch.cat([gone.distance(whitened, block) for block in blocks], 1)
        expected = torch.cat([block.expected for block in blocks]).repeat(len(own), 1)
        means = ((total - images) / rest.clamp_min(1).unsqueeze(1)).float() @ space.whiten
        mean, variance = space.predictive(count.float(), means)
        off = (whitened - mean) / variance
        everyone[range(len(own)), own] = (
            gone.more((off * away).sum(1), (away.square() / variance).sum(1))
            + (off * (whitened - mean)).sum(1)
            - 2 * expected[range(len(own)), own]
        )
        new = 1 / (1 + space.ratio)
        unknown = gone.more((whitened * away) @ new, away.square() @ new)
        unknown = unknown + whitened.square() @ new
        scores = -0.5 * (everyone[:, : self.now.rows] - unknown.unsqueeze(1))
        heard = (rest > 0).unsqueeze(1)
        return scores * heard, expected[:, : self.now.rows] * heard

    def answering(self) -> GaussianExpert:
        """A snapshot for prediction, without the sums, which take most of the memory."""
        self._every_block()
        found = copy.copy(self)
        found._blocks = dict(self._blocks)
        found.now = found.settled = Statistics(0)
        return found

    def state(self) -> dict[str, Tensor]:
        """State for a checkpoint."""
        step = {"gaussian.step": torch.tensor(self.step)}
        return self.now.state("gaussian.now") | self.settled.state("gaussian.settled") | step

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restore from `state`; its labels have been added before."""
        mine = self.state()
        theirs, ours = ({n: (t.shape, t.dtype) for n, t in s.items()} for s in (state, mine))
        if theirs != ours:
            raise CheckpointError("The checkpoint has statistics of other labels or another model.")
        for name, value in mine.items():
            value.copy_(state[name])
        self.step = int(state["gaussian.step"])
        self._follow()

    def _follow(self) -> None:
        self._space_of, self._blocks = None, {}

    def _every_block(self) -> list[_Block]:
        return [self._block(number) for number in range(-(-self.now.rows // BLOCK))]

    def _block(self, number: int) -> _Block:
        found = self._blocks.get(number)
        if found is None:
            found = self._blocks[number] = self._made(number)
        return found

    @one_thread()  # the same bits, whichever thread asks first
    def _made(self, number: int) -> _Block:
        rows = slice(number * BLOCK, (number + 1) * BLOCK)
        counts, sums = self.now.counts[rows], self.now.sums[rows]
        spare = BLOCK - len(counts)
        counts, sums = F.pad(counts, (0, spare)), F.pad(sums, (0, 0, 0, spare))
        space = self.space
        means = sums.double() / (FIXED * counts.clamp_min(1)).unsqueeze(1)
        mean, variance = space.predictive(counts.float(), means.float() @ space.whiten)
        evidence = variance.log().sum(1) - (1 + space.ratio).log().sum()
        offset = (mean.square() / variance).sum(1) + evidence
        return _Block(1 / variance, mean / variance, offset, -0.5 * evidence)


def last_step(example: int) -> int:
    """The largest of 8, 16, ... 128, 160, 200, 250, ... up to this number.

    >>> [last_step(n) for n in (7, 8, 100, 128, 159, 160)]
    [0, 8, 64, 128, 128, 160]
    """
    step, found = 8, 0
    while step <= example:
        found, step = step, 2 * step if step < 128 else step + step // 4
    return found


def ridge(dim: int, freedom: float) -> float:
    """Ridge in units of the mean diagonal of `Sw`: the empirical-Bayes estimate, as in GDA.

    (Kubokawa and Srivastava, 2008; Wang et al., "A Hard-to-Beat Baseline", ICLR 2024.)
    """
    return dim / freedom


@one_thread()
def _space(known: Statistics, prior: Prior | None) -> Space:
    """The projection from integer statistics: the same examples give the same bits."""
    count, labels = int(known.counts.sum()), int((known.counts > 0).sum())
    sums = known.sums.double() / FIXED
    means = sums / known.counts.clamp_min(1).unsqueeze(1)
    scatter = known.moment.double() / FIXED**2 - sums.T @ means
    if prior is None:
        prior = isotropic(means[known.counts > 0], scatter, count)
    freedom = STRENGTH + count - labels
    within = (STRENGTH * prior.within + scatter) / freedom
    within.diagonal().add_(ridge(len(within), freedom) * within.diagonal().mean())
    centre = (sums.sum(0) + ANCHOR * prior.mean) / (count + ANCHOR)
    lower = torch.linalg.cholesky(within)
    half = torch.linalg.solve_triangular(lower, prior.between, upper=False)
    between = torch.linalg.solve_triangular(lower, half.T, upper=False)
    ratio, turn = torch.linalg.eigh((between + between.T) / 2)
    whiten = torch.linalg.solve_triangular(lower.T, turn, upper=True)
    ratio = ratio.clamp_min(0) + FLOOR
    return Space(whiten.float(), (centre @ whiten).float(), ratio.float())
