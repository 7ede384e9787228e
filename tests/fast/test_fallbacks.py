"""Where torch lacks a private function that the fast step calls, the plain one gives the same."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.fast.learners import fast_learner
from tests.helpers import model
from tests.test_learner import CONFIG, batch_of

from anytimecl.fast import layers, low_rank, repeated
from anytimecl.fast.layers import loss_gradient
from anytimecl.loss import anytime_loss

SINGLE = {"dtype": torch.float32}


def learned(**changes: object) -> dict[str, torch.Tensor]:
    """What a step leaves behind."""
    learner = fast_learner(model(), dataclasses.replace(CONFIG, **changes))  # type: ignore[arg-type]
    learner.apply(learner.look_ahead(batch_of(model(), 0, **SINGLE)))
    return learner.state()


@pytest.mark.parametrize(("module", "name"), [(layers, "_ONEDNN"), (low_rank, "_FUSED")])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_without_it_the_step_is_the_same(
    module: object, name: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = learned(precision=precision)
    assert getattr(module, name) is not None  # this torch has it, so there is something to compare
    monkeypatch.setattr(module, name, None)
    for key, value in learned(precision=precision).items():
        torch.testing.assert_close(value, expected[key], atol=2e-5, rtol=1e-3, msg=key)


def test_limits_that_this_torch_does_not_know_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch import _dynamo

    class Other:
        """A compiler without those limits."""

    monkeypatch.setattr(_dynamo, "config", Other())
    with repeated._one_of_many():
        pass


@pytest.mark.parametrize("masked", [False, True])
def test_the_written_out_gradient_is_that_of_the_loss(masked: bool) -> None:
    """Eq. 3 is `loss.py`: its gradient is found by autograd there, and written out here."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 5, generator=random, dtype=torch.float64)
    target = torch.tensor([0, 2, 4, 2])
    if masked:
        logits[0, 3] = logits[1, 0] = -torch.inf
    weight = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    other = torch.tensor(0.3, dtype=torch.float64)
    leaves = (logits.clone().requires_grad_(), other.clone().requires_grad_())
    loss = anytime_loss(*leaves, target, 0.3, weight)
    expected = torch.autograd.grad(loss, leaves)
    found = loss_gradient(logits, other, target, 0.3, weight)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
