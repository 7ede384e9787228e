"""Classifiers over frozen vectors, each against its formula written out slowly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.lab.worlds import CLASSES, NOVEL, asked, world
from torch import Tensor

from anytimecl_lab.methods import METHODS, Frozen
from anytimecl_lab.methods._frozen import share
from anytimecl_lab.methods._random import fourier_features, relu_features
from anytimecl_lab.methods._ridge import left_out, ridge
from anytimecl_lab.methods.gda import discriminants
from anytimecl_lab.methods.klda import Klda
from anytimecl_lab.methods.rail import Rail
from anytimecl_lab.methods.ranpac import PENALTIES, PLAIN, RanPac, chosen
from anytimecl_lab.methods.slda import streamed
from anytimecl_lab.methods.tip_adapter import TipAdapter

PEERS = {name: kind for name, kind in METHODS.items() if issubclass(kind, Frozen)}


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    """Methods are run as the lab runs them."""
    with torch.no_grad():
        yield


def problem(count: int = 40, dim: int = 6, labels: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Unit vectors in groups, unevenly many, and their rows."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(labels, (count - labels,), generator=generator)
    targets = torch.cat([torch.arange(labels), drawn])
    centres = torch.randn(labels, dim, generator=generator)
    noise = torch.randn(count, dim, generator=generator)
    return F.normalize((centres[targets] + 0.7 * noise).double(), dim=-1), targets


# --------------------------------------------------------------------------- seen and never seen


@pytest.mark.parametrize("name", PEERS)
def test_the_original_model_decides_between_seen_and_never_seen(name: str) -> None:
    method = PEERS[name](
        world(), **({"features": 64} if name in ("ranpac", "klda", "rail") else {})
    )
    method.learn(list(range(24)))  # ants and bees
    tokens, _ = asked()
    names = (NOVEL[0], *CLASSES)
    original = METHODS["original"](world()).predict(tokens, names)
    among = method.predict(tokens, CLASSES[:2])
    found = method.predict(tokens, names)
    torch.testing.assert_close(among.sum(1), torch.ones(20))
    assert torch.equal(found[:, [0, 3, 4]], original[:, [0, 3, 4]])
    expected = original[:, 1:3].sum(1, keepdim=True) * among
    torch.testing.assert_close(found[:, 1:3], expected)


def test_a_share_is_of_the_seen_alone() -> None:
    original = torch.tensor([[0.1, 0.6, 0.3]])
    told = share(original, torch.tensor([[1.0]]), torch.tensor([False, True, False]))
    assert torch.equal(told, original)


@pytest.mark.parametrize("name", PEERS)
def test_zero_shot_logits_are_added_by_their_weight(name: str) -> None:
    method = PEERS[name](world(), zero_shot=(0.3, 1.0))  # type: ignore[call-arg]
    method.learn(world().arriving)
    tokens, _ = asked()
    images = method.world.image_vectors(method.world.tail, tokens)
    original = method.world.spec.logit_scale * images @ method.world.label_vectors(CLASSES).T
    order = [method.rows[label] for label in CLASSES]
    own = method._logits(images)[:, order].float()
    found = method.readings(tokens, CLASSES)
    assert list(found) == ["", "+ 0.3 zero-shot", "+ zero-shot"]
    for weight, scores in zip((0, 0.3, 1), found.values(), strict=True):
        torch.testing.assert_close(scores, (own + weight * original).softmax(1))


def test_vectors_that_are_known_are_not_worked_out_again() -> None:
    given = world()
    expected = given.original_vectors
    other = replace(given, examples=torch.empty(0), known=lambda: expected)
    for each in (method := PEERS["gda"](other), plain := PEERS["gda"](given)):
        each.learn(given.arriving)
    tokens, _ = asked()
    assert torch.equal(method.predict(tokens, CLASSES), plain.predict(tokens, CLASSES))


# -------------------------------------------------------------------------------- each one's paper


def test_the_nearest_mean_one_by_one() -> None:
    method = PEERS["class-mean"](world())
    method.learn(world().arriving)
    tokens, _ = asked()
    vectors = method.world.original_vectors
    images = method.world.image_vectors(method.world.tail, tokens)
    means = [sum(vectors[i] for i in range(12 * y, 12 * y + 12)) / 12 for y in range(4)]
    for image, found in zip(images, method.predict(tokens, CLASSES).argmax(1), strict=True):
        likeness = [float(image @ mean / mean.norm()) for mean in means]
        assert int(found) == int(np.argmax(likeness))


def test_the_nearest_mean_says_what_is_none_of_the_labels() -> None:
    method = PEERS["class-mean"](world())
    tokens, _ = asked()
    assert method.none(tokens, CLASSES) is None  # nothing learned, nothing to say
    method.learn(world().arriving)
    assert method.none(tokens, NOVEL) is None
    found = method.none(tokens, (*NOVEL, "cat"))
    vectors = method.world.original_vectors[24:36]
    mean = vectors.mean(0) / vectors.mean(0).norm()
    images = method.world.image_vectors(method.world.tail, tokens)
    assert found is not None
    torch.testing.assert_close(found, 1 - images @ mean)
    assert METHODS["original"](world()).none(tokens, CLASSES) is None


def test_streaming_lda_takes_one_example_at_a_time() -> None:
    """The paper's updates, as it writes them."""
    vectors, targets = problem()
    dim, labels = vectors.shape[1], int(targets.max()) + 1
    mean, counts = torch.zeros(labels, dim).double(), [0] * labels
    covariance = torch.zeros(dim, dim).double()
    for t, (z, y) in enumerate(zip(vectors, targets.tolist(), strict=True)):
        step = z - mean[y] if counts[y] else torch.zeros(dim).double()
        covariance = (t * covariance + t / (t + 1) * torch.outer(step, step)) / (t + 1)
        mean[y] = (counts[y] * mean[y] + z) / (counts[y] + 1)
        counts[y] += 1
    inverse = torch.linalg.inv((1 - 1e-4) * covariance + 1e-4 * torch.eye(dim))
    expected = [[float(z @ inverse @ m - m @ inverse @ m / 2) for m in mean] for z in vectors]
    found = streamed(vectors, targets, 1e-4)(vectors)
    torch.testing.assert_close(found, torch.tensor(expected).double())


