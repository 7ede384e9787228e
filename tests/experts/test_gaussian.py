"""The Gaussian expert beside its formulas written out, and that taking back leaves nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from tests.helpers import changed
from torch import Tensor

from anytimecl.backbone.prior import Prior
from anytimecl.errors import CheckpointError
from anytimecl.experts.gaussian import (
    ANCHOR,
    BLOCK,
    FLOOR,
    STRENGTH,
    GaussianExpert,
    last_step,
)

DIM = 6
FIXED = 1 << 16


def some_images(count: int, seed: int = 0, dim: int = DIM) -> Tensor:
    """Unit vectors."""
    noise = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, dim, generator=noise), dim=1)


def some_prior(dim: int = DIM) -> Prior:
    noise = torch.Generator().manual_seed(5)

    def covariance(size: float) -> Tensor:
        root = torch.randn(dim, 2 * dim, generator=noise, dtype=torch.float64)
        return size * root @ root.T / (2 * dim)

    mean = 0.1 * torch.randn(dim, generator=noise, dtype=torch.float64)
    near = torch.tensor([0.0, 1.0, 3.0, 1.0], dtype=torch.float64)
    return Prior(mean, covariance(0.1), covariance(0.2), covariance(0.01), near)


def learned(
    examples: Sequence[int], rows: Sequence[int], images: Tensor, prior: Prior | None = None
) -> GaussianExpert:
    """One by one."""
    expert = GaussianExpert(images.shape[1], prior)
    for example, row, image in zip(examples, rows, images, strict=True):
        while expert.now.rows <= row:
            expert.enter()
        expert.advance(example)
        expert.add(example, row, image)
    return expert


class Slow:
    """The formulas, with full covariances and no whitening."""

    def __init__(self, settled: list[np.ndarray], prior: Prior) -> None:
        """From the images [image, dim] of each label that the space follows."""
        count = sum(len(each) for each in settled)
        labels = sum(len(each) > 0 for each in settled)
        scatter, total = np.zeros((DIM, DIM)), np.zeros(DIM)
        for each in settled:
            for image in each:
                off = image - each.mean(0)
                scatter += np.outer(off, off)
                total += image
        within = (STRENGTH * prior.within.numpy() + scatter) / (STRENGTH + count - labels)
        ridge = DIM / (STRENGTH + count - labels)
        self.within = within + ridge * np.diag(within).mean() * np.eye(DIM)
        self.between = prior.between.numpy() + FLOOR * self.within
        self.freedom = STRENGTH + count - labels
        self.centre = (total + ANCHOR * prior.mean.numpy()) / (count + ANCHOR)

    def score(self, image: np.ndarray, own: np.ndarray, gone: np.ndarray | float = 0.0) -> float:
        """log p(x | y) - log p(x | new): the mean of a label is a Gaussian with covariance Sb.

        Its n images vary around it with Sw, so that what they say of it is a Gaussian again. `gone`
        is taken out of the covariance of the image.
        """
        new = multivariate_normal(self.centre, self.within + self.between - gone).logpdf(image)
        if not len(own):
            return 0.0
        precision = np.linalg.inv(self.between) + len(own) * np.linalg.inv(self.within)
        spread = np.linalg.inv(precision)
        mean = self.centre + spread @ np.linalg.inv(self.within) @ (own - self.centre).sum(0)
        return float(multivariate_normal(mean, spread + self.within - gone).logpdf(image) - new)


def by_label(rows: Sequence[int], images: Tensor, labels: int) -> list[np.ndarray]:
    exact = (images.double() * FIXED).round().numpy() / FIXED
    return [exact[[i for i, row in enumerate(rows) if row == y]] for y in range(labels)]


COUNT, LABELS = 29, 4
ROWS = [(number * number + number // 3) % LABELS for number in range(COUNT - 1)] + [LABELS]


def test_scores_are_log_likelihood_ratios_of_full_gaussians() -> None:
    """The space follows what came before example 16; a label of one example, and one of none."""
    images, prior = some_images(COUNT), some_prior()
    expert = learned(range(1, COUNT + 1), ROWS, images, prior)
    expert.enter()  # and nothing of it
    assert expert.step == 16
    slow = Slow(by_label(ROWS[:15], images[:15], LABELS + 1), prior)
    own = [*by_label(ROWS, images, LABELS + 1), np.zeros((0, DIM))]
    asked = some_images(7, seed=1)
    found = expert.scores(asked, [3, -1, 0, 5, 4, 1, 2])
    for image, row in zip(asked.double().numpy(), found.tolist(), strict=True):
        expected = [slow.score(image, own[y]) for y in (3, 0, 5, 4, 1, 2)]
        expected.insert(1, 0.0)
        assert row == pytest.approx(expected, abs=2e-4)


def test_the_score_of_its_own_images_is_on_average_what_is_expected() -> None:
    """Over images drawn from what is believed of a label."""
    images, prior = some_images(COUNT), some_prior()
    expert = learned(range(1, COUNT + 1), ROWS, images, prior)
    space = expert.space
    noise = torch.Generator().manual_seed(3)
    _, expected = expert.judged(images[:1], range(LABELS + 1))
    counts, sums = expert.now.counts.float(), expert.now.sums.double() / FIXED
    mean, variance = space.predictive(counts, (sums / counts.unsqueeze(1)).float() @ space.whiten)
    unwhiten = torch.linalg.inv(space.whiten.double()).float()
    for row in range(LABELS + 1):
        drawn = mean[row] + variance[row].sqrt() * torch.randn(20_000, DIM, generator=noise)
        scores = expert.scores((drawn + space.centre) @ unwhiten, [row])[:, 0]
        # The prior's own variance of the image cancels but for how far the mean lies out.
        away = 0.5 * (mean[row].square() / (1 + space.ratio)).sum()
        extra = 0.5 * (variance[row] / (1 + space.ratio)).sum() - 0.5 * DIM
        torch.testing.assert_close(
            scores.mean(), expected[row] + away + extra, atol=0.05, rtol=0.02
        )


def test_it_is_the_same_with_any_number_of_threads() -> None:
    """A step follows with one of torch's threads, an opened memory with all there are."""
    images, rows = some_images(40, dim=512), [number % 4 for number in range(40)]
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            expert = learned(range(1, 41), rows, images, some_prior(512))
            space, block = expert.space, expert._block(0)
            found.append([*space, *block])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_many_rows_are_scored_in_blocks() -> None:
    """Whatever block a label stands in, and whoever is asked beside it."""
    count = 2 * BLOCK + 9
    images, rows = some_images(count), list(range(count))
    expert = learned(range(1, count + 1), rows, images, some_prior())
    whole = expert.scores(images[:5], rows)
    for asked in ([0], [BLOCK - 1, BLOCK, 2 * BLOCK + 8], [-1, 77], rows[::-1]):
        found = expert.scores(images[:5], asked)
        expected = torch.stack([whole[:, y] if y >= 0 else torch.zeros(5) for y in asked], dim=1)
        assert torch.equal(found, expected)
    assert expert.scores(images[:5], []).shape == (5, 0)
    assert expert.scores(images[:0], rows).shape == (0, count)


