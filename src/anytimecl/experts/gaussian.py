"""The Gaussian expert: probabilistic LDA on the original model's image vectors.

With `W` such that `W' Sw W = 1` and `W' Sb W = diag(lambda)`, and `u = W'(x - m)`:

    y     n examples with mean ubar: u ~ Normal(mu, v),   mu = ubar n lambda / (n lambda + 1)
                                                          v  = 1 + lambda / (n lambda + 1)
    new   a label never seen:        u ~ Normal(0, 1 + lambda)
    G(y)  log p(u | y) - log p(u | new)

`Sw` is the covariance within labels: that of the model's prior, standing for `STRENGTH` examples,
with what was learned, and a `ridge` that fades as examples come. `Sb`, between labels, is the
prior's, and at least `FLOOR` of `Sw` in every direction. One example already says much, because
what differs between images of one label and what differs between labels is known beforehand; with
many it becomes LDA.

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

STRENGTH = 500.0  # examples that the prior's covariance within labels stands for
FLOOR = 0.05  # added to lambda: a prior of some thousand images cannot tell little from nothing
ANCHOR = 20.0  # examples that the prior's mean stands for
BLOCK = 64  # rows worked out together: always as many, so that they round alike
LEFT = 0.05  # the least of a variance that is left when an example is taken out of it


class Space(NamedTuple):
    """Where images of a label are spread alike in all directions."""

    whiten: Tensor  # [dim, dim]
    centre: Tensor  # [dim], whitened
    ratio: Tensor  # [dim], lambda: variance between labels, in units of that within

    def predictive(self, counts: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance [label, dim] of the next image, from means that are whitened."""
        known = counts.unsqueeze(1) * self.ratio
        return (means - self.centre) * known / (known + 1), 1 + self.ratio / (known + 1)

    def unknown(self, whitened: Tensor) -> Tensor:
        """Log-density [image] of a label never seen, as far as it depends on the image."""
        return -0.5 * (whitened.square() @ (1 / (1 + self.ratio)))


class _Block(NamedTuple):
    """Some labels, ready to be compared with images."""

    precision: Tensor  # [row, dim]
    pull: Tensor  # [row, dim], mean times precision
    offset: Tensor  # [row]
    expected: Tensor  # [row], the score that an image of the label has on average

    def distance(self, whitened: Tensor) -> Tensor:
        """-2 log-densities [image, row], less that of a label never seen at its centre."""
        off = whitened.square() @ self.precision.T - 2 * whitened @ self.pull.T
        return off + self.offset


class _Gone(NamedTuple):
    """What `Sw` is without one example each: `Sw - share away away'`, by Sherman and Morrison."""

    away: Tensor  # [example, dim], from the mean of its label, whitened
    share: Tensor  # [example, 1]

    def more(self, cross: Tensor, along: Tensor) -> Tensor:
        """What that adds to -2 log-density, for `d' V^-1 away` and `away' V^-1 away`."""
        share = self.share if cross.ndim == 2 else self.share[:, 0]
        left = (1 - share * along).clamp_min(LEFT)
        return share * cross.square() / left + left.log()

    def distance(self, whitened: Tensor, block: _Block) -> Tensor:
        """-2 log-densities [example, row]."""
        cross = (whitened * self.away) @ block.precision.T - self.away @ block.pull.T
        along = self.away.square() @ block.precision.T
        return block.distance(whitened) + self.more(cross, along)


