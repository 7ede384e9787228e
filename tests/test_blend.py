"""Estimates and blends by hand, and what every blend owes to labels that were never seen."""

from __future__ import annotations

import dataclasses
import json
import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anytimecl.blend import BLENDS, Estimates, Opinions, Record, blend, weights

FAITHFUL = sorted(BLENDS.keys() - {"tuned"})  # to labels never seen


# Estimates


def outcomes(count: int, seed: int = 0) -> list[tuple[bool, bool]]:
    """Whether tuned and original were right, example by example."""
    random = Random(seed)
    return [(random.random() < 0.7, random.random() < 0.4) for _ in range(count)]


def accuracy_by_hand(right: list[bool], eta: float, warm_up: int) -> float:
    """The mean of the first `warm_up`, then an exponential moving average."""
    estimate = sum(right[:warm_up]) / len(right[:warm_up])
    for each in right[warm_up:]:
        estimate = eta * estimate + (1 - eta) * each
    return estimate


@pytest.mark.parametrize(
    ("eta", "warm_up"), [(0.99, 100), (0.9, 10), (0.98, 50), (0.995, 200), (0.7, 3)]
)
def test_accuracies_are_a_mean_at_first_and_a_moving_average_then(eta: float, warm_up: int) -> None:
    """floor(1 / (1 - eta)) examples, although 1 / (1 - 0.99) is 99.99... in floating point."""
    record, seen = Record(), outcomes(250)
    for count, (tuned, original) in enumerate(seen, 1):
        record.add(tuned, original, eta)
        assert record.seen == count
        for estimate, rights in zip(
            (record.tuned, record.original), zip(*seen[:count], strict=True), strict=True
        ):
            expected = accuracy_by_hand(list(rights), eta, warm_up)
            assert estimate == pytest.approx(expected, abs=1e-12), count


def test_only_disagreements_are_counted_and_they_fade() -> None:
    record, tuned_alone, original_alone = Record(), 0.0, 0.0
    for tuned, original in outcomes(250):
        record.add(tuned, original, 0.9)
        if tuned and not original:
            tuned_alone, original_alone = tuned_alone * 0.9 + 1, original_alone * 0.9
        elif original and not tuned:
            tuned_alone, original_alone = tuned_alone * 0.9, original_alone * 0.9 + 1
        assert record.tuned_alone == pytest.approx(tuned_alone, abs=1e-12)
        assert record.original_alone == pytest.approx(original_alone, abs=1e-12)
    assert tuned_alone > original_alone > 0


def test_each_label_has_a_record_and_all_together_have_one() -> None:
    estimates, alone, together = Estimates(eta=0.8), {"cat": Record(), "dog": Record()}, Record()
    for number, (tuned, original) in enumerate(outcomes(60)):
        label = "cat" if number % 3 else "dog"
        estimates.add(label, tuned=tuned, original=original)
        alone[label].add(tuned, original, 0.8)
        together.add(tuned, original, 0.8)
    assert {label: estimates.of(label) for label in alone} == alone
    assert estimates.overall == together
    assert estimates.of("bird") == Record()
    assert estimates.of("bird").seen == 0  # asking about a label is not seeing it


def test_a_forgotten_label_was_never_seen() -> None:
    estimates = Estimates()
    estimates.add("cat", tuned=True, original=True)
    estimates.add("dog", tuned=True, original=True)
    estimates.forget("cat")
    estimates.forget("never there")
    assert estimates.of("cat") == Record()
    assert estimates.of("dog").seen == 1


def test_estimates_survive_json_exactly() -> None:
    estimates = Estimates(eta=0.93)
    for number, (tuned, original) in enumerate(outcomes(77)):
        estimates.add(f"label {number % 5}", tuned=tuned, original=original)
    again = Estimates.restored(json.loads(json.dumps(estimates.state())))
    for each in (estimates, again):
        each.add("label 3", tuned=False, original=True)
    assert again.state() == estimates.state()
    assert again.eta == 0.93


# Blends, on two images and four labels of which the last was never seen

