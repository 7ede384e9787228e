"""The step that is written out is the step that autograd finds."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tests.fast.learners import fast_learner
from tests.helpers import model
from tests.test_learner import LABELS, batch_of
from torch import Tensor

from anytimecl.fast.layers import back_across
from anytimecl.fast.stacked import STACKED
from anytimecl.fast.step import StepInput, supports, written_out_step
from anytimecl.learner import Learner
from anytimecl.settings import LearnerConfig
from anytimecl.tail import TailInput, Tokens, look

CONFIG = LearnerConfig(beta=0.3, scale=30.0)
DOUBLE: dict[str, Any] = {"dtype": torch.float64}


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("kind", ["clip", "dinov2"])
@pytest.mark.parametrize("form", ["whole", "parts", "no components", "stacked"])
def test_the_gradients_are_autograds(kind: str, activation: str, form: str) -> None:
    backbone = model(kind)
    tail = dataclasses.replace(backbone.spec.tail, activation=activation)
    backbone = dataclasses.replace(backbone, spec=dataclasses.replace(backbone.spec, tail=tail))
    assert supports(tail)
    learner = fast_learner(backbone, CONFIG, **DOUBLE)
    learner.begin(3.0)
    batch = batch_of(backbone, 1, masked=True, **DOUBLE)
    seen = look(batch.tokens, tail.norm_eps)  # type: ignore[arg-type]
    if form != "whole":
        random = torch.Generator().manual_seed(0)
        rank = 0 if form == "no components" else 3
        shapes = ((6, tail.width), (6, rank, tail.width), (6, 5, rank))
        parts = (torch.randn(shape, generator=random, **DOUBLE) for shape in shapes)
        seen = TailInput(seen.cls, Tokens.low_rank(seen.tokens.parts[:, 0], *parts))
        if form == "stacked":
            seen = seen.even()  # as a stream has them
    weight = torch.arange(1.0, 7, **DOUBLE) / 21
    batch = dataclasses.replace(batch, tokens=seen, weight=weight)
    expected = Learner.look_ahead(learner, batch)

    assert batch.mask is not None
    question = StepInput(
        seen, batch.target, batch.vectors, batch.mask, weight, learner.spec.logit_scale, 30.0, 0.3
    )
    params = dict(learner.params)
    if form == "stacked":
        at = f"layers.{tail.last}."
        params[at + STACKED] = learner.stacked([f"{at}self_attn.{x}_proj.weight" for x in "qkv"])
    found = written_out_step(params, learner.other, tail, question)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-9, atol=1e-9)
    units = learner.tuned_images(seen)
    torch.testing.assert_close(found.images, units, rtol=1e-9, atol=1e-9)
    gradients = {name: thin.whole() for name, thin in found.matrices.items()} | found.vectors
    assert gradients.keys() == expected.whole().keys()
    for name, value in expected.whole().items():
        torch.testing.assert_close(gradients[name], value, rtol=1e-6, atol=1e-10, msg=name)
    assert len(batch.vectors) == LABELS


def test_other_tails_are_left_to_autograd() -> None:
    assert not supports(model(blocks=2).spec.tail)
    assert not supports(model("siglip").spec.tail)
    assert not supports(dataclasses.replace(model("dinov2").spec.tail, mlp="swiglu"))


def test_stacked_weights_follow_what_is_learned() -> None:
    learner, other = (fast_learner(model(), CONFIG, **DOUBLE) for _ in range(2))
    at = f"layers.{model().spec.tail.last}.self_attn."
    names = [f"{at}{x}_proj.weight" for x in "qkv"]
    whole = learner.stacked(names)
    before = whole.clone()
    for each in (learner, other):
        each.apply(each.look_ahead(batch_of(model(), 1, **DOUBLE)))
    assert not torch.equal(whole, before)
    assert torch.equal(whole, torch.cat([other.params[name] for name in names]))
    learner.restore(fast_learner(model(), CONFIG, **DOUBLE).state())
    assert torch.equal(whole, before)


def back_the_same(d: Tensor, weight: Tensor, threads: int) -> Tensor:
    """The way back, which that many threads go to the same bits as all."""
    alone = back_across(d, weight)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(back_across(d, weight), alone)
    finally:
        torch.set_num_threads(before)
    return alone


@pytest.mark.parametrize(("size", "rows"), [(6, 64), (6, 30), (80, 64)])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_way_back_is_a_product_whatever_the_threads(size: int, rows: int, threads: int) -> None:
    """In parts, not in parts, and to the same bits with any number of threads."""
    random = torch.Generator().manual_seed(0)
    weight, d = torch.randn(rows, 48, generator=random), torch.randn(size, rows, generator=random)
    torch.testing.assert_close(back_the_same(d, weight, threads), d @ weight)
