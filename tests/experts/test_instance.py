"""The instance expert beside plain loops, and that nothing stays of what is taken back."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.experts.test_gaussian import DIM, some_images, some_prior
from tests.helpers import changed
from torch import Tensor

from anytimecl.backbone.prior import LEAST, view_space
from anytimecl.errors import CheckpointError
from anytimecl.experts import instance
from anytimecl.experts.instance import COPIES, TRUST, InstanceExpert

PRIOR = some_prior()


def log_distance(one: Tensor, other: Tensor) -> float:
    """`d' (Sv^-1 - (2 Sw)^-1) d` with the shrunken covariances written out; none below zero."""
    within, view = PRIOR.within, PRIOR.view
    eye = torch.eye(DIM, dtype=torch.float64)
    within = within + 0.5 * within.diagonal().mean() * eye
    view = view + 0.3 * view.diagonal().mean() * eye
    ratio = torch.linalg.inv(view) - torch.linalg.inv(2 * within)
    d = (one - other).double()
    return math.log(max(float(d @ ratio @ d), LEAST))


def kept(examples: Sequence[int], rows: Sequence[int], images: Tensor) -> InstanceExpert:
    expert = InstanceExpert(DIM, PRIOR)
    for example, row, image in zip(examples, rows, images, strict=True):
        expert.add([example], [row], image[None])
    return expert


def apart_by_hand(images: Tensor) -> list[float]:
    """Of each to the nearest before it."""
    return [
        min((log_distance(one, other) for other in images[:n]), default=math.inf)
        for n, one in enumerate(images)
    ]


def bell(value: float, mean: float, spread: float) -> float:
    return math.exp(-(((value - mean) / spread) ** 2) / 2) / spread


def test_the_probability_of_a_copy_is_bayes_rule() -> None:
    images, rows = some_images(9), [0, 2, 1, 1, 0, 2, 3, 3, 1]
    expert = kept(range(1, 10), rows, images)
    noise = torch.Generator().manual_seed(2)
    asked = torch.cat([images[:4], images[4:8] + 0.01 * torch.randn(4, DIM, generator=noise)])
    asked = torch.cat([asked, some_images(4, seed=8)])
    copy, spread, other, width = PRIOR.near.tolist()
    own = [value for value in apart_by_hand(images) if value < math.inf]
    mean = (TRUST * other + sum(own)) / (TRUST + len(own))
    square = TRUST * (width**2 + (other - mean) ** 2) + sum((v - mean) ** 2 for v in own)
    width = math.sqrt(square / (TRUST + len(own)))
    sure, which = expert.nearest(asked, [3, -1, 1, 0])  # label 2 is not asked about
    place = {3: 0, 1: 2, 0: 3}
    among = [n for n in range(9) if rows[n] in place]
    for image, found, at in zip(asked, sure.tolist(), which.tolist(), strict=True):
        far = [log_distance(image, images[n]) for n in among]
        nearest = min(far)
        assert at == place[rows[among[far.index(nearest)]]]
        value = min(nearest, mean)
        is_copy = COPIES * bell(value, copy, spread)
        is_other = (1 - COPIES) * bell(value, mean, width)
        assert found == pytest.approx(is_copy / (is_copy + is_other), abs=2e-3)
    assert sure[0] > 0.5  # an image that was kept
    assert sure.min() < 0.4


def test_an_image_that_is_far_from_all_is_no_copy_however_wide_the_bells() -> None:
    expert = kept([1, 2], [0, 1], some_images(2))
    far = torch.stack([40.0 * some_images(1)[0], some_images(1, seed=3)[0]])
    sure, _ = expert.nearest(far, [0, 1])
    assert sure[0] < 0.5


def test_without_a_prior_or_without_images_nothing_is_a_copy() -> None:
    silent = InstanceExpert(DIM)
    silent.add([1], [0], some_images(1))
    assert silent.examples == []
    for expert in (silent, InstanceExpert(DIM, PRIOR), kept([1], [4], some_images(1))):
        sure, at = expert.nearest(some_images(3), [0, -1])
        assert sure.tolist() == [0.0] * 3
        assert at.tolist() == [0] * 3


def test_many_at_once_are_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than are kept, too."""
    monkeypatch.setattr(instance, "KEPT", 10)
    images, rows = some_images(25), [n % 4 for n in range(25)]
    for chunk in (1, 4, 100):
        monkeypatch.setattr(instance, "CHUNK", chunk)
        one = kept(range(1, 26), rows, images)
        many = InstanceExpert(DIM, PRIOR)
        many.add(range(1, 8), rows[:7], images[:7])
        many.add([], [], images[:0])
        many.add(range(8, 26), rows[7:], images[7:])
        for expert in (one, many):
            assert expert.examples == list(range(16, 26))
            assert expert.state()["instance.rows"].tolist() == rows[15:]
            found = expert.state()["instance.apart"]
            torch.testing.assert_close(
                found, torch.tensor(apart_by_hand(images[15:])), atol=1e-3, rtol=1e-4
            )


@settings(max_examples=30)
@given(st.data())
def test_nothing_is_left_of_what_is_taken_back(data: st.DataObject) -> None:
    """Nor of how far others were from it."""
    count = data.draw(st.integers(1, 14))
    gone = data.draw(st.sets(st.integers(1, count)))
    images, rows = some_images(count), [n % 3 for n in range(count)]
    expert = kept(range(1, count + 1), rows, images)
    if data.draw(st.booleans()):
        expert.remove(gone)
    else:
        for example in data.draw(st.permutations(sorted(gone))):
            expert.remove([example])
    left = [n for n in range(count) if n + 1 not in gone]
    fresh = kept([n + 1 for n in left], [rows[n] for n in left], images[left])
    for name, value in fresh.state().items():
        torch.testing.assert_close(expert.state()[name], value, atol=1e-3, rtol=1e-4)
    expert.remove([99])
    assert expert.examples == fresh.examples


def test_rows_behind_a_dropped_label_move_up() -> None:
    expert = kept([1, 2, 3], [0, 2, 3], some_images(3))
    expert.drop(1)
    assert expert.state()["instance.rows"].tolist() == [0, 1, 2]


def test_restored_it_is_the_same_and_goes_on_so() -> None:
    images = some_images(12)
    expert = kept(range(1, 7), [0, 1, 2] * 2, images[:6])
    saved = {name: value.clone() for name, value in expert.state().items()}
    again = InstanceExpert(DIM, PRIOR)
    again.restore(saved)
    for n in range(6, 12):
        for each in (expert, again):
            each.add([n + 1], [n % 3], images[n : n + 1])
    expert.remove([2])
    again.remove([2])
    assert changed(expert.state(), again.state()) == []
    with pytest.raises(CheckpointError, match="another model"):
        InstanceExpert(DIM + 1).restore(saved)
    del saved["instance.apart"]
    with pytest.raises(CheckpointError, match="another model"):
        again.restore(saved)


def test_square_distances_in_the_space_of_views_are_log_likelihood_ratios() -> None:
    space = view_space(PRIOR.within, PRIOR.view)
    one, other = F.normalize(torch.randn(2, DIM, dtype=torch.float64), dim=1)
    square = float(((one - other) @ space).square().sum())
    assert math.log(max(square, LEAST)) == pytest.approx(log_distance(one, other), abs=1e-9)
