"""A stream learned at once is the stream learned one by one."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import torch
from tests.helpers import FAST, lesson, model, settings, taught
from torch import Tensor

from anytimecl import stream
from anytimecl.light import Precision
from anytimecl.settings import Settings
from anytimecl.stream import StreamLearner
from anytimecl.student import Student
from anytimecl.tail import Seen, Tokens, normalise

COUNT = 30


def streamed(chosen: Settings, blocks: int = 1, device: str = "cpu") -> StreamLearner:
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
    )
    learner.learn(range(20))
    learner.learn(range(20, COUNT))
    return learner


def check_same(learner: StreamLearner, student: Student, tolerance: float = 1e-4) -> None:
    """Weights, moments, estimates and labels."""
    expected = student.learner.state()
    for name, value in learner.learner.state().items():
        torch.testing.assert_close(value.cpu(), expected[name], atol=tolerance, rtol=1e-3)
    assert learner.estimates.state() == student.estimates.state()
    for name, value in student.recall.state().items():
        torch.testing.assert_close(learner.recall.state()[name], value, atol=1e-5, rtol=1e-5)
    assert (learner.labels, learner.rows) == (student.labels, student.rows)


@pytest.mark.parametrize("sampler", ["class_balanced", "uniform", "fifo", "frequency_weighted"])
def test_a_stream_is_its_examples_one_by_one(sampler: str) -> None:
    chosen = settings(seed=3, sampler=sampler)
    check_same(streamed(chosen), taught(range(COUNT), settings=chosen)._student)


@pytest.mark.parametrize("tune", ["classifier", "both"])
def test_with_a_trainable_classifier(tune: str) -> None:
    chosen = settings(learner=dataclasses.replace(FAST, tune=tune))
    check_same(streamed(chosen), taught(range(COUNT), settings=chosen)._student)


def test_with_several_blocks() -> None:
    backbone = model(blocks=2)
    check_same(streamed(settings(), 2), taught(range(COUNT), model=backbone)._student)


def test_a_long_stream_is_cut_into_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = streamed(settings())
    monkeypatch.setattr(stream, "STRETCH", 7)
    check_same(whole, taught(range(COUNT))._student)
    cut = streamed(settings())
    assert all(
        torch.equal(value, cut.learner.state()[name])
        for name, value in whole.learner.state().items()
    )
    assert cut.estimates.state() == whole.estimates.state()
    torch.testing.assert_close(cut.recall.sums, whole.recall.sums, atol=1e-5, rtol=1e-5)


def compressed() -> tuple[Seen, Seen]:
    """Examples as a few parts, and multiplied out."""
    random = torch.Generator().manual_seed(1)
    width, eps = model().spec.tail.width, model().spec.tail.norm_eps
    shapes = ((COUNT, width), (COUNT, width), (COUNT, 3, width), (COUNT, 4, 3))
    cls, *parts = (torch.randn(shape, generator=random) for shape in shapes)
    low = Tokens.low_rank(normalise(cls, eps), *parts)
    assert low.coefficients is not None
    return Seen(cls, low), Seen(cls, Tokens(low.coefficients @ low.parts))


def learned_from(
    seen: Seen, device: str = "cpu", precision: Precision = "auto", compiled: bool = False
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
    for name, value in learner.learner.light.items():
        assert torch.equal(value, learner.learner.params[name].bfloat16()), name
    return learner.learner.state()


def test_compressed_examples_are_learned_as_they_are() -> None:
    """From their parts, as if they had been multiplied out."""
    parts, whole = (learned_from(seen) for seen in compressed())
    for name, value in parts.items():
        torch.testing.assert_close(value, whole[name], atol=1e-4, rtol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no GPU to capture a graph on.")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # the compiler's
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_learns_the_same_from_compressed_examples(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_tensor_cores", contextlib.nullcontext)
    seen, _ = compressed()
    expected = learned_from(seen)
    found = learned_from(seen, "cuda", precision="float32", compiled=compiled)
    for name, value in found.items():
        torch.testing.assert_close(value.cpu(), expected[name], atol=1e-4, rtol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no GPU to capture a graph on.")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # the compiler's
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_learns_nearly_the_same_in_bfloat16(compiled: bool) -> None:
    seen, _ = compressed()
    expected = learned_from(seen, precision="bfloat16")
    found = learned_from(seen, "cuda", precision="bfloat16", compiled=compiled)
    for name in (name for name in found if name.startswith("weights.layers")):
        start = model().tail[name.removeprefix("weights.")]
        moved, off = expected[name] - start, found[name].cpu() - expected[name]
        assert off.norm() < 0.5 * moved.norm() or name.endswith("k_proj.bias"), name


def test_learning_nothing_changes_nothing() -> None:
    learner = streamed(settings())
    before = {name: value.clone() for name, value in learner.learner.state().items()}
    learner.learn([])
    assert all(torch.equal(value, before[n]) for n, value in learner.learner.state().items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="There is no GPU to capture a graph on.")
def test_the_captured_graph_is_the_eager_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """In single precision; on tensor cores, small gradients may change sign."""
    monkeypatch.setattr(stream, "_tensor_cores", contextlib.nullcontext)
    chosen = settings(seed=3)
    check_same(streamed(chosen, device="cuda"), taught(range(COUNT), settings=chosen)._student)