RECORDS = (
    Record(seen=4, tuned=0.75, original=0.25, tuned_alone=2.0, original_alone=0.5),
    Record(seen=2, tuned=0.5, original=0.6, tuned_alone=0.0, original_alone=3.0),
    Record(seen=1, tuned=0.0, original=0.0),
    Record(),
)
OVERALL = Record(seen=7, tuned=0.6, original=0.5, tuned_alone=4.0, original_alone=3.0)
TUNED = ((0.5, 0.3, 0.15, 0.05), (0.1, 0.2, 0.3, 0.4))
ORIGINAL = ((0.4, 0.3, 0.2, 0.1), (0.05, 0.15, 0.25, 0.55))
OTHER = (0.25, 0.75)
VOTES = ((0.5, -1.0, 2.0, 0.0), (-0.5, 1.5, 0.25, 0.0))  # logits; a label never seen has none
OPINIONS = Opinions(
    torch.tensor(TUNED, dtype=torch.float64),
    torch.tensor(ORIGINAL, dtype=torch.float64),
    torch.tensor(OTHER, dtype=torch.float64),
    RECORDS,
    OVERALL,
    torch.tensor(VOTES, dtype=torch.float64),
)


def ocw_by_hand(tuned: float, original: float) -> float:
    return tuned / (tuned + original + 1e-8)


def paired_by_hand(record: Record) -> float:
    """Odds of the disagreements, with ten more shared out as over all labels, cubed.

    Over all labels, the tuned model begins twenty to one ahead.
    """
    overall = (4.0 + 20) / (4.0 + 3.0 + 21)
    odds = (record.tuned_alone + 10 * overall) / (record.original_alone + 10 * (1 - overall))
    return odds**3 / (1 + odds**3)


def alpha_by_hand(name: str, image: int, label: int) -> float:
    """The tuned model's weight, before labels never seen lose it."""
    record = RECORDS[label]
    match name:
        case "paired":
            return paired_by_hand(record)
        case "ocw":
            return ocw_by_hand(record.tuned, record.original)
        case "ocw_other":
            return ocw_by_hand(record.tuned * (1 - OTHER[image]), record.original)
        case "ocw_rounded":
            return float(ocw_by_hand(record.tuned, record.original) > 0.5)
        case "aim":
            return sum(ORIGINAL[image][y] for y in range(4) if RECORDS[y].seen)
        case "average":
            return 0.5
        case "tuned":
            return 1.0
        case "original":
            return 0.0
    raise AssertionError(name)


@pytest.mark.parametrize("name", sorted(BLENDS.keys() - {"gated", "recalled"}))
def test_every_blend_by_hand(name: str) -> None:
    blended = blend(name, OPINIONS)
    for image in range(2):
        for label in range(4):
            alpha = alpha_by_hand(name, image, label)
            if label == 3 and name != "tuned":
                alpha = 0.0
            expected = alpha * TUNED[image][label] + (1 - alpha) * ORIGINAL[image][label]
            assert blended[image, label].item() == pytest.approx(expected, abs=1e-12)


def recalled_by_hand(image: int) -> list[float]:
    """Nine parts of the tuned model, one of the original, each by its vote, shared out anew."""
    three = zip(TUNED[image], ORIGINAL[image], VOTES[image], strict=True)
    scores = [tuned**0.9 * original**0.1 * math.exp(vote) for tuned, original, vote in three]
    return [score / sum(scores) for score in scores]


@pytest.mark.parametrize("name", ["gated", "recalled"])
def test_the_gate_by_hand(name: str) -> None:
    """Three seen labels of 7/3 examples each share what odds of their own say, the fourth stays."""
    learned = 1 - 1 / (1 + ((4 + 2 + 1) / 3 / 20) ** 2)
    for image, values in enumerate(blend(name, OPINIONS).tolist()):
        tuned = TUNED[image] if name == "gated" else recalled_by_hand(image)
        original = ORIGINAL[image]
        odds_tuned = sum(tuned[:3]) / tuned[3]
        odds_original = sum(original[:3]) / original[3]
        mixed, odds = [], []
        for label in range(3):
            alpha = paired_by_hand(RECORDS[label])
            mixed.append(alpha * tuned[label] + (1 - alpha) * original[label])
            trust = 1 - min(1.0, 2 * RECORDS[label].original) * learned
            both = odds_original * (odds_tuned / odds_original) ** trust
            odds.append(both * math.exp(-learned))
        shares = [value / sum(mixed) for value in mixed]
        masses = [min(1.0, o * original[3]) for o in odds]
        if max(m * s for m, s in zip(masses, shares, strict=True)) >= original[3]:  # seen wins
            masses = [max(m, o / (1 + o)) for m, o in zip(masses, odds, strict=True)]
        shared = [m * s for m, s in zip(masses, shares, strict=True)]
        assert values == pytest.approx([*shared, original[3]], abs=1e-12)