def test_left_out_is_an_expert_that_had_an_average_image_instead_of_the_example() -> None:
    """Neither in the mean of its label nor in Sw; of the only one of its label nothing is said.

    Those that came after the step, from 16 on, were never in Sw.
    """
    images, prior = some_images(COUNT), some_prior()
    numbers = range(1, COUNT + 1)
    expert = learned(numbers, ROWS, images, prior)
    found = expert.left_out(images, ROWS, numbers)
    slow = Slow(by_label(ROWS[:15], images[:15], LABELS + 1), prior)
    every = by_label(ROWS, images, LABELS + 1)
    for left, (image, row) in enumerate(zip(images.double().numpy(), ROWS, strict=True)):
        if row == LABELS:
            assert not found[left].any()
            continue
        away = image - every[row].mean(0)
        count = len(every[row])
        gone = np.outer(away, away) * count / (count - 1) / slow.freedom if left < 15 else 0.0
        others = [i for i in range(COUNT) if i != left]
        own = by_label([ROWS[i] for i in others], images[others], LABELS + 1)
        own[row] = np.concatenate([own[row], own[row].mean(0, keepdims=True)])
        expected = [slow.score(image, own[y], gone) for y in range(LABELS + 1)]
        assert found[left].tolist() == pytest.approx(expected, abs=5e-4)


def test_what_is_typical_of_a_label_follows_from_how_many_examples_it_has() -> None:
    images, rows = some_images(9), [0, 0, 0, 0, 1, 1, 1, 2, 2]
    expert = learned(range(1, 10), rows, images, some_prior())
    _, typical = expert.judged(images, [0, 1, 2])
    assert typical[0] > typical[1] > typical[2] > 0
    _, without = expert.judged_left_out(images, rows)
    for left in range(9):  # nothing gives the true label away
        assert torch.equal(without[left], typical)


