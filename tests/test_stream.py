"""A stream learned at once is the stream learned one by one."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tests.helpers import (
    FAST,
    LABELS,
    TEXTS,
    lesson,
    measured,
    model,
    picture,
    settings,
    taught,
)
from torch import Tensor

from anytimecl import stream
from anytimecl.backbone.prior import Prior
from anytimecl.model import POOLED, Model
from anytimecl.pool import start_weights
from anytimecl.settings import LearnerConfig, Precision, Settings
from anytimecl.stream import StreamLearner
from anytimecl.tail import TailInput, Tokens, normalise
from anytimecl.trainer import Trainer

COUNT = 30


def streamed(
    chosen: Settings, blocks: int = 1, device: str = "cpu", prior: Prior | None = None
) -> StreamLearner:
    """The first lessons as one stream, in two parts."""
    backbone = model(blocks=blocks)
    pairs = [lesson(number) for number in range(COUNT)]
    labels = [label for _, label in pairs]
    vectors = {label: backbone.embed_labels([label])[0].to(device) for label in set(labels)}
    learner = StreamLearner(
        backbone.spec,
        {name: value.to(device) for name, value in backbone.tail.items()},
        chosen,
        backbone.encode([image for image, _ in pairs]).to(device),
        labels,
        vectors,
        prior=prior,
    )
    learner.learn(range(20))
    learner.learn(range(20, COUNT))
    return learner


def check_experts(found: Model, expected: Model) -> None:
    """The same examples in them; a batch rounds their images otherwise than one by itself."""
    mine, theirs = found.tensors(), expected.tensors()
    for name in theirs:
        if name.startswith("gaussian.") and not name.endswith("moment"):
            whole = (mine[name] - theirs[name]).abs().max() if theirs[name].numel() else 0
            assert whole <= 2 * COUNT, name  # of 2^-16 each
        if name.startswith(("evidence.", "instance.images")):
            torch.testing.assert_close(mine[name].cpu(), theirs[name], atol=1e-3, rtol=1e-3)
    assert torch.equal(mine["gaussian.now.counts"], theirs["gaussian.now.counts"])
    assert torch.equal(mine["gaussian.settled.counts"], theirs["gaussian.settled.counts"])
    assert torch.equal(mine["instance.examples"], theirs["instance.examples"])
    assert found.gaussian.step == expected.gaussian.step
    assert found.plain()["evidence"] == expected.plain()["evidence"]
    for name, weight in expected.weights.items():
        assert found.weights[name] == pytest.approx(weight, rel=1e-2), name
    assert found.weights != start_weights(POOLED)


def check_same(learner: StreamLearner, trainer: Trainer, tolerance: float = 1e-4) -> None:
    """Weights, moments, estimates and labels."""
    expected = trainer.learner.state()
    for name, value in learner.learner.state().items():
        torch.testing.assert_close(value.cpu(), expected[name], atol=tolerance, rtol=1e-3)
    assert learner.estimates.state() == trainer.model.estimates.state()
    check_experts(learner.model, trainer.model)
    assert (learner.labels, learner.rows) == (trainer.labels, trainer.rows)


@pytest.mark.parametrize("sampler", ["class_balanced", "uniform", "fifo", "frequency_weighted"])
def test_a_stream_is_its_examples_one_by_one(sampler: str) -> None:
    chosen = settings(seed=3, sampler=sampler)
    check_same(streamed(chosen), taught(range(COUNT), settings=chosen)._trainer)


@pytest.mark.parametrize(
    ("config", "order"),
    [
        (TEXTS, "_draw _draw learned_many learned_many"),
        (FAST, "_draw learned_many _draw learned_many"),
    ],
    ids=["texts", "imprinted"],
)
def test_a_device_is_waited_for_only_where_the_next_steps_need_it(
    config: LearnerConfig, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a GPU would idle while the draws of a stretch are made."""
    acts: list[str] = []

    def note(owner: type, name: str) -> None:
        act = getattr(owner, name)

        def noted(*given: Any) -> None:
            acts.append(name)
            act(*given)

        monkeypatch.setattr(owner, name, noted)

    note(StreamLearner, "_draw")
    note(Model, "learned_many")
    monkeypatch.setattr(stream, "STRETCH", 10)
    streamed(settings(learner=config), prior=measured().prior)
    assert acts[:4] == order.split()


