"""What is measured of a model's image vectors, beside plain loops; and that it can be kept."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.helpers import picture
from torch import Tensor

from anytimecl.backbone.prior import VIEWS, Prior, measure, prior_file, view_space
from anytimecl.errors import ModelError
from anytimecl.experts import InstanceExpert

DIM, COUNT = 5, 40
PARTS = ("mean", "within", "between", "view", "near")


def made(dim: int = DIM, count: int = COUNT) -> tuple[Tensor, list[int], list[Tensor]]:
    """Unit vectors of ten labels, of which some have more than others, and two views of each."""
    noise = torch.Generator().manual_seed(0)
    labels = [number % 10 if number < count - 6 else 3 for number in range(count)]
    centres = torch.randn(10, dim, generator=noise)
    images = F.normalize(centres[labels] + 0.5 * torch.randn(count, dim, generator=noise), dim=1)
    views = [F.normalize(images + 0.1 * torch.randn(count, dim, generator=noise), dim=1)] * 2
    views[1] = F.normalize(images + 0.05 * torch.randn(count, dim, generator=noise), dim=1)
    return images, labels, views


def test_it_is_measured_as_written_down() -> None:
    images, labels, views = made()
    found = measure(images, labels, [view[:30] for view in views])
    x = images.double().numpy()
    groups = [x[[n for n, label in enumerate(labels) if label == y]] for y in range(10)]
    means = np.stack([group.mean(0) for group in groups])
    np.testing.assert_allclose(found.mean, means.mean(0), atol=1e-12)
    within = sum(np.outer(row - g.mean(0), row - g.mean(0)) for g in groups for row in g)
    within = within / (COUNT - 10)
    np.testing.assert_allclose(found.within, within, atol=1e-12)
    # The means of few images vary by themselves: by Sw / n each.
    between = np.cov(means.T) - within * np.mean([1 / len(group) for group in groups])
    values, vectors = np.linalg.eigh(between)
    between = vectors @ np.diag(np.maximum(values, 1e-6 * values.max())) @ vectors.T
    np.testing.assert_allclose(found.between, between, atol=1e-12)
    moved = np.stack([view[:30].double().numpy() - x[:30] for view in views], axis=1)

    def covariance(part: np.ndarray) -> np.ndarray:
        rows = part.reshape(-1, DIM)
        return sum(np.outer(row, row) for row in rows) / len(rows)

    np.testing.assert_allclose(found.view, covariance(moved), atol=1e-12)
    # Distances in a space measured on the first half of the scenes, of the other half.
    space = view_space(torch.from_numpy(within), torch.from_numpy(covariance(moved[:15]))).numpy()
    copies = [np.log(((d @ space) ** 2).sum()) for d in moved[15:].reshape(-1, DIM)]
    others = [
        min(np.log((((x[i] - x[j]) @ space) ** 2).sum()) for j in range(15, 30) if j != i)
        for i in range(15, 30)
    ]
    expected = [
        np.mean(copies), np.std(copies, ddof=1), np.mean(others), np.std(others, ddof=1)
    ]  # fmt: skip
    np.testing.assert_allclose(found.near, expected, rtol=1e-6)
    assert expected[0] < expected[2]


def test_saved_and_loaded_it_is_nearly_the_same_and_then_exactly(tmp_path: Path) -> None:
    images, labels, views = made()
    first = measure(images, labels, views)
    first.save(tmp_path / "new" / "prior.safetensors")
    once = Prior.load(tmp_path / "new" / "prior.safetensors")
    once.save(tmp_path / "again.safetensors")
    again = Prior.load(tmp_path / "again.safetensors")
    for part in PARTS:
        one, two, three = (getattr(each, part) for each in (first, once, again))
        torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-3 * float(one.abs().max()))
        assert two.dtype == torch.float64
        assert torch.equal(two, three), part
    files = [path.read_bytes() for path in (tmp_path / "new").iterdir()]
    assert files == [(tmp_path / "again.safetensors").read_bytes()]
    for matrix in (once.within, once.between, once.view):
        assert torch.equal(matrix, matrix.T)


def test_at_512_dimensions_it_is_small(tmp_path: Path) -> None:
    images, labels, views = made(512, 60)
    measure(images, labels, views).save(tmp_path / "prior")
    assert (tmp_path / "prior").stat().st_size < 1_500_000
    assert Prior.load(tmp_path / "prior").within.shape == (512, 512)  # singular, and rounded


@pytest.mark.parametrize("labels", [[0] * 6, [0, 0, 0, 1, 1, 2], [0, 0, 0, 2, 2, 2]])
def test_too_few_labels_or_images_are_refused(labels: list[int]) -> None:
    images = made()[0][:6]
    with pytest.raises(ModelError, match="two labels or more, with two images or more each"):
        measure(images, labels, [images])


@pytest.mark.parametrize("viewed", [1, 2])
def test_too_few_views_are_refused(viewed: int) -> None:
    """They ended in a linear algebra error, or in a prior that could not be loaded."""
    images, labels, views = made()
    with pytest.raises(ModelError, match=f"of 3 images or more, not of {viewed}"):
        measure(images, labels, [view[:viewed] for view in views])


def test_equal_images_and_views_make_a_whole_prior(tmp_path: Path) -> None:
    """As in a folder with copies, or with pictures that are their own mirror image."""
    images, labels, views = made()
    images[20:22] = images[29]
    views[1][25:28] = images[25:28]
    found = measure(images, labels, [view[:30] for view in views])
    found.save(tmp_path / "prior")
    np.testing.assert_allclose(Prior.load(tmp_path / "prior").near, found.near, rtol=1e-6)


def test_what_is_no_prior_is_refused(tmp_path: Path) -> None:
    images, labels, views = made()
    file = tmp_path / "prior"
    with pytest.raises(ModelError, match="measure it again"):
        Prior.load(file)
    measure(images, labels, views).save(file)
    whole = file.read_bytes()
    for cut in (b"", b"nonsense", whole[: len(whole) // 2]):
        file.write_bytes(cut)
        with pytest.raises(ModelError, match="measure it again"):
            Prior.load(file)


def test_views_show_the_same_scene() -> None:
    image = picture(0).resize((100, 60))
    cropped, mirrored, compressed = (view(image) for view in VIEWS)
    assert cropped.size == (90, 54)
    assert np.array_equal(np.asarray(cropped), np.asarray(image)[3:57, 5:95])
    assert np.array_equal(np.asarray(mirrored), np.asarray(image)[:, ::-1])
    assert compressed.size == image.size
    assert not np.array_equal(np.asarray(compressed), np.asarray(image))


def test_every_model_has_a_file_of_its_own() -> None:
    one, two = (prior_file(Path("cache"), name) for name in ("a model", "another/model"))
    assert one != two
    assert one.parent == two.parent == Path("cache") / "priors"


def test_distances_that_an_older_version_could_not_take_the_logarithm_of(tmp_path: Path) -> None:
    """Its memories open, and an image that was learned is known again."""
    images, labels, views = made()
    near = torch.tensor([-torch.inf, torch.nan, 1.5, 0.5])
    file = tmp_path / "prior.safetensors"
    dataclasses.replace(measure(images, labels, views), near=near).save(file)
    prior = Prior.load(file)
    assert prior.near[2:].tolist() == [1.5, 0.5]
    expert = InstanceExpert(DIM, prior)
    expert.add([1, 2], [0, 1], images[:2])
    copy, label = expert.nearest(torch.cat([images[1:2], images[5:6]]), [0, 1])
    assert copy[0] > 0.5 > copy[1]
    assert label[0] == 1


def test_the_embedded_prior_is_whole_and_small() -> None:
    from anytimecl.backbone import embedded

    file = Path(embedded.__file__).with_name("prior.safetensors")
    assert file.stat().st_size < 1_500_000
    prior = Prior.load(file)
    assert prior.mean.shape == (512,)
    for matrix in (prior.within, prior.between, prior.view):
        # Half precision leaves no direction as negative as what is added before it is used.
        assert torch.linalg.eigvalsh(matrix).min() > -0.1 * matrix.diagonal().mean()
    assert view_space(prior.within, prior.view).isfinite().all()
    copy, spread, other, width = prior.near.tolist()
    assert copy < other
    assert min(spread, width) > 0
