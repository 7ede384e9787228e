"""Steps with one thread and with all: the same to the bit, or known not to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.fast.learners import fast_learner
from tests.helpers import model
from tests.test_learner import CONFIG

from anytimecl.fast import alike
from anytimecl.fast.step import StepOutput, written_out_step

LIGHT = dataclasses.replace(CONFIG, precision="bfloat16")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("part", ["logits", "matrices", "vectors", None])
def test_sums_that_threads_share_are_found(
    monkeypatch: pytest.MonkeyPatch, part: str | None
) -> None:
    def shared(*given: Any) -> StepOutput:
        found = written_out_step(*given)
        off = 1e-6 * (torch.get_num_threads() - 1)
        if part == "logits":
            return found._replace(logits=found.logits + off)
        if part is not None:
            next(iter(getattr(found, part).values()))[0].add_(off)
        return found

    monkeypatch.setattr(alike, "written_out_step", shared)
    learner = fast_learner(model(), dataclasses.replace(LIGHT, precision="float32"))
    assert alike.alike_with_one_thread(learner) == (part is None)
    assert torch.get_num_threads() == 2


def test_it_is_tried_once_for_a_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def trying(learner: object) -> bool:
        tried.append(torch.get_num_threads())
        return True

    monkeypatch.setattr("anytimecl.fast.learner.alike_with_one_thread", trying)
    learner = fast_learner(model(), LIGHT)
    assert learner.alike
    assert learner.alike
    torch.set_num_threads(3)
    assert learner.alike
    torch.set_num_threads(1)
    assert learner.alike
    assert tried == [2, 3]


def test_single_precision_is_not_tried() -> None:
    assert not fast_learner(model(), CONFIG).alike