@pytest.mark.parametrize("count", [12, 40])  # fewer than the width, and more
def test_gda_inverts_the_papers_estimate(count: int) -> None:
    vectors, targets = problem(count, dim=20)
    mean = torch.stack([vectors[targets == y].mean(0) for y in range(4)])
    covariance = (vectors - mean[targets]).T.cov()
    inverse = 20 * torch.linalg.inv(
        (count - 1) * covariance + covariance.trace() * torch.eye(20).double()
    )
    expected = vectors @ inverse @ mean.T - (mean @ inverse * mean).sum(1) / 2
    torch.testing.assert_close(discriminants(vectors, targets, 9.0)(vectors), expected)


def test_gda_is_scikit_learns_lda_with_its_shrinkage() -> None:
    analysis = pytest.importorskip("sklearn.discriminant_analysis")
    vectors, targets = problem(60, dim=6)
    added = 6 / 59  # times the mean diagonal
    theirs = analysis.LinearDiscriminantAnalysis(solver="lsqr", shrinkage=added / (1 + added)).fit(
        vectors.numpy(), targets.numpy()
    )
    expected = torch.from_numpy(theirs.decision_function(vectors.numpy()) - np.log(theirs.priors_))
    found = discriminants(vectors, targets, 9.0)(vectors)
    found, expected = (each - each.mean(1, keepdim=True) for each in (found, expected))
    ratio = float((found * expected).sum() / expected.square().sum())
    torch.testing.assert_close(found, ratio * expected)


def test_gda_of_one_example_each_is_the_nearest_mean() -> None:
    vectors, targets = problem(4)
    others, _ = problem(30, seed=0)
    distance = torch.cdist(others, vectors)
    found = discriminants(vectors, targets, 9.0)(others)
    assert found.isfinite().all()
    assert torch.equal(found.argmax(1), distance.argmin(1))
    torch.testing.assert_close(found, 9 * (others @ vectors.T - 0.5))


@pytest.mark.parametrize("width", [5, 50])
def test_ridge_regression_is_scikit_learns(width: int) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    vectors, targets = problem(20, dim=width)
    told = F.one_hot(targets).double()
    theirs = linear_model.Ridge(alpha=0.7, fit_intercept=False).fit(vectors.numpy(), told.numpy())
    expected = torch.from_numpy(theirs.coef_.T)
    torch.testing.assert_close(ridge(vectors, 0.7, vectors.T @ told), expected)


@pytest.mark.parametrize("width", [5, 19, 50])
def test_the_penalty_is_chosen_with_each_example_left_out(width: int) -> None:
    vectors, targets = problem(20, dim=width)
    told = F.one_hot(targets).double()
    errors = {}
    for penalty, found in zip(PENALTIES, left_out(vectors, told, PENALTIES), strict=True):
        if penalty < 1e-6:
            continue  # the slow way has no digits left
        others = [[j for j in range(20) if j != i] for i in range(20)]
        weights = [ridge(vectors[js], penalty, vectors[js].T @ told[js]) for js in others]
        expected = torch.stack([vectors[i] @ weight for i, weight in enumerate(weights)])
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        errors[penalty] = float((expected - told).square().sum())
    assert chosen(vectors, told) == min(errors, key=lambda each: errors[each])
    assert len(set(errors.values())) > 5


