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

from anytimecl.blend import (
    BLENDS,
    Estimates,
    LabelRecord,
    Opinions,
    blend,
    none_of_these,
    speakers,
    weights,
)

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
    record, seen = LabelRecord(), outcomes(250)
    for count, (tuned, original) in enumerate(seen, 1):
        record.add(tuned, original, eta)
        assert record.seen == count
        for estimate, rights in zip(
            (record.tuned, record.original), zip(*seen[:count], strict=True), strict=True
        ):
            expected = accuracy_by_hand(list(rights), eta, warm_up)
            assert estimate == pytest.approx(expected, abs=1e-12), count


def test_each_label_has_a_record() -> None:
    estimates, alone = Estimates(eta=0.8), {"cat": LabelRecord(), "dog": LabelRecord()}
    for number, (tuned, original) in enumerate(outcomes(60)):
        label = "cat" if number % 3 else "dog"
        estimates.add(label, tuned=tuned, original=original)
        alone[label].add(tuned, original, 0.8)
    assert {label: estimates.of(label) for label in alone} == alone
    assert estimates.of("bird") == LabelRecord()
    assert estimates.of("bird").seen == 0  # asking about a label is not seeing it


def test_estimates_of_an_older_version_go_on() -> None:
    """It counted disagreements besides, over each label and over all."""
    more = {"tuned_alone": 2.0, "original_alone": 1.0}
    record = {"seen": 3, "tuned": 0.5, "original": 0.25}
    older = {"eta": 0.9, "labels": {"cat": record | more}, "overall": record | more}
    again = Estimates.restored(older)
    assert again.of("cat") == LabelRecord(**record)
    assert again.state() == {"eta": 0.9, "labels": {"cat": record}}


def test_a_forgotten_label_was_never_seen() -> None:
    estimates = Estimates()
    estimates.add("cat", tuned=True, original=True)
    estimates.add("dog", tuned=True, original=True)
    estimates.forget("cat")
    estimates.forget("never there")
    assert estimates.of("cat") == LabelRecord()
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
    LabelRecord(seen=4, tuned=0.75, original=0.25),
    LabelRecord(seen=2, tuned=0.5, original=0.6),
    LabelRecord(seen=1, tuned=0.0, original=0.0),
    LabelRecord(),
)
TUNED = ((0.5, 0.3, 0.15, 0.05), (0.1, 0.2, 0.3, 0.4))
ORIGINAL = ((0.4, 0.3, 0.2, 0.1), (0.05, 0.15, 0.25, 0.55))
OTHER = (0.25, 0.75)
GAUSSIAN = ((3.0, -1.0, 2.0, 0.0), (-5.0, 1.5, 0.25, 0.0))  # a label never seen has 0
WEIGHTS = {"tuned": 0.3, "original": 0.2, "gaussian": 0.4}
TYPICAL = (6.0, 5.0, 4.0, 0.0)
OPINIONS = Opinions(
    torch.tensor(TUNED, dtype=torch.float64),
    torch.tensor(ORIGINAL, dtype=torch.float64),
    torch.tensor(OTHER, dtype=torch.float64),
    RECORDS,
    scores={"gaussian": torch.tensor(GAUSSIAN, dtype=torch.float64)},
    weights=WEIGHTS,
    typical=torch.tensor(TYPICAL, dtype=torch.float64),
)


def ocw_by_hand(tuned: float, original: float) -> float:
    return tuned / (tuned + original + 1e-8)


def alpha_by_hand(name: str, image: int, label: int) -> float:
    """The tuned model's weight, before labels never seen lose it."""
    record = RECORDS[label]
    match name:
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


@pytest.mark.parametrize("name", sorted(BLENDS.keys() - {"pool"}))
def test_every_blend_by_hand(name: str) -> None:
    blended = blend(name, OPINIONS)
    for image in range(2):
        for label in range(4):
            alpha = alpha_by_hand(name, image, label)
            if label == 3 and name != "tuned":
                alpha = 0.0
            expected = alpha * TUNED[image][label] + (1 - alpha) * ORIGINAL[image][label]
            assert blended[image, label].item() == pytest.approx(expected, abs=1e-12)


def pooled_by_hand(image: int, labels: int = 3) -> list[float]:
    """Every expert's word to the power of its weight, shared out among the labels seen."""
    scores = [
        TUNED[image][y] ** WEIGHTS["tuned"]
        * ORIGINAL[image][y] ** WEIGHTS["original"]
        * math.exp(WEIGHTS["gaussian"] * (GAUSSIAN[image][y] - TYPICAL[y]))
        for y in range(labels)
    ]
    return [score / sum(scores) for score in scores]