def test_an_example_looks_farther_off_where_it_does_not_vouch_for_itself() -> None:
    """With as many directions as examples, each would widen Sw just where it lies."""
    images = some_images(40, dim=32)
    rows = [number % 4 for number in range(40)]
    expert = learned(range(1, 41), rows, images)
    expert.advance(64)
    own = torch.tensor(rows)
    out = expert.left_out(images, rows, range(1, 41))
    in_it = expert.left_out(images, rows, range(100, 140))  # as if Sw had none of them
    assert (out.argmax(1) == own).float().mean() <= (in_it.argmax(1) == own).float().mean()
    assert not torch.equal(out, in_it)


def test_many_at_once_are_one_by_one() -> None:
    images = some_images(COUNT)
    one = learned(range(1, COUNT + 1), ROWS, images, some_prior())
    many = GaussianExpert(DIM, some_prior())
    many.count(range(1, COUNT + 1), ROWS, images, LABELS + 1)
    assert changed(one.state(), many.state()) == []
    asked = some_images(3, seed=2)
    assert torch.equal(one.scores(asked, range(5)), many.scores(asked, range(5)))
    many.count([], [], images[:0], 0)
    assert many.now.rows == 0
    assert not many.now.moment.any()


def test_counting_again_keeps_the_step_that_the_space_has_come_to() -> None:
    """Whatever was taken back: the next step would come sooner otherwise."""
    images = some_images(17)
    taken = learned(range(1, 18), ROWS[:17], images, some_prior())
    counted = learned(range(1, 18), ROWS[:17], images, some_prior())
    assert taken.step == 16
    for example in (17, 16, 3):
        taken.remove(example, ROWS[example - 1], images[example - 1])
    left = [i for i in range(17) if i + 1 not in (17, 16, 3)]
    counted.count([i + 1 for i in left], [ROWS[i] for i in left], images[left], LABELS)
    assert changed(taken.state(), counted.state()) == []