def test_the_gate_weighs_seen_labels_against_the_one_unseen_label_that_could_be_answered() -> None:
    """The original model's favourite, even where the tuned model would rather name another."""
    tuned, original = torch.tensor([[0.3, 0.6, 0.1]]), torch.tensor([[0.2, 0.3, 0.5]])
    records = [Record(seen=1, original=1.0), Record(), Record()]
    opinions = Opinions(tuned, original, torch.zeros(1), records, Record(seen=1))
    found = blend("gated", opinions)[0].tolist()
    learned = 1 - 1 / (1 + (1 / 20) ** 2)
    odds = (0.2 / 0.5) ** learned * (0.3 / 0.1) ** (1 - learned) * math.exp(-learned)
    mass = min(1.0, 0.5 * odds)
    assert mass > 0.5  # it wins, and has at least what is believed against both of the others
    assert found == pytest.approx([max(mass, odds * 0.5 / (odds * 0.5 + 0.8)), 0.3, 0.5])


def test_where_nothing_is_recalled_the_tuned_model_speaks_alone() -> None:
    silent = dataclasses.replace(OPINIONS, votes=None)
    assert torch.equal(blend("recalled", silent), blend("gated", OPINIONS))


def test_the_gate_leaves_seen_labels_alone_among_themselves() -> None:
    """With no unseen label beside them they share everything, in the same proportions."""
    three = [p[:, :3] / p[:, :3].sum(1, keepdim=True) for p in (OPINIONS.tuned, OPINIONS.original)]
    opinions = Opinions(*three, OPINIONS.other, RECORDS[:3], OVERALL)
    paired, gated = blend("paired", opinions), blend("gated", opinions)
    torch.testing.assert_close(gated, paired / paired.sum(1, keepdim=True))


def test_where_both_models_are_sure_of_a_seen_label_so_is_the_answer() -> None:
    sure = torch.tensor([[0.9996, 0.0004]]), torch.tensor([[0.9998, 0.0002]])
    opinions = Opinions(*sure, torch.zeros(1), [Record(seen=1), Record()], Record(seen=1))
    assert blend("gated", opinions)[0, 0] > 0.999


def test_a_label_that_the_original_model_never_knows_is_not_judged_by_it() -> None:
    """However many examples it has."""
    tuned, original = torch.tensor([[0.99, 0.01]]), torch.tensor([[0.01, 0.99]])
    records = [Record(seen=1000, tuned=0.9, original=0.0, tuned_alone=50.0), Record()]
    opinions = Opinions(tuned, original, torch.zeros(1), records, Record(seen=1000))
    assert blend("gated", opinions).argmax() == 0
    records[0].original = 0.9
    assert blend("gated", opinions).argmax() == 1


def test_with_many_examples_the_original_model_says_how_likely_seen_labels_are() -> None:
    """With some caution: where none of them wins, they have a third of what it gives them."""
    records = [Record(seen=10**9, original=0.5, tuned_alone=3.0)] * 3 + [Record()]
    shy = OPINIONS.original.new_tensor([[0.1, 0.1, 0.1, 0.7], [0.2, 0.1, 0.1, 0.6]])
    opinions = dataclasses.replace(OPINIONS, records=records, original=shy)
    blended = blend("gated", opinions)
    assert blended.argmax(1).tolist() == [3, 3]
    expected = math.exp(-1) * opinions.original[:, :3].sum(1)
    torch.testing.assert_close(blended[:, :3].sum(1), expected)


def test_the_numbers_above_tell_the_blends_apart() -> None:
    everything = [blend(name, OPINIONS) for name in BLENDS]
    for i, one in enumerate(everything):
        for other in everything[:i]:
            assert not torch.allclose(one, other)


def test_two_models_never_right_share_nothing_with_the_tuned_one() -> None:
    """0 / (0 + 0 + 1e-8): the paper's epsilon leaves such a label to the original model."""
    assert weights("ocw", OPINIONS)[2] == 0


