"""Padded and captured steps are the plain ones, and kept examples are the decoded ones."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.fast.learners import fast_learner
from tests.helpers import FAST, knowledge, lesson, lessons, model, picture, settings, taught
from tests.test_learner import batch_of
from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.backbone.trunk import TorchTrunk
from anytimecl.classifier import AnytimeClassifier
from anytimecl.codec import make_codec
from anytimecl.fast import FastLearner
from anytimecl.fast.cuda_graph import CapturedStep
from anytimecl.fast.example_cache import PARTS, ExampleCache, tensors_of
from anytimecl.settings import LearnerConfig
from anytimecl.tail import TailInput, Tokens, look

CPU = torch.device("cpu")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no GPU to capture on.")


@pytest.mark.parametrize("name", ["tokens-fp32", "tokens-fp16", "attention-pca"])
@pytest.mark.parametrize("room", [1 << 30, 20_000, 1])
def test_kept_examples_are_the_decoded_ones(name: str, room: int) -> None:
    backbone = model()
    codec = make_codec(name, backbone.spec, backbone.tail)
    tokens = backbone.encode([picture(number) for number in range(12)])
    records = [codec.encode(one) for one in tokens]
    cache = ExampleCache(codec, CPU, room)
    random = torch.Generator().manual_seed(0)
    for _ in range(30):
        ids = torch.randint(12, (5,), generator=random).tolist()  # some of them twice
        found = cache.take(ids, [records[i] for i in ids])
        expected = codec.decode([records[i] for i in ids])
        if isinstance(expected, TailInput) and expected.tokens.coefficients is not None:
            expected = expected.even(PARTS)
        for one, other in zip(tensors_of(found), tensors_of(expected), strict=True):
            assert torch.equal(one, other)


def test_a_dropped_example_leaves_nothing() -> None:
    backbone = model()
    codec = make_codec("tokens-fp32", backbone.spec, backbone.tail)
    tokens = backbone.encode([picture(0), picture(1)])
    cache = ExampleCache(codec, CPU)
    cache.take([7, 8, 7], [codec.encode(one) for one in (*tokens, tokens[0])])
    cache.drop(7)
    cache.drop(7)
    assert isinstance(cache._kept, Tensor)
    assert not any(torch.equal(row, tokens[0]) for row in cache._kept)
    (kept,) = tensors_of(cache.take([8], [b"not read"]))
    assert torch.equal(kept, tokens[1:])
    (again,) = tensors_of(cache.take([7], [codec.encode(tokens[0])]))
    assert torch.equal(again, tokens[:1])


def compressed(tokens: Tensor, eps: float) -> TailInput:
    """Class tokens of these, and patches made of a few parts."""
    seen, random = look(tokens, eps), torch.Generator().manual_seed(1)
    size, count, width = seen.tokens.parts.shape
    shapes = ((size, width), (size, 3, width), (size, count - 1, 3))
    parts = (torch.randn(shape, generator=random).to(tokens.device) for shape in shapes)
    return TailInput(seen.cls, Tokens.low_rank(seen.tokens.parts[:, 0], *parts))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", ["whole", "parts"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_gpu)])
def test_a_padded_step_is_the_step(form: str, device: str, precision: Any) -> None:
    kinds = {"dtype": torch.float32, "device": device}
    learner = fast_learner(model(), LearnerConfig(batch=16, beta=0.3, precision=precision), **kinds)
    exact = precision == "float32"
    close = {"atol": 1e-4, "rtol": 1e-4} if exact else {"atol": 0.1, "rtol": 0.02}
    near = {"atol": 2e-5, "rtol": 1e-3} if exact else {"atol": 2e-3, "rtol": 0.1}
    learner.begin(3.0)
    step = CapturedStep(learner)
    shapes = [(6, 5), (3, 3), (9, 5), (20, 40), (4, 4)]  # for which there are places, and others
    for size, labels in shapes:
        batch = batch_of(model(), size, size, masked=labels == 5, **kinds)
        known = batch.vectors[torch.arange(labels, device=device) % len(batch.vectors)]
        target = (batch.target % labels).to(device)
        rows = torch.arange(labels, device=device)
        batch = dataclasses.replace(batch, target=target, rows=rows, vectors=known)
        if form == "parts":
            assert isinstance(batch.tokens, Tensor)
            seen = compressed(batch.tokens, learner.spec.tail.norm_eps)
            batch = dataclasses.replace(batch, tokens=seen)
        expected, found = learner.look_ahead(batch), step.look_ahead(batch)
        torch.testing.assert_close(found.logits, expected.logits, **close)
        if exact:
            units = learner.tuned_images(batch.tokens)
            torch.testing.assert_close(found.images, units, atol=1e-4, rtol=1e-4)
        assert found.whole().keys() == expected.whole().keys()
        for name, value in expected.whole().items():
            torch.testing.assert_close(found.whole()[name], value, **near, msg=name)


def model_on(device: str) -> Backbone:
    tiny = model()
    assert isinstance(tiny.trunk, TorchTrunk)
    params = {name: value.to(device) for name, value in tiny.trunk.params.items()}
    tail = {name: value.to(device) for name, value in tiny.tail.items()}
    return dataclasses.replace(tiny, trunk=TorchTrunk(params, tiny.trunk.spec), tail=tail)


def check_close(one: AnytimeClassifier, other: AnytimeClassifier) -> None:
    mine, theirs = knowledge(one), knowledge(other)
    for name in ("ids", "event"):
        assert mine[name] == theirs[name], name
    for name in ("estimates", "labels", "evidence"):
        assert mine["model"][name] == theirs["model"][name], name
    for name, value in mine["tensors"].items():
        expected = theirs["tensors"][name].to(value.device)
        if name.endswith(("sums", "moment")):  # in units of 2^-16, or of 2^-32
            value, expected = (
                t.double() / 2 ** (32 if "moment" in name else 16) for t in (value, expected)
            )
        torch.testing.assert_close(value, expected, atol=2e-4, rtol=1e-3, msg=name)


@on_gpu
@pytest.mark.parametrize("codec", ["tokens-fp32", "attention-pca"])
def test_a_classifier_learns_the_same_on_a_gpu(codec: str) -> None:
    """Over a label set that outgrows its first size, with candidates, and with forgetting."""
    made = []
    for device in ("cpu", "cuda"):
        chosen = settings(codec=codec, learner=dataclasses.replace(FAST, lr=1e-4))
        classifier = AnytimeClassifier.open(model=model_on(device), settings=chosen)
        for number in range(24):
            candidates = ["cat", f"name {number}"] if number % 3 == 0 else None
            classifier.learn_one(picture(number), f"name {number}", candidates=candidates)
        for image, label in lessons(10):
            classifier.learn_one(image, label)
        classifier.forget(label="name 3")
        classifier.learn_many(lessons(6, start=10))
        made.append(classifier)
    check_close(made[1], made[0])


@on_gpu
def test_predictions_go_on_while_a_step_is_captured() -> None:
    classifier = AnytimeClassifier.open(model=model_on("cuda"), settings=settings())
    classifier.learn_one(*lesson(0))
    with ThreadPoolExecutor(4) as pool:
        asked = [
            pool.submit(classifier.predict, picture(n), ["cat", "dog", f"name {n}"])
            for n in range(80)
        ]
        for number in range(60):  # three sizes of label sets, a capture each
            classifier.learn_one(picture(number), f"name {number}")
        assert all(prediction.result().label for prediction in asked)
    assert len(classifier) == 61


def test_a_cpu_has_no_use_for_it() -> None:
    learner = taught(range(2))._trainer.learner
    assert isinstance(learner, FastLearner)
    assert not learner.on_gpu
    assert (learner._cache, learner._captured) == (None, None)
