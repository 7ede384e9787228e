"""The pool's weights beside a general minimiser, and what its gate owes to whom."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import norm
from tests import helpers
from torch import Tensor

from anytimecl.classifier import AnytimeClassifier
from anytimecl.pool import (
    CERTAINTY,
    OTHERS,
    START,
    Familiar,
    fit,
    gate,
    pooled,
    start_weights,
    weigh,
)


def evidence(
    seed: int, experts: int, examples: int, labels: int, spread: float
) -> tuple[Tensor, Tensor]:
    """Scores [expert, example, label] and true labels: the first expert knows most."""
    noise = torch.Generator().manual_seed(seed)
    target = torch.randint(labels, (examples,), generator=noise)
    scores = spread * torch.randn(experts, examples, labels, generator=noise)
    for expert in range(experts):
        scores[expert, range(examples), target] += 2 * spread / (1 + expert)
    return scores, target


def loss_by_hand(log_weights: np.ndarray, scores: np.ndarray, target: list[int]) -> float:
    origin = np.log(START_WEIGHTS[: len(log_weights)])
    total = CERTAINTY / 2 * float(((log_weights - origin) ** 2).sum())
    for example, label in enumerate(target):
        mixed = sum(np.exp(w) * s[example] for w, s in zip(log_weights, scores, strict=True))
        total += float(logsumexp(mixed) - mixed[label])
    return total


START_WEIGHTS = np.array([0.15, 0.05, 0.2])


@pytest.mark.parametrize("spread", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("experts", [1, 2, 3])
@pytest.mark.parametrize("examples", [1, 8, 60])
def test_weights_are_the_minimum_of_the_penalised_log_loss(
    experts: int, examples: int, spread: float
) -> None:
    scores, target = evidence(examples + experts, experts, examples, 5, spread)
    start = torch.tensor(START_WEIGHTS[:experts])
    found = fit(scores, target, start).double().log().numpy()
    plain, wanted = scores.double().numpy(), target.tolist()
    best = min(
        minimize(loss_by_hand, at, args=(plain, wanted), method="Nelder-Mead", tol=1e-10).fun
        for at in (np.log(START_WEIGHTS[:experts]), found)
    )
    assert loss_by_hand(found, plain, wanted) == pytest.approx(best, rel=1e-5, abs=1e-6)


def test_without_a_lesson_in_it_evidence_moves_nothing() -> None:
    """Experts that say the same of every label."""
    start = torch.tensor([0.1, 0.2])
    assert torch.allclose(fit(torch.zeros(2, 5, 3), torch.zeros(5, dtype=torch.long), start), start)


def test_the_order_of_experts_is_of_no_account() -> None:
    scores, target = evidence(0, 3, 30, 4, 2.0)
    said = dict(zip(("tuned", "original", "gaussian"), scores, strict=True))
    one = weigh(said, target)
    other = weigh(dict(reversed(said.items())), target)
    assert one == pytest.approx(other, rel=1e-4)
    assert list(one) == list(said)
    assert one["tuned"] > one["original"]


def test_whoever_is_new_starts_low() -> None:
    assert start_weights(["tuned", "mine"]) == {"tuned": START["tuned"], "mine": OTHERS}


def test_where_labels_are_codes_the_tuned_model_has_no_start() -> None:
    """It is a copy of the original model, which knows nothing of them."""
    start = start_weights(["tuned", "original", "gaussian"], names=False)
    assert start == {**START, "tuned": START["original"]}
    silent = torch.zeros(5, 3)
    weights = weigh({"tuned": silent, "original": silent}, torch.zeros(5).long(), names=False)
    assert weights == pytest.approx({"tuned": 0.05, "original": 0.05})


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 4), st.sampled_from([0.1, 10.0, 1e4]))
def test_whatever_the_evidence_weights_are_positive_and_finite(
    seed: int, experts: int, spread: float
) -> None:
    scores, target = evidence(seed, experts, seed % 20 + 1, seed % 7 + 1, spread)
    found = fit(scores, target, torch.full((experts,), 0.1))
    assert found.isfinite().all()
    assert (found > 0).all()


def probabilities(seed: int, images: int, labels: int) -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(seed)
    tuned, original = 5 * torch.randn(2, images, labels, generator=noise)
    return tuned.softmax(1), original.softmax(1)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.data())
def test_the_gate_leaves_unseen_labels_bit_for_bit_and_shares_out_no_more_than_one(
    seed: int, data: st.DataObject
) -> None:
    labels = data.draw(st.integers(1, 6))
    seen = torch.tensor(data.draw(st.lists(st.booleans(), min_size=labels, max_size=labels)))
    if not seen.any():
        seen[0] = True
    tuned, original = probabilities(seed, 3, labels)
    among = pooled([tuned.log(), original.log()], [0.5, 0.3], seen)
    torch.testing.assert_close(among.sum(1), torch.ones(3))
    assert not among[:, ~seen].any()
    examples, known = 30 * torch.rand(labels), torch.rand(labels)
    found = gate(among, tuned, original, seen, examples * seen, known)
    assert torch.equal(found[:, ~seen], original[:, ~seen])
    assert (found >= 0).all()
    assert (found[:, seen].sum(1) <= 1 + 1e-5).all()
    if seen.all():
        assert torch.equal(found, among)
    # Among labels that are judged alike, whoever is ahead in the pool stays ahead.
    alike = gate(among, tuned, original, seen, examples * seen, torch.full((labels,), 0.3))
    assert torch.equal(alike[:, seen].argmax(1), among[:, seen].argmax(1))


def test_familiar_images_are_given_to_the_seen_labels() -> None:
    """Half of the models' log-odds of seen against unseen, and half of the ratio."""
    tuned, original = probabilities(5, 40, 6)
    seen = torch.tensor([True, True, True, False, False, False])
    among = pooled([tuned.log(), original.log()], [0.5, 0.3], seen)
    counts, known = 0.01 * seen.float(), torch.zeros(6)  # so that the tuned model's odds count
    rival = (original * ~seen).argmax(1, keepdim=True)
    plain = (tuned * seen).sum(1).log() - tuned.gather(1, rival)[:, 0].log()
    best = original.gather(1, rival)[:, 0]
    for ratio in (-3.0, 0.0, 4.0):
        found = gate(among, tuned, original, seen, counts, known, torch.full((40,), ratio))
        odds = ((plain + ratio) / 2).exp()
        mass = (odds * best).clamp(max=1.0)
        wins = mass * among.amax(1) >= best
        unseen = (original * ~seen).sum(1)
        mass = torch.where(wins, torch.maximum(mass, odds * best / (odds * best + unseen)), mass)
        torch.testing.assert_close(found[:, seen], (mass.unsqueeze(1) * among)[:, seen])


