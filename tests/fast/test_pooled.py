"""The written-out step of a pooling head, held to autograd."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.codec.test_pooled_pca import WIDTH, head, spec, tokens
from torch import Tensor

from anytimecl.codec import make_codec
from anytimecl.fast import FastLearner
from anytimecl.learner import Learner
from anytimecl.settings import LearnerConfig
from anytimecl.step import Batch
from anytimecl.tail import TailInput

CONFIG = LearnerConfig(precision="float32")


def batch(given: Tensor | TailInput) -> Batch:
    random = torch.Generator().manual_seed(3)
    vectors = F.normalize(torch.randn(5, WIDTH, generator=random), dim=-1)
    mask = torch.zeros(4, 5)
    mask[1, 4] = -torch.inf
    weight = torch.tensor([0.4, 0.3, 0.2, 0.1])
    return Batch(
        given, torch.tensor([0, 2, 1, 4]).clamp(max=3), vectors, torch.arange(5), mask, weight
    )


@pytest.mark.parametrize("form", ["whole", "stored"])
def test_it_is_what_autograd_gives(form: str) -> None:
    given: Tensor | TailInput = tokens()
    if form == "stored":
        codec = make_codec("attention-pca", spec(), head())
        given = codec.decode([codec.encode(one) for one in tokens()])
    plain, fast = (kind(spec(), head(), CONFIG) for kind in (Learner, FastLearner))
    assert fast.written_out
    expected, found = (learner.look_ahead(batch(given)) for learner in (plain, fast))
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.images, expected.images, rtol=1e-4, atol=1e-5)
    slow, quick = expected.whole(), found.whole()
    assert quick.keys() == slow.keys()
    assert {name for name in slow if name != "other"} == {
        name for name in head() if spec().tail.trains(name) and not name.endswith("k_proj.bias")
    }
    for name, gradient in slow.items():
        size = float(gradient.abs().max())
        torch.testing.assert_close(
            quick[name], gradient, rtol=1e-3, atol=1e-4 * size + 1e-7, msg=name
        )


def test_steps_end_in_the_same_weights() -> None:
    plain, fast = (kind(spec(), head(), CONFIG) for kind in (Learner, FastLearner))
    for _ in range(3):
        for learner in (plain, fast):
            learner.apply(learner.look_ahead(batch(tokens())), 1e-3)
    for name, value in plain.trainable().items():
        torch.testing.assert_close(fast.trainable()[name], value, rtol=1e-3, atol=2e-5, msg=name)
        assert (
            name == "other" or name.endswith("k_proj.bias") or not torch.equal(value, head()[name])
        )
    assert torch.equal(fast.params["head.probe"], head()["head.probe"])