class GaussianExpert:
    """Statistics of the images of each label, and what they say of another image.

    The space follows what was learned in steps, after 8, 16, ... 128, 160, 200, ... examples: they
    are few enough to cost little, and it depends on which examples there are, not on the order in
    which they came and went.

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
        self.settled = Statistics(dim)  # of the examples before `step`, which the space follows
        self.step = 0
        self._space_of: Space | None = None
        self._blocks: dict[int, _Block] = {}

    def advance(self, example: int) -> bool:
        """Whether the space follows what was learned before this example; the next takes longer."""
        step = last_step(example)
        if step <= self.step:
            return False
        self.step, self.settled = step, copy.deepcopy(self.now)
        self._follow()
        return True

    def add(self, example: int, row: int, image: Tensor) -> None:
        """Learn an example, or one again that had another label."""
        self.add_many([row], image.unsqueeze(0))
        if example < self.step:
            self.settled.add([row], image.unsqueeze(0))
            self._follow()

    def add_many(self, rows: Sequence[int], images: Tensor) -> None:
        """Examples that no step lies between; the same as one by one."""
        for block in {row // BLOCK for row in rows}:
            self._blocks.pop(block, None)
        self.now.add(rows, images)

    def count(
        self, examples: Sequence[int], rows: Sequence[int], images: Tensor, labels: int
    ) -> None:
        """These examples [example, dim] and no others, as if they were all that ever came.

        The space follows those before the step that it has come to: one that was taken back may
        have been the last before it.
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
        """Take an example back."""
        self.now.add([row], image.unsqueeze(0), -1)
        self._blocks.pop(row // BLOCK, None)
        if example < self.step:
            self.settled.add([row], image.unsqueeze(0), -1)
            self._follow()

    def enter(self) -> None:
        """Another label."""
        for part in (self.now, self.settled):
            part.enter()
        self._blocks.pop((self.now.rows - 1) // BLOCK, None)

    def drop(self, row: int) -> None:
        """A label was never seen."""
        for part in (self.now, self.settled):
            part.drop(row)
        self._blocks = {}

    @property
    def space(self) -> Space:
        """As it follows from the examples before `step`."""
        if self._space_of is None:
            self._space_of = _space(self.settled, self.prior)
        return self._space_of

    def whitened(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images [image, dim] in that space, and what a label never seen says of each [image]."""
        whitened = images @ self.space.whiten - self.space.centre
        return whitened, self.space.unknown(whitened)

    def scores(self, images: Tensor, rows: Sequence[int]) -> Tensor:
        """G: [image, label]."""
        return self.judged(images, rows)[0]

    def judged(self, images: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """G [image, label], and what it would be on average for an image of that label [label]."""
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
        """[label], of those that have an example: the score of an image of it, on average."""
        expected = torch.cat([block.expected for block in self._every_block()])
        return expected[self.now.counts.nonzero().flatten()]

    def left_out(
        self, images: Tensor, rows: Sequence[int], examples: Sequence[int] | None = None
    ) -> Tensor:
        """[example, row]: scores of examples that were learned, each as if it had not been."""
        return self.judged_left_out(images, rows, examples)[0]

    def judged_left_out(
        self, images: Tensor, rows: Sequence[int], examples: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """`judged` for examples that were learned, each as if it had not been: [example, row] both.

        It is left out of the mean of its label, and of `Sw`, which it would make look nearer than
        another image does: `Sw - share r r'`, with `r` how far it lies from that mean. (Examples
        with a number from `step` on are not in `Sw` yet.) The label keeps its count, as if an
        average image of it stood there instead: one fewer than the others would give the true
        label away wherever all have equally many. Of one that is the only one of its label nothing
        is said, 0 throughout: what this expert would say of it, to whom the label were new, is
        nothing about how good it is at labels that it knows.
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
        """As it is now, to be asked and not taught: without the sums, which are most of it."""
        self._every_block()
        found = copy.copy(self)
        found._blocks = dict(self._blocks)
        found.now = found.settled = Statistics(0)
        return found

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        step = {"gaussian.step": torch.tensor(self.step)}
        return self.now.state("gaussian.now") | self.settled.state("gaussian.settled") | step

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Back from `state`, for as many labels as there are rows."""
        mine = self.state()
        if state.keys() != mine.keys() or any(
            (state[name].shape, state[name].dtype) != (value.shape, value.dtype)
            for name, value in mine.items()
        ):
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

    @one_thread()  # whoever asks first, while learning or in an opened memory, finds the same
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
    """The last of 8, 16, ... 128, 160, 200, 250, ... that is not behind this example.

    >>> [last_step(n) for n in (7, 8, 100, 128, 159, 160)]
    [0, 8, 64, 128, 128, 160]
    """
    step, found = 8, 0
    while step <= example:
        found, step = step, 2 * step if step < 128 else step + step // 4
    return found


def ridge(dim: int, freedom: float) -> float:
    """Of the mean diagonal of `Sw`, added to it: the empirical-Bayes estimate, as in GDA's.

    (Kubokawa and Srivastava, 2008; Wang et al., "A Hard-to-Beat Baseline", ICLR 2024.)
    """
    return dim / freedom


@one_thread()
def _space(known: Statistics, prior: Prior | None) -> Space:
    """From whole numbers, and so the same from the same examples."""
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