def test_an_only_example_says_nothing_of_the_penalty() -> None:
    vectors, targets = problem(20, dim=50)
    only = torch.tensor([[30.0] + [0.0] * 49]).double()  # left out, its label would be unknown
    told = F.one_hot(torch.cat([targets, torch.tensor([4])])).double()
    guesses = left_out(torch.cat([vectors, only]), told, PENALTIES)
    errors = [float((guess - told)[:20].square().sum()) for guess in guesses]
    assert chosen(torch.cat([vectors, only]), told) == PENALTIES[int(np.argmin(errors))]
    assert chosen(vectors[:4], F.one_hot(targets[:4]).double()) == PLAIN


def test_ranpac_regresses_on_its_projection() -> None:
    method = RanPac(world(), features=32)
    method.learn(world().arriving)
    features = relu_features(method.world.spec.dim, 32, 0, method.world.device)
    x = features(method.world.original_vectors.double())
    assert (x >= 0).all()
    assert x.shape == (48, 32)
    told = F.one_hot(torch.arange(48) // 12).double()
    expected = torch.linalg.inv(x.T @ x + method.penalty * torch.eye(32).double()) @ x.T @ told
    torch.testing.assert_close(method.weight, expected, atol=1e-6, rtol=1e-4)


def test_fourier_features_come_near_their_kernel() -> None:
    vectors, _ = problem(30)
    features = fourier_features(6, 50_000, 0.8, 3, torch.device("cpu"))(vectors)
    kernel = (-torch.cdist(vectors, vectors).square() / (2 * 0.8**2)).exp()
    torch.testing.assert_close(features @ features.T, kernel, atol=0.03, rtol=0)


def test_klda_is_lda_of_the_features() -> None:
    method = Klda(world(), features=64, width=0.5)
    method.learn(world().arriving)
    features = fourier_features(method.world.spec.dim, 64, 0.5, 0, method.world.device)
    x = features(method.world.original_vectors.double())
    expected = discriminants(x, torch.arange(48) // 12, 9.0)
    images = method.world.original_vectors[:5]
    torch.testing.assert_close(method._logits(images), expected(features(images.double())))


@pytest.mark.parametrize("kernel", [False, True])
def test_rail_is_its_recursion(kernel: bool) -> None:
    """Example by example, as the paper updates the inverse of the Gram matrix."""
    method = Rail(world(), features=24, kernel=kernel, penalty=0.5)
    method.learn(world().arriving)
    features = method.features(method.world.original_vectors.double())
    inverse = torch.eye(24).double() / 0.5
    weight = torch.zeros(24, 4).double()
    for x, y in zip(features, torch.arange(48) // 12, strict=True):
        gain = inverse @ x
        inverse = inverse - torch.outer(gain, gain) / (1 + x @ gain)
        weight = weight + torch.outer(inverse @ x, F.one_hot(y, 4).double() - x @ weight)
    torch.testing.assert_close(method.weight, weight, atol=1e-8, rtol=1e-6)


def test_tip_adapter_example_by_example() -> None:
    method = TipAdapter(world())
    method.learn([0, 1, 13, 25, 37, 40])
    tokens, _ = asked()
    given = method.world
    images = given.image_vectors(given.tail, tokens)
    logits = given.spec.logit_scale * images @ given.label_vectors(CLASSES).T
    for image, row in zip(images, logits, strict=True):
        for i in method.stored:
            likeness = float(image @ given.original_vectors[i])
            row[CLASSES.index(given.labels[i])] += 1.17 * np.exp(-5.5 * (1 - likeness))
    assert method.default == "+ zero-shot"  # a weight of 1, as in the paper
    torch.testing.assert_close(method.predict(tokens, CLASSES), logits.softmax(1))


def test_logistic_regression_is_scikit_learns() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    method = PEERS["logistic"](world(), strength=10.0)  # type: ignore[call-arg]
    method.learn(world().arriving)
    vectors = method.world.original_vectors
    theirs = linear_model.LogisticRegression(C=10.0, tol=1e-8, max_iter=2000)
    theirs.fit(vectors.numpy(), np.arange(48) // 12)
    tokens, _ = asked()
    images = method.world.image_vectors(method.world.tail, tokens)
    expected = torch.from_numpy(theirs.predict_proba(images.numpy())).float()
    torch.testing.assert_close(method.predict(tokens, CLASSES), expected, atol=2e-3, rtol=0)