@pytest.mark.parametrize("config", [TEXTS, FAST], ids=["texts", "imprinted"])
def test_with_a_prior_for_the_experts(
    config: LearnerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(learner=config)
    monkeypatch.setattr(stream, "STRETCH", 16)
    learner = streamed(chosen, prior=measured().prior)
    check_same(learner, taught(range(COUNT), settings=chosen, model=measured())._trainer)
    assert learner.model.instances.examples


def test_labels_that_come_later_have_no_part_in_the_weights() -> None:
    """A stretch knows all of its labels ahead; evidence is weighed among those seen by then."""
    backbone, count = measured(), 40
    labels = [LABELS[number % 2] if number < 33 else LABELS[number % 4] for number in range(count)]
    images = [picture(number) for number in range(count)]
    vectors = {label: backbone.embed_labels([label])[0] for label in LABELS}
    learner = StreamLearner(
        backbone.spec,
        backbone.tail,
        settings(),
        backbone.encode(images),
        labels,
        vectors,
        prior=backbone.prior,
    )
    learner.learn(range(count))
    one = taught([], model=backbone)
    for image, label in zip(images, labels, strict=True):
        one.learn_one(image, label)
    expected = one._trainer.model.weights
    for name, weight in learner.model.weights.items():
        assert weight == pytest.approx(expected[name], rel=1e-2)


@pytest.mark.parametrize("tune", ["classifier", "both"])
def test_with_a_trainable_classifier(tune: str) -> None:
    chosen = settings(learner=dataclasses.replace(FAST, tune=tune))
    check_same(streamed(chosen), taught(range(COUNT), settings=chosen)._trainer)


def test_with_several_blocks() -> None:
    backbone = model(blocks=2)
    check_same(streamed(settings(), 2), taught(range(COUNT), model=backbone)._trainer)


def test_a_long_stream_is_cut_into_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = streamed(settings())
    monkeypatch.setattr(stream, "STRETCH", 7)
    check_same(whole, taught(range(COUNT))._trainer)
    cut = streamed(settings())
    assert all(
        torch.equal(value, cut.learner.state()[name])
        for name, value in whole.learner.state().items()
    )
    assert cut.estimates.state() == whole.estimates.state()
    check_experts(cut.model, whole.model)


def compressed() -> tuple[TailInput, TailInput]:
    """Examples as a few parts, and multiplied out."""
    random = torch.Generator().manual_seed(1)
    width, eps = model().spec.tail.width, model().spec.tail.norm_eps
    shapes = ((COUNT, width), (COUNT, width), (COUNT, 3, width), (COUNT, 4, 3))
    cls, *parts = (torch.randn(shape, generator=random) for shape in shapes)
    low = Tokens.low_rank(normalise(cls, eps), *parts)
    assert low.coefficients is not None
    return TailInput(cls, low), TailInput(cls, Tokens(low.coefficients @ low.parts))


def learned_from(
    seen: TailInput, device: str = "cpu", precision: Precision = "auto", compiled: bool = False
) -> dict[str, Tensor]:
    """What a stream of these examples leaves behind; copies are of their weights."""
    backbone, labels = model(), [lesson(number)[1] for number in range(COUNT)]
    vectors = {label: backbone.embed_labels([label])[0].to(device) for label in set(labels)}
    tail = {name: value.to(device) for name, value in backbone.tail.items()}
    examples = seen.map(lambda tensor: tensor.to(device))
    chosen = settings(seed=2, learner=dataclasses.replace(FAST, precision=precision))
    learner = StreamLearner(
        backbone.spec, tail, chosen, examples, labels, vectors, compiled=compiled
    )
    learner.learn(range(COUNT))
    for name, value in getattr(learner.learner, "copies", {}).items():
        assert torch.equal(value, learner.learner.params[name].bfloat16()), name
    return learner.learner.state()


def test_compressed_examples_are_learned_as_they_are() -> None:
    """From their parts, as if they had been multiplied out."""
    parts, whole = (learned_from(seen) for seen in compressed())
    for name, value in parts.items():
        torch.testing.assert_close(value, whole[name], atol=1e-4, rtol=1e-3)


def test_learning_nothing_changes_nothing() -> None:
    learner = streamed(settings())
    before = {name: value.clone() for name, value in learner.learner.state().items()}
    learner.learn([])
    assert all(torch.equal(value, before[n]) for n, value in learner.learner.state().items())
