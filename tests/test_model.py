"""A model's parts are kept in step, and one by one is the same as many at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import FAST, TEXTS, changed, measured, settings
from torch import Tensor

from anytimecl.blend import pool
from anytimecl.evidence import Evidence
from anytimecl.imprint import TEXT
from anytimecl.model import POOLED, Model
from anytimecl.pool import RECENT, start_weights, weigh

DIM = measured().spec.dim
NAMES = ["cat", "dog", "tabby cat", "great white shark", "lynx"]


def unit(count: int, seed: int) -> Tensor:
    noise = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, DIM, generator=noise), dim=1)


VECTORS = dict(zip(NAMES, unit(len(NAMES), 77), strict=True))


def fresh(**changes: Any) -> Model:
    backbone = measured()
    return Model(
        backbone.spec, backbone.tail, settings(**{"learner": FAST, **changes}), backbone.prior
    )


def stream(count: int) -> tuple[list[Evidence], list[tuple[bool, bool]]]:
    """Labels come unevenly, and the first of each is told by a name of its own."""
    tuned, original = unit(count, 1), unit(count, 2)
    labels = [NAMES[(n * n + n // 7) % (3 if n < 12 else len(NAMES))] for n in range(count)]
    seen = [Evidence(n + 1, y, tuned[n], original[n]) for n, y in enumerate(labels)]
    return seen, [(n % 3 > 0, n % 2 > 0) for n in range(count)]


def lived(count: int, start: int = 0, model: Model | None = None) -> Model:
    """One by one."""
    found = model or fresh()
    seen, right = stream(count)
    for one, (tuned, original) in list(zip(seen, right, strict=True))[start:]:
        found.advance(one.example)
        if one.label not in found.rows:
            found.enter(one.label, VECTORS[one.label])
        found.learned(one, tuned=tuned, original=original)
    return found


def same(one: Model, other: Model) -> list[str]:
    """Where they differ in a bit."""
    mine, theirs = one.plain(), other.plain()
    return changed(one.tensors(), other.tensors()) + [n for n in mine if mine[n] != theirs[n]]


@pytest.mark.parametrize("parts", [(40,), (5, 40), (7, 8, 9, 33, 40)])
def test_many_at_once_are_one_by_one(parts: tuple[int, ...]) -> None:
    many = fresh()
    seen, right = stream(40)
    start = 0
    for end in parts:
        for one in seen[start:end]:
            if one.label not in many.rows:
                many.enter(one.label, VECTORS[one.label])
        many.learned_many(seen[start:end], right[start:end])
        start = end
    straight = lived(40)
    # Kept images are products, which round otherwise in another shape.
    rounded = ("instance.images", "instance.apart")
    assert set(same(straight, many)) <= set(rounded)
    for name in rounded:
        one, other = (each.tensors()[name] for each in (straight, many))
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-4)
    assert straight.weights != start_weights(POOLED)


def test_images_that_the_tuned_model_had_wrong_are_kept_as_instances() -> None:
    seen, right = stream(40)
    wrong = [one.example for one, (tuned, _) in zip(seen, right, strict=True) if not tuned]
    assert lived(40).instances.examples == wrong


def told(model: Model, seen: list[Evidence], at: int) -> Tensor:
    """Cosines [label] of an example that is left out; by texts if its label has no other."""
    assert model.gaussian.prior is not None
    mean, own, found = model.gaussian.prior.mean, seen[at].label, []
    alone = sum(one.label == own for one in seen) == 1
    for label in model.labels:
        images = [one.original.double() for one in seen if one.label == label]
        count = len(images)
        if label == own and not alone:  # which keeps its count
            images = [
                one.original.double()
                for i, one in enumerate(seen)
                if one.label == label and i != at
            ]
        away = torch.stack(images).mean(0) - mean
        moved = VECTORS[label] + (0 if alone else count / (count + TEXT) * away)
        found.append(F.normalize(moved.float(), dim=0) @ seen[at].tuned)
    return torch.stack(found)


def test_weights_are_fitted_on_the_latest_evidence_at_every_step() -> None:
    """At example 32, from what came before it, as it is then."""
    model, seen = lived(31), stream(31)[0]
    model.advance(32)
    vectors, scale = torch.stack([VECTORS[y] for y in model.labels]), measured().spec.logit_scale
    target = [model.rows[one.label] for one in seen]
    images = {name: torch.stack([getattr(one, name) for one in seen]) for name in POOLED[:2]}
    scores = {name: (scale * its @ vectors.T).log_softmax(1) for name, its in images.items()}
    scores["tuned"] = torch.stack([scale * told(model, seen, i) for i in range(31)]).log_softmax(1)
    ratios, typical = model.gaussian.judged_left_out(images["original"], target)
    scores["gaussian"] = ratios - typical
    assert model.weights == pytest.approx(weigh(scores, torch.tensor(target)), rel=1e-4)
    before = dict(model.weights)
    for example in (33, 40, 63):
        model.advance(example)
        assert model.weights == before


def test_labels_without_an_example_have_no_part_in_the_weights() -> None:
    """A stream enters labels ahead of their examples."""
    plain, ahead = lived(31), lived(31)
    ahead.enter("never taught", unit(1, 9)[0])
    for each in (plain, ahead):
        each.advance(32)
    assert ahead.weights == plain.weights


def test_evidence_is_the_latest() -> None:
    count = RECENT + 10
    found = lived(count)
    assert [seen.example for seen in found.evidence] == list(range(11, count + 1))


@pytest.mark.parametrize("label", ["cat", "dog", "lynx"])
def test_a_retired_label_was_never_there(label: str) -> None:
    found = lived(30)
    for one in stream(30)[0]:
        if one.label == label:
            found.remove(one.example, label, one.original)
    found.retire(label)
    left = [name for name in found.rows if name != label]
    assert found.labels == left
    assert found.rows == {name: row for row, name in enumerate(left)}
    assert torch.equal(found.vectors, torch.stack([VECTORS[name] for name in left]))
    assert found.estimates.of(label).seen == 0
    assert f"'{label}'" not in str(found.plain())
    gone = {one.example for one in stream(30)[0] if one.label == label}
    assert not found.kept & gone
    pure = fresh()
    for name in left:
        pure.enter(name, VECTORS[name])
    rest = [one for one in stream(30)[0] if one.label != label]
    pure.gaussian.step = found.gaussian.step
    pure.count(
        [one.example for one in rest],
        [one.label for one in rest],
        torch.stack([one.original for one in rest]),
    )
    assert changed(pure.gaussian.state(), found.gaussian.state()) == []
    rows = found.instances.state()["instance.rows"].tolist()
    label_of = {one.example: one.label for one in rest}
    assert [found.labels[row] for row in rows] == [label_of[i] for i in found.instances.examples]
    found.enter(label, VECTORS[label])
    assert found.rows[label] == len(left)


def test_without_its_image_an_example_leaves_all_but_the_statistics() -> None:
    found, before = lived(20), lived(20)
    example = found.instances.examples[0]
    found.remove(example, stream(20)[0][example - 1].label, None)
    assert example not in found.kept
    assert changed(before.gaussian.state(), found.gaussian.state()) == []


def test_restored_it_is_the_same_and_goes_on_so() -> None:
    first = lived(20)
    saved = {name: value.clone() for name, value in first.tensors().items()}
    again = fresh()
    assert again.restore(saved, first.plain())
    assert same(first, again) == []
    first, again = (lived(50, 20, each) for each in (first, again))
    assert same(first, again) == []


def test_of_a_version_without_experts_it_says_so() -> None:
    first = lived(20)
    tensors = {
        name: value
        for name, value in first.tensors().items()
        if not name.startswith(("gaussian.", "instance.", "evidence."))
    }
    tensors["recall.sums"] = torch.zeros(3, DIM)  # which it had, and nobody reads any more
    plain = {name: first.plain()[name] for name in ("labels", "estimates")}
    again = fresh()
    assert not again.restore(tensors, plain)
    assert again.labels == first.labels
    assert again.weights == start_weights(POOLED)
    assert again.gaussian.now.counts.tolist() == [0] * len(first.labels)
    assert changed(first.learner.state(), again.learner.state()) == []


def test_an_answering_copy_says_the_same_whatever_is_learned_since() -> None:
    found, names = lived(20), [*NAMES[:3], "never taught"]
    copy, images = found.answering(), unit(4, 5)
    noise = torch.Generator().manual_seed(0)
    tuned, original = torch.randn(2, 4, len(names), generator=noise)

    def said(model: Model) -> list[Any]:
        opinions = model.of_logits(tuned, original, torch.zeros(()), images, names)
        parts = (opinions.typical, opinions.copy, opinions.copy_of, *opinions.scores.values())
        seen = [record.seen for record in opinions.records]
        return [[part.tolist() for part in parts if part is not None], opinions.weights, seen]

    before = said(found)
    assert said(copy) == before
    lived(50, 20, found)
    assert said(copy) == before
    assert said(found) != before


def test_beside_labels_never_seen_the_gate_compares_by_texts_alone() -> None:
    found, images = lived(40), unit(4, 5)
    vectors = torch.stack([*VECTORS.values(), unit(1, 9)[0]])
    assert found.by_text(images, vectors[:5], NAMES) is None
    names = [*NAMES, "never taught"]
    texts = found.by_text(images, vectors, names)
    assert texts is not None
    torch.testing.assert_close(texts, measured().spec.logit_scale * images @ vectors.T)
    noise = torch.Generator().manual_seed(0)
    tuned, original = torch.randn(2, 4, len(names), generator=noise)

    def mass(tuned: Tensor, texts: Tensor | None) -> Tensor:
        given = (tuned, original, torch.zeros(()), images, names, texts)
        return pool(found.of_logits(*given))[:, :5].sum(1)

    assert not torch.allclose(mass(tuned, texts), mass(tuned, tuned))
    assert torch.equal(mass(tuned, tuned), mass(tuned, None))
    plain = lived(40, model=fresh(learner=TEXTS))
    assert plain.by_text(images, vectors, names) is None


@pytest.mark.parametrize("blend", ["ocw", "tuned"])
def test_only_the_pool_asks_the_experts(blend: str) -> None:
    found = fresh(blend=blend)
    lived(20, model=found)
    opinions = found.of_logits(
        torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(()), unit(1, 0), ["cat"]
    )
    assert not opinions.scores
    assert opinions.copy is None
    assert found.gaussian.now.counts.sum() == 20  # and all the same they learn: it may change