def test_the_ratio_of_familiar_images_is_that_of_two_bells() -> None:
    taught, others = torch.tensor([9.0, 11.0, 14.0]), torch.tensor([1.0, -2.0, 3.0])
    found = Familiar.measured(taught, others, typical=20.0)
    values = [9.0, 11.0, 14.0, *[10.0] * 5], [1.0, -2.0, 3.0, *[0.0] * 5]
    centre = [np.mean(each) for each in values]
    squares = sum(
        (np.array(v[:3]) - c) @ (np.array(v[:3]) - c) for v, c in zip(values, centre, strict=True)
    )
    variance = (squares + 10 * 10.0**2) / 16
    assert found == pytest.approx((*centre, variance))
    asked = np.array([-5.0, 6.0, 30.0])
    bells = [norm(c, np.sqrt(variance)).logpdf(asked) for c in centre]
    assert found.ratio(torch.from_numpy(asked)).tolist() == pytest.approx(
        (bells[0] - bells[1]).tolist()
    )
    upside_down = Familiar.measured(others, taught + 90, typical=20.0)
    assert not upside_down.ratio(torch.from_numpy(asked)).any()


def test_many_examples_of_one_label_alone_are_answered() -> None:
    """There is no other label that the evidence could be compared with."""
    with AnytimeClassifier.open(model=helpers.model(), settings=helpers.settings()) as classifier:
        for number in range(12):
            classifier.learn_one(helpers.picture(number), "cat")
            found = classifier.predict(helpers.picture(99), labels=["cat", "dog"])
            assert all(math.isfinite(value) for value in found.probabilities.values())


def test_a_pool_is_a_product_of_powers() -> None:
    tuned, original = probabilities(3, 4, 5)
    seen = torch.tensor([True, False, True, True, False])
    found = pooled([tuned.log(), original.log()], [0.7, 0.2], seen)
    for image in range(4):
        powers = [
            (tuned[image, y] ** 0.7 * original[image, y] ** 0.2).item() if seen[y] else 0.0
            for y in range(5)
        ]
        assert found[image].tolist() == pytest.approx([p / sum(powers) for p in powers], rel=1e-4)