def test_aims_weight_is_no_more_than_everything() -> None:
    tenths = torch.full((1, 10), 0.1)
    assert tenths.sum() > 1  # in single precision
    opinions = Opinions(tenths, tenths, torch.zeros(1), [Record(seen=1)] * 10, Record(seen=10))
    assert weights("aim", opinions).max() == 1


# What holds for any evidence

counts = st.floats(0, 100)
rates = st.floats(0, 1)
records = st.builds(
    Record,
    seen=st.integers(0, 1000),
    tuned=rates,
    original=rates,
    tuned_alone=counts,
    original_alone=counts,
)


@st.composite
def some_opinions(draw: st.DrawFn) -> Opinions:
    labels, images = draw(st.integers(1, 6)), draw(st.integers(0, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    spread = draw(st.sampled_from([0.1, 5.0, 200.0]))
    tuned, original, votes = spread * torch.randn(3, images, labels, generator=generator)
    known = draw(st.lists(records, min_size=labels, max_size=labels))
    return Opinions(
        tuned.softmax(1),
        original.softmax(1),
        torch.rand(images, generator=generator),
        known,
        draw(records),
        votes * torch.tensor([record.seen > 0 for record in known]),
    )


@settings(deadline=None)
@given(some_opinions(), st.sampled_from(sorted(BLENDS)))
def test_weights_lie_between_0_and_1_and_answers_are_finite(opinions: Opinions, name: str) -> None:
    alpha, blended = weights(name, opinions), blend(name, opinions)
    assert alpha.isfinite().all()
    assert ((alpha >= 0) & (alpha <= 1)).all()
    assert blended.shape == opinions.tuned.shape
    assert blended.isfinite().all()
    assert ((blended >= 0) & (blended <= 1 + 1e-6)).all()


@settings(deadline=None)
@given(some_opinions(), st.sampled_from(FAITHFUL))
def test_labels_never_seen_keep_exactly_the_original_probability(
    opinions: Opinions, name: str
) -> None:
    unseen = torch.tensor([record.seen == 0 for record in opinions.records])
    blended = blend(name, opinions)
    assert torch.equal(blended[:, unseen], opinions.original[:, unseen])


def test_the_tuned_blend_speaks_of_labels_it_never_saw() -> None:
    assert torch.equal(blend("tuned", OPINIONS), OPINIONS.tuned)


def weight_of(name: str, record: Record, overall: Record) -> float:
    half = torch.full((1, 1), 0.5, dtype=torch.float64)
    return weights(name, Opinions(half, half, torch.zeros(1), [record], overall)).item()


@settings(deadline=None)
@given(records, records, st.floats(0.01, 50))
def test_more_evidence_for_a_model_gives_it_more_weight(
    record: Record, overall: Record, more: float
) -> None:
    record.seen += 1
    before = vars(record)
    gain = min(1.0, record.tuned + more)
    tuned, original = before | {"tuned": gain}, before | {"original": min(1.0, more)}
    if record.original <= original["original"]:
        assert weight_of("ocw", Record(**original), overall) <= weight_of("ocw", record, overall)
    assert weight_of("ocw", Record(**tuned), overall) >= weight_of("ocw", record, overall)

    base = weight_of("paired", record, overall)
    for side, sign in (("tuned_alone", 1), ("original_alone", -1)):
        of_label = Record(**before | {side: before[side] + more})
        of_all = Record(**vars(overall) | {side: vars(overall)[side] + more})
        assert sign * (weight_of("paired", of_label, overall) - base) > 0
        assert sign * (weight_of("paired", record, of_all) - base) >= 0


def test_paired_starts_with_the_tuned_model_and_can_be_persuaded() -> None:
    """At first the tuned model is nearly the original, and worth trusting as it improves."""
    nothing = Record(seen=1)
    assert weight_of("paired", nothing, Record()) == pytest.approx(8000 / 8001)
    beaten = Record(seen=9, original_alone=30.0)
    assert weight_of("paired", beaten, Record(seen=9, original_alone=30.0)) < 0.05
    # One label's failure does not speak against the tuned model elsewhere as loudly.
    elsewhere = weight_of("paired", nothing, Record(seen=9, original_alone=5.0))
    assert 0.9 < elsewhere < 0.99
    assert math.isclose(elsewhere, (20 / 26) ** 3 / ((20 / 26) ** 3 + (6 / 26) ** 3))