def test_the_pool_and_its_gate_by_hand() -> None:
    """Three seen labels of 7/3 examples each share what odds of their own say, the fourth stays."""
    learned = 1 - 1 / (1 + ((4 + 2 + 1) / 3 / 20) ** 2)
    for image, values in enumerate(blend("pool", OPINIONS).tolist()):
        tuned, original = TUNED[image], ORIGINAL[image]
        odds_tuned = sum(tuned[:3]) / tuned[3]
        odds_original = sum(original[:3]) / original[3]
        shares, odds = pooled_by_hand(image), []
        for label in range(3):
            trust = 1 - min(1.0, 2 * RECORDS[label].original) * learned
            both = odds_original * (odds_tuned / odds_original) ** trust
            odds.append(both * math.exp(-learned))
        masses = [min(1.0, o * original[3]) for o in odds]
        if max(m * s for m, s in zip(masses, shares, strict=True)) >= original[3]:  # seen wins
            masses = [max(m, o / (1 + o)) for m, o in zip(masses, odds, strict=True)]
        shared = [m * s for m, s in zip(masses, shares, strict=True)]
        assert values == pytest.approx([*shared, original[3]], abs=1e-12)


def test_the_gate_weighs_seen_labels_against_the_one_unseen_label_that_could_be_answered() -> None:
    """The original model's favourite, even where the tuned model would rather name another."""
    tuned, original = torch.tensor([[0.3, 0.6, 0.1]]), torch.tensor([[0.2, 0.3, 0.5]])
    records = [LabelRecord(seen=1, original=1.0), LabelRecord(), LabelRecord()]
    found = blend("pool", Opinions(tuned, original, torch.zeros(1), records))[0].tolist()
    learned = 1 - 1 / (1 + (1 / 20) ** 2)
    odds = (0.2 / 0.5) ** learned * (0.3 / 0.1) ** (1 - learned) * math.exp(-learned)
    mass = min(1.0, 0.5 * odds)
    assert mass > 0.5  # it wins, and has at least what is believed against both of the others
    assert found == pytest.approx([max(mass, odds * 0.5 / (odds * 0.5 + 0.8)), 0.3, 0.5])


def three_seen() -> Opinions:
    """The same without the label that was never seen."""
    tuned, original = (
        p[:, :3] / p[:, :3].sum(1, keepdim=True) for p in (OPINIONS.tuned, OPINIONS.original)
    )
    scores = {"gaussian": OPINIONS.scores["gaussian"][:, :3]}
    typical = OPINIONS.typical[:3] if OPINIONS.typical is not None else None
    return Opinions(tuned, original, OPINIONS.other, RECORDS[:3], scores, WEIGHTS, typical=typical)


def test_seen_labels_alone_share_everything() -> None:
    found = blend("pool", three_seen())
    for image in range(2):
        assert found[image].tolist() == pytest.approx(pooled_by_hand(image), abs=1e-12)


def test_an_image_that_was_taught_is_answered_as_it_was_taught() -> None:
    """With the probability that it is a copy; what is left is shared as before."""
    copy, copy_of = torch.tensor([1.0, 0.25], dtype=torch.float64), torch.tensor([1, 2])
    for opinions in (OPINIONS, three_seen()):
        before = blend("pool", opinions)
        known = dataclasses.replace(opinions, copy=copy, copy_of=copy_of)
        after = blend("pool", known)
        for image in range(2):
            for label in range(before.shape[1]):
                expected = before[image, label].item()
                if label < 3:
                    taught = label == copy_of[image].item()
                    sure = copy[image].item()
                    expected = (1 - sure) * expected + sure * taught
                assert after[image, label].item() == pytest.approx(expected, abs=1e-12)
        none = none_of_these(opinions)
        torch.testing.assert_close(none_of_these(known), none * (1 - copy))


def test_none_of_these_by_hand() -> None:
    """Odds of the tuned model's "other", less how far the Gaussian score is above halfway."""
    for image, found in enumerate(none_of_these(OPINIONS).tolist()):
        above = max(GAUSSIAN[image][y] - TYPICAL[y] / 2 for y in range(3))
        odds = (OTHER[image] / (1 - OTHER[image])) ** 0.3 * math.exp(-0.4 * above)
        assert found == pytest.approx(odds / (1 + odds))
    nothing = dataclasses.replace(OPINIONS, records=[LabelRecord()] * 4)
    assert torch.equal(none_of_these(nothing), nothing.other)  # the original model's own
    alone = dataclasses.replace(OPINIONS, scores={}, typical=None)
    assert none_of_these(alone).tolist() == list(OTHER)