@settings(max_examples=40)
@given(st.data())
def test_what_came_and_went_in_any_order_leaves_the_same_whole_numbers(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    images = some_images(count)
    rows = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    kept = data.draw(st.sets(st.integers(0, count - 1)))
    order = data.draw(st.permutations(range(count)))
    expert = GaussianExpert(DIM, some_prior())
    plain = GaussianExpert(DIM, some_prior())
    for _ in range(4):
        expert.enter()
        plain.enter()
    for i in order:
        expert.add(i + 1, rows[i], images[i])
    for i in reversed(order):
        if i not in kept:
            expert.remove(i + 1, rows[i], images[i])
    for i in sorted(kept):
        plain.add(i + 1, rows[i], images[i])
    assert changed(expert.state(), plain.state()) == []
    assert expert.now.counts.tolist() == [sum(rows[i] == y for i in kept) for y in range(4)]
    asked = some_images(2, seed=9)
    assert torch.equal(expert.scores(asked, range(4)), plain.scores(asked, range(4)))


def test_taken_back_the_space_does_not_know_it_either() -> None:
    images, prior = some_images(20), some_prior()
    expert = learned(range(1, 21), ROWS[:20], images, prior)
    asked = some_images(3, seed=2)
    before = expert.scores(asked, range(LABELS))
    expert.remove(4, ROWS[3], images[3])  # before step 16
    left = [i for i in range(20) if i != 3]
    fresh = learned([i + 1 for i in left], [ROWS[i] for i in left], images[left], prior)
    assert changed(expert.state(), fresh.state()) == []
    after = expert.scores(asked, range(LABELS))
    assert torch.equal(after, fresh.scores(asked, range(LABELS)))
    assert not torch.allclose(after, before)


def test_rows_behind_a_dropped_label_move_up() -> None:
    images, rows = some_images(12), [0, 1, 2] * 4
    expert = learned(range(1, 13), rows, images, some_prior())
    for i in range(1, 12, 3):
        expert.remove(i + 1, 1, images[i])
    expert.drop(1)
    left = [i for i in range(12) if rows[i] != 1]
    moved = [0 if rows[i] == 0 else 1 for i in left]
    fresh = learned([i + 1 for i in left], moved, images[left], some_prior())
    assert changed(expert.state(), fresh.state()) == []
    asked = some_images(3, seed=2)
    assert torch.equal(expert.scores(asked, [0, 1]), fresh.scores(asked, [0, 1]))


def test_steps_double_and_then_grow_by_a_quarter() -> None:
    steps = [0, 8, 16, 32, 64, 128]
    while steps[-1] < 3000:
        steps.append(steps[-1] + steps[-1] // 4)
    for example in range(1, 2500):
        assert last_step(example) == max(step for step in steps if step <= example)


def test_the_space_follows_in_steps() -> None:
    images, expert = some_images(40), GaussianExpert(DIM, some_prior())
    expert.enter()
    told = []
    for example, image in enumerate(images, start=1):
        if expert.advance(example):
            told.append(example)
            assert int(expert.settled.counts.sum()) == example - 1
        assert not expert.advance(example)
        expert.add(example, 0, image)
    assert told == [8, 16, 32]


def test_a_step_that_no_example_has_is_made_up_for_by_the_next() -> None:
    """Numbers are of the journal, which has other entries too."""
    images = some_images(4)
    expert = learned([5, 7, 11, 12], [0, 0, 0, 0], images, some_prior())
    assert (expert.step, expert.settled.counts.tolist()) == (8, [2])


@pytest.mark.parametrize("prior", [None, some_prior()])
def test_restored_it_is_the_same_and_goes_on_so(prior: Prior | None) -> None:
    images = some_images(COUNT + 20)
    rows = [*ROWS, *(n % LABELS for n in range(20))]
    expert = learned(range(1, COUNT + 1), ROWS, images[:COUNT], prior)
    saved = {name: value.clone() for name, value in expert.state().items()}
    again = GaussianExpert(DIM, prior)
    for _ in range(LABELS + 1):
        again.enter()
    again.restore(saved)
    asked = some_images(3, seed=2)
    for n in range(COUNT, COUNT + 20):
        assert changed(expert.state(), again.state()) == []
        assert torch.equal(expert.scores(asked, range(5)), again.scores(asked, range(5)))
        for each in (expert, again):
            each.advance(n + 1)
            each.add(n + 1, rows[n], images[n])
    assert changed(saved, expert.state()) != []  # and the copy that was kept is one


def test_statistics_of_others_are_refused() -> None:
    expert = learned(range(1, COUNT + 1), ROWS, some_images(COUNT))
    wider = GaussianExpert(DIM + 1)
    fewer = GaussianExpert(DIM)
    fewer.enter()
    for other in (wider, fewer):
        with pytest.raises(CheckpointError, match="other labels or another model"):
            other.restore(expert.state())
    lacking = expert.state()
    del lacking["gaussian.now.moment"]
    with pytest.raises(CheckpointError):
        expert.restore(lacking)


def test_an_answering_copy_says_the_same_and_stays_as_it_was() -> None:
    images = some_images(COUNT)
    expert = learned(range(1, COUNT + 1), ROWS, images, some_prior())
    copy, asked = expert.answering(), some_images(3, seed=2)
    before = expert.scores(asked, [0, -1, 4])
    expert.add(COUNT + 1, 0, images[3])
    expert.advance(64)
    assert torch.equal(copy.scores(asked, [0, -1, 4]), before)
    assert not torch.equal(expert.scores(asked, [0, -1, 4]), before)
    assert copy.now.moment.numel() == 0


def test_without_a_prior_it_learns_from_what_it_is_shown() -> None:
    """Labels in clusters: held-out images are told apart, and far ones are new."""
    noise, dim = torch.Generator().manual_seed(0), 16
    centres = F.normalize(torch.randn(5, dim, generator=noise), dim=1)

    def around(row: int) -> Tensor:
        return F.normalize(centres[row] + 0.1 * torch.randn(dim, generator=noise), dim=0)

    rows = [n % 5 for n in range(40)]
    expert = learned(range(1, 41), rows, torch.stack([around(row) for row in rows]))
    asked = torch.stack([around(row) for row in range(5)] * 4)
    found = expert.scores(asked, range(5))
    assert found.argmax(1).tolist() == list(range(5)) * 4
    assert (found.amax(1) > 0).all()
    away = F.normalize(torch.randn(20, dim, generator=noise), dim=1)
    assert expert.scores(away, range(5)).amax(1).median() < found.amax(1).min()


@pytest.mark.parametrize("count", [0, 1, 2, 9, 33])
@pytest.mark.parametrize("alike", [False, True])
def test_however_little_was_learned_scores_are_finite(count: int, alike: bool) -> None:
    """The same image again and again has no spread at all."""
    images = some_images(1).expand(count, -1) if alike else some_images(count)
    for prior in (None, some_prior()):
        for rows in ([0] * count, list(range(count))):
            expert = learned(range(1, count + 1), rows, images, prior)
            expert.enter()
            asked = torch.cat([images[:2], some_images(3, seed=4)])
            assert expert.scores(asked, range(expert.now.rows)).isfinite().all()
            if count:
                assert expert.left_out(images, rows).isfinite().all()
