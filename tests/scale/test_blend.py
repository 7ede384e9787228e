"""With two models the blend of many is the blend of two; with more it follows the evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from anytimecl import blend as pair
from anytimecl.scale import blend as many

LABELS = ("cat", "dog", "bird", "never seen")
Evidence = list[tuple[int, bool, bool]]  # label, tuned right, original right


def probabilities(seed: int, count: int = 3) -> Tensor:
    """[image, label]."""
    noise = torch.Generator().manual_seed(seed)
    return (4 * torch.randn(count, len(LABELS), generator=noise)).softmax(1)


def both(evidence: Evidence) -> tuple[pair.Opinions, many.Panel]:
    """The same evidence and opinions, as the two blends want them."""
    one, other = pair.Estimates(), many.Estimates(["original", "tuned"])
    for label, tuned, original in evidence:
        one.add(LABELS[label], tuned=tuned, original=original)
        other.add(LABELS[label], {"original": original, "tuned": tuned})
    tuned, original = probabilities(0), probabilities(1)
    opinions = pair.Opinions(
        tuned, original, torch.zeros(3), [one.of(y) for y in LABELS], one.overall
    )
    return opinions, many.Panel([original, tuned], [other.of(y) for y in LABELS], other.overall)


EVIDENCE = st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), max_size=250)


@given(EVIDENCE)
def test_two_models_are_ocw_bit_for_bit(evidence: Evidence) -> None:
    opinions, panel = both(evidence)
    assert torch.equal(many.weights("ocw", panel)[0], pair.weights("ocw", opinions))
    assert torch.equal(many.blend("ocw", panel), pair.blend("ocw", opinions))


@given(EVIDENCE)
def test_two_models_are_the_default_blend(evidence: Evidence) -> None:
    opinions, panel = both(evidence)
    torch.testing.assert_close(many.blend("gated", panel), pair.blend("gated", opinions))


def panel_of_three(counts: dict[str, tuple[int, int, int]]) -> many.Panel:
    """Ten examples of each label, of which each model got so many right."""
    estimates = many.Estimates(["original", "tuned", "dino"])
    for label, right in counts.items():
        for turn in range(10):
            flags = [turn < count for count in right]
            estimates.add(label, dict(zip(estimates.models, flags, strict=True)))
    found = [probabilities(seed) for seed in range(3)]
    return many.Panel(found, [estimates.of(y) for y in LABELS], estimates.overall)


@pytest.mark.parametrize("name", many.BLENDS)
def test_a_label_never_seen_keeps_the_original_probability(name: str) -> None:
    panel = panel_of_three({"cat": (3, 9, 6), "dog": (5, 5, 5)})
    mixed = many.blend(name, panel)
    unseen = ~panel.seen
    assert unseen.tolist() == [False, False, True, True]
    torch.testing.assert_close(mixed[:, unseen], panel.probabilities[0][:, unseen])


def test_ocw_of_three_against_the_formula() -> None:
    panel = panel_of_three({"cat": (2, 5, 10)})
    original, tuned, dino = (p[:, 0] for p in panel.probabilities)
    expected = (0.2 * original + 0.5 * tuned + 1.0 * dino) / 1.7
    torch.testing.assert_close(many.blend("ocw", panel)[:, 0], expected)


def test_the_default_trusts_whoever_is_right_when_they_are_divided() -> None:
    panel = panel_of_three({"cat": (1, 9, 2), "dog": (1, 2, 9)})
    alpha = many.weights("shared", panel)  # [tuned and dino, label]
    assert alpha[0, 0] > 2 * alpha[1, 0]
    assert alpha[1, 1] > 2 * alpha[0, 1]


def test_a_model_that_joins_later_starts_without_evidence() -> None:
    early = many.Estimates(["original", "tuned"])
    early.add("cat", {"original": False, "tuned": True})
    late = many.Estimates.restored(early.state(), ["original", "tuned", "mine"])
    original, tuned, mine = late.of("cat")
    assert (original.seen, tuned.right, mine) == (1, 1.0, many.Mark())
    late.add("cat", {"original": False, "tuned": True})  # and may be silent
    assert late.of("cat")[2].seen == 0


def test_models_need_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="at least two"):
        many.Estimates(["original", "original"])


def test_softening_leaves_unseen_labels_and_the_order_of_each_model_alone() -> None:
    panel = panel_of_three({"cat": (3, 9, 6), "dog": (5, 5, 5)})
    soft = replace(panel, softness=many.softness(100.0, 40.0))
    assert soft.softness == 2.5
    unseen = ~panel.seen
    mixed = many.blend("gated", soft)
    torch.testing.assert_close(mixed[:, unseen], panel.probabilities[0][:, unseen])
    assert not torch.allclose(mixed, many.blend("gated", panel))
    assert torch.equal(many.blend("ocw", soft), many.blend("ocw", panel))


def test_two_who_agree_outvote_a_surer_third_when_softened() -> None:
    estimates = many.Estimates(["original", "tuned", "dino"])
    for turn in range(60):  # all equally good, and never wrong together
        right = [turn % 3 == m for m in range(3)]
        estimates.add(LABELS[turn % 2], dict(zip(estimates.models, right, strict=True)))
    sure = torch.tensor([[0.999, 0.001]])
    unsure = torch.tensor([[0.1, 0.9]])
    marks = [estimates.of(y) for y in LABELS[:2]]
    panel = many.Panel([sure, unsure, unsure], marks, estimates.overall)
    assert many.blend("gated", replace(panel, softness=3.0)).argmax() == 1