def test_who_spoke_is_whose_word_lifts_the_answer_most() -> None:
    best = torch.tensor([0, 1])
    expected = []
    for image, at in enumerate(best.tolist()):
        parts = {}
        for name, said in (
            ("tuned", [math.log(p) for p in TUNED[image]]),
            ("original", [math.log(p) for p in ORIGINAL[image]]),
            ("gaussian", [g - t for g, t in zip(GAUSSIAN[image], TYPICAL, strict=True)]),
        ):
            parts[name] = WEIGHTS[name] * (said[at] - sum(said[:3]) / 3)
        expected.append(max(parts, key=parts.__getitem__))
    assert speakers("pool", OPINIONS, best) == expected
    assert speakers("pool", OPINIONS, torch.tensor([3, 3])) == ["original"] * 2
    known = dataclasses.replace(
        OPINIONS, copy=torch.tensor([0.9, 0.1]), copy_of=torch.tensor([0, 1])
    )
    assert speakers("pool", known, best) == ["instance", expected[1]]
    nothing = dataclasses.replace(OPINIONS, records=[LabelRecord()] * 4)
    assert speakers("pool", nothing, best) == ["original"] * 2


def test_where_both_models_are_sure_of_a_seen_label_so_is_the_answer() -> None:
    sure = torch.tensor([[0.9996, 0.0004]]), torch.tensor([[0.9998, 0.0002]])
    opinions = Opinions(*sure, torch.zeros(1), [LabelRecord(seen=1), LabelRecord()])
    assert blend("pool", opinions)[0, 0] > 0.999


def test_a_label_that_the_original_model_never_knows_is_not_judged_by_it() -> None:
    """However many examples it has."""
    tuned, original = torch.tensor([[0.99, 0.01]]), torch.tensor([[0.01, 0.99]])
    records = [LabelRecord(seen=1000, tuned=0.9, original=0.0), LabelRecord()]
    opinions = Opinions(tuned, original, torch.zeros(1), records)
    assert blend("pool", opinions).argmax() == 0
    records[0].original = 0.9
    assert blend("pool", opinions).argmax() == 1


def test_with_many_examples_the_original_model_says_how_likely_seen_labels_are() -> None:
    """With some caution: where none of them wins, they have a third of what it gives them."""
    records = [LabelRecord(seen=10**9, original=0.5)] * 3 + [LabelRecord()]
    shy = OPINIONS.original.new_tensor([[0.1, 0.1, 0.1, 0.7], [0.2, 0.1, 0.1, 0.6]])
    opinions = dataclasses.replace(OPINIONS, records=records, original=shy)
    blended = blend("pool", opinions)
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
    opinions = Opinions(tenths, tenths, torch.zeros(1), [LabelRecord(seen=1)] * 10)
    assert weights("aim", opinions).max() == 1


# What holds for any evidence

rates = st.floats(0, 1)
records = st.builds(
    LabelRecord,
    seen=st.integers(0, 1000),
    tuned=rates,
    original=rates,
)


@st.composite
def some_opinions(draw: st.DrawFn) -> Opinions:
    labels, images = draw(st.integers(1, 6)), draw(st.integers(0, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    spread = draw(st.sampled_from([0.1, 5.0, 200.0]))
    tuned, original, gaussian = spread * torch.randn(3, images, labels, generator=generator)
    known = draw(st.lists(records, min_size=labels, max_size=labels))
    return Opinions(
        tuned.softmax(1),
        original.softmax(1),
        torch.rand(images, generator=generator),
        known,
        {"gaussian": gaussian * torch.tensor([record.seen > 0 for record in known])},
        {name: draw(st.floats(1e-3, 3.0)) for name in WEIGHTS},
        spread * torch.rand(labels, generator=generator),
        torch.rand(images, generator=generator),
        torch.randint(labels, (images,), generator=generator),
    )


@settings(deadline=None)
@given(some_opinions())
def test_where_every_label_was_seen_or_none_the_pool_sums_to_one(opinions: Opinions) -> None:
    whole = [dataclasses.replace(record, seen=record.seen + 1) for record in opinions.records]
    for records in (whole, [LabelRecord() for _ in whole]):
        found = blend("pool", dataclasses.replace(opinions, records=records))
        torch.testing.assert_close(found.sum(1), torch.ones(len(found)), atol=1e-5, rtol=0)
    none = none_of_these(opinions)
    assert none.isfinite().all()
    assert ((none >= 0) & (none <= 1)).all()


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


def weight_of(name: str, record: LabelRecord) -> float:
    half = torch.full((1, 1), 0.5, dtype=torch.float64)
    return weights(name, Opinions(half, half, torch.zeros(1), [record])).item()


@settings(deadline=None)
@given(records, st.floats(0.01, 50))
def test_more_evidence_for_a_model_gives_it_more_weight(record: LabelRecord, more: float) -> None:
    record.seen += 1
    before = vars(record)
    gain = min(1.0, record.tuned + more)
    tuned, original = before | {"tuned": gain}, before | {"original": min(1.0, more)}
    if record.original <= original["original"]:
        assert weight_of("ocw", LabelRecord(**original)) <= weight_of("ocw", record)
    assert weight_of("ocw", LabelRecord(**tuned)) >= weight_of("ocw", record)


def test_the_pools_share_of_the_tuned_model_is_its_part_of_all_weights() -> None:
    assert weights("pool", OPINIONS).tolist() == pytest.approx([0.3 / 0.9] * 3 + [0.0])
