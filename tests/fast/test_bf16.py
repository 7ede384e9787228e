"""Products in bfloat16: nearly the same step, and weights that learn in float32 all the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from tests.fast.learners import fast_learner
from tests.fast.test_cuda_graph import compressed
from tests.fast.test_step import back_the_same
from tests.helpers import FAST, LABELS, changed, differing, knowledge, lessons, model, settings
from tests.test_learner import CONFIG, batch_of
from torch import Tensor

from anytimecl.classifier import AnytimeClassifier
from anytimecl.consolidation import offline_step
from anytimecl.fast import FastLearner, bf16, low_rank
from anytimecl.fast.bf16 import copies_of
from anytimecl.fast.stacked import STACKED
from anytimecl.fast.step import written_out_step
from anytimecl.fast.streams import standing_still
from anytimecl.scale.encoder import JointLearner
from anytimecl.settings import LearnerConfig
from anytimecl.step import Batch

LIGHT = dataclasses.replace(CONFIG, precision="bfloat16")
SINGLE = {"dtype": torch.float32}


def batch(seed: int, form: str = "whole") -> Batch:
    made = batch_of(model(), seed, **SINGLE)
    if form == "whole":
        return made
    assert isinstance(made.tokens, Tensor)
    seen = compressed(made.tokens, model().spec.tail.norm_eps)
    return dataclasses.replace(made, tokens=seen.even() if form == "stacked" else seen)


def check_copies(learner: FastLearner) -> None:
    """Every copy is of its weight, as that is now."""
    assert learner.copies
    for name, value in learner.copies.items():
        assert torch.equal(value, learner.params[name].to(torch.bfloat16)), name


@pytest.mark.parametrize("form", ["whole", "parts", "stacked"])
def test_the_gradients_are_nearly_those_of_single_precision(form: str) -> None:
    exact, learner = fast_learner(model()), fast_learner(model(), LIGHT)
    for each in (exact, learner):
        each.begin(3.0)
    asked = batch(1, form)
    expected = exact.look_ahead(asked)
    params = learner.working
    if form == "stacked":
        at = f"layers.{learner.spec.tail.last}."
        names = [f"{at}self_attn.{name}_proj.weight" for name in "qkv"]
        params = {at + STACKED: learner.stacked(names)} | learner.working
        assert params[at + STACKED].dtype == torch.bfloat16
        check_copies(learner)
    found = written_out_step(params, learner.other, learner.spec.tail, learner.step_input(asked))
    assert found.logits.dtype == torch.float32
    torch.testing.assert_close(found.logits, expected.logits, atol=0.3, rtol=0.02)
    wholes = {name: thin.whole() for name, thin in found.matrices.items()} | found.vectors
    assert wholes.keys() == expected.whole().keys()
    for name, value in expected.whole().items():
        off = (wholes[name].float() - value).norm() / value.norm().clamp_min(1e-9)
        assert off < 0.05, (name, float(off))


@pytest.mark.parametrize("form", ["whole", "parts"])
def test_copies_follow_what_is_learned(form: str) -> None:
    learner, exact = fast_learner(model(), LIGHT), fast_learner(model())
    check_copies(learner)
    begun = {name: value.clone() for name, value in learner.state().items()}
    for seed in range(3):
        learner.apply(learner.look_ahead(batch(seed, form)))
        exact.apply(exact.look_ahead(batch(seed, form)))
        check_copies(learner)
    for name, value in exact.trainable().items():  # which learned the same
        mine, start = learner.trainable()[name], begun[f"weights.{name}"]
        if not name.endswith("k_proj.bias"):
            assert (mine - value).norm() < 0.5 * (value - start).norm(), name
    assert any(not torch.equal(p, p.bfloat16().float()) for p in learner.trainable().values())
    offline_step(learner, learner.look_ahead(batch(3)).whole(), learner.fresh_optimiser(), 0.5, 64)
    check_copies(learner)
    assert all(value.dtype != torch.bfloat16 for value in learner.state().values())
    learner.restore(begun)
    check_copies(learner)


def test_the_update_is_the_same_however_many_rows_it_takes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learners = []
    for numbers in (1, 1 << 30):
        monkeypatch.setattr(low_rank, "_AT_ONCE", numbers)
        learner = fast_learner(model(), LIGHT)
        for seed in range(2):
            learner.apply(learner.look_ahead(batch(seed)))
        check_copies(learner)
        learners.append(learner)
    assert changed(*(learner.state() for learner in learners)) == []


def test_a_classifier_lives_and_relives_the_same(tmp_path: Path) -> None:
    """Lessons, consolidation and forgetting; then all of it from the journal."""
    chosen = settings(learner=dataclasses.replace(FAST, precision="bfloat16"))
    with AnytimeClassifier.open(tmp_path / "m", model=model(), settings=chosen) as classifier:
        for image, label in lessons(8):
            classifier.learn_one(image, label)
        classifier.consolidate(epochs=1)
        classifier.learn_many(lessons(4, start=8))
        check_copies(classifier._trainer.learner)
        lived = knowledge(classifier)
        classifier.rebuild()
        check_copies(classifier._trainer.learner)
        assert differing(lived, knowledge(classifier)) == []
        classifier.forget(label=LABELS[0])
        check_copies(classifier._trainer.learner)
    # Another machine may be asked for another precision: the memory is the same.
    plain = dataclasses.replace(chosen, learner=dataclasses.replace(FAST, precision="float32"))
    with AnytimeClassifier.open(tmp_path / "m", model=model(), settings=plain) as classifier:
        assert classifier._trainer.learner.copies == {}


def test_a_restored_learner_continues_bit_for_bit() -> None:
    living, again = (fast_learner(model(), LIGHT) for _ in range(2))
    for seed in range(3):
        living.apply(living.look_ahead(batch(seed)))
    again.restore(living.state())
    for learner in (living, again):
        learner.apply(learner.look_ahead(batch(3)))
    assert changed(living.state(), again.state()) == []


def test_it_is_chosen_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = {"matrix": torch.zeros(300, 256), "vector": torch.zeros(300)}
    narrow = wide | {"small": torch.zeros(300, 255)}
    monkeypatch.setattr(bf16, "_fast_here", lambda: True)
    assert copies_of(wide, "auto").keys() == {"matrix"}
    assert copies_of(wide, "float32") == {}
    assert copies_of(narrow, "auto") == {}
    assert copies_of(narrow, "bfloat16").keys() == {"matrix", "small"}
    assert copies_of({name: value.double() for name, value in wide.items()}, "auto") == {}
    monkeypatch.setattr(bf16, "_fast_here", lambda: False)
    assert copies_of(wide, "auto") == {}


@pytest.mark.parametrize("other", [{"tune": "both"}, {"tune": "classifier"}])
def test_autograd_takes_the_weights_themselves(other: dict[str, str]) -> None:
    assert fast_learner(model(), dataclasses.replace(LIGHT, **other)).copies == {}  # type: ignore[arg-type]
    assert fast_learner(model("siglip"), LIGHT).copies == {}


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="precision is one of"):
        LearnerConfig(precision="float8")  # type: ignore[arg-type]


@pytest.mark.parametrize("threads", range(1, 4))
def test_the_way_back_is_the_same_whatever_the_threads(threads: int) -> None:
    random = torch.Generator().manual_seed(0)
    weight, d = torch.randn(64, 48, generator=random), torch.randn(6, 64, generator=random)
    found = back_the_same(d, weight.bfloat16(), threads)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, d @ weight, atol=0.2, rtol=0.02)


@pytest.mark.parametrize("kind", [FastLearner, JointLearner])
def test_a_copy_that_stands_still(kind: type[FastLearner]) -> None:
    learner = kind(model().spec, model().tail, LIGHT)
    learner.begin(1.0)
    asked = batch(0)
    before = learner.tuned_logits(asked.tokens, asked.vectors, asked.rows)
    still = standing_still(learner)
    learner.apply(learner.look_ahead(asked))
    assert torch.equal(still.tuned_logits(asked.tokens, asked.vectors, asked.rows), before)
    assert still.other != learner.other
    after = learner.tuned_logits(asked.tokens, asked.vectors, asked.rows)
    assert not torch.equal(after, before)
