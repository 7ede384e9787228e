"""A step of the learner is a step of torch's AdamW on the plain full-block model."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import changed, model
from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.backbone.trunk import block
from anytimecl.consolidation import offline_step
from anytimecl.errors import CheckpointError
from anytimecl.learner import Learner
from anytimecl.optimiser import AdamW
from anytimecl.settings import LearnerConfig
from anytimecl.step import Batch

LABELS = 5
CONFIG = LearnerConfig(lr=1e-3, beta=0.3, scale=30.0)


def learner_of(backbone: Backbone, config: LearnerConfig = CONFIG, **kinds: Any) -> Learner:
    tail = {name: value.to(**kinds).clone() for name, value in backbone.tail.items()}
    return Learner(backbone.spec, tail, config)


def batch_of(
    backbone: Backbone, seed: int, size: int = 6, masked: bool = False, **kinds: Any
) -> Batch:
    """Random tokens and labels; with `masked`, each example has candidates of its own."""
    random = torch.Generator().manual_seed(seed)
    spec = backbone.spec
    tokens = 3 * torch.randn(size, spec.tokens, spec.tail.width, generator=random)
    target = torch.randint(LABELS, (size,), generator=random)
    mask = None
    if masked:
        allowed = torch.rand(size, LABELS, generator=random) < 0.5
        allowed[torch.arange(size), target] = True
        mask = torch.where(allowed, 0.0, -torch.inf).to(**kinds)
    return Batch(
        tokens.to(**kinds), target, vectors(spec.dim).to(**kinds), torch.arange(LABELS), mask
    )


def vectors(dim: int) -> Tensor:
    random = torch.Generator().manual_seed(99)
    return F.normalize(torch.randn(LABELS, dim, generator=random, dtype=torch.float64), dim=-1)


class Plain:
    """The reference: every block for every token, autograd, and torch's optimiser."""

    def __init__(self, learner: Learner) -> None:
        self.spec, self.config = learner.spec, learner.config
        self.fixed = {name: value.clone() for name, value in learner.params.items()}
        self.tuned = {
            name: torch.nn.Parameter(value.clone()) for name, value in learner.trainable().items()
        }
        self.optimiser = torch.optim.AdamW(
            self.tuned.values(), lr=self.config.lr, weight_decay=self.config.weight_decay
        )

    def step(self, batch: Batch) -> Tensor:
        """Train once; returns the logits from before."""
        params, tail = self.fixed | self.tuned, self.spec.tail
        assert isinstance(batch.tokens, Tensor)
        x = batch.tokens
        for index in range(tail.first, tail.last + 1):
            x = block(params, tail, index, x)
        gain, shift = params["post_layernorm.weight"], params["post_layernorm.bias"]
        x = F.layer_norm(x[:, 0], (tail.width,), gain, shift, tail.norm_eps)
        if "visual_projection.weight" in params:
            x = x @ params["visual_projection.weight"].T
        names = batch.vectors
        if "classifier" in self.tuned:
            names = F.normalize(names + self.tuned["classifier"], dim=-1)
        logits = CONFIG.scale * F.normalize(x, dim=-1) @ names.T
        other = CONFIG.scale * self.tuned["other"]
        losses = []
        for i, y in enumerate(batch.target.tolist()):
            mask = torch.zeros(1, LABELS) if batch.mask is None else batch.mask[i : i + 1]
            allowed = (mask[0] == 0).nonzero()[:, 0]
            everything = torch.stack([logits[i, c] for c in allowed] + [other])
            without_y = torch.stack([logits[i, c] for c in allowed if int(c) != y] + [other])
            right = everything.logsumexp(0) - logits[i, y]
            absent = without_y.logsumexp(0) - other
            losses.append(right + self.config.beta * absent)
        self.optimiser.zero_grad()
        torch.stack(losses).mean().backward()
        self.optimiser.step()
        return logits.detach() * (self.spec.logit_scale / CONFIG.scale)  # at the scale of answers


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("tune", ["block", "classifier", "both"])
@pytest.mark.parametrize(
    ("kind", "blocks"), [("clip", 1), ("clip", 2), ("clip", 3), ("dinov2", 1), ("dinov2", 2)]
)
def test_three_steps_equal_torchs_adamw_on_the_plain_model(
    kind: str, blocks: int, tune: Any, masked: bool
) -> None:
    """In double precision: what rounding does to single precision, another test allows for."""
    backbone = model(kind, blocks=blocks)
    learner = learner_of(
        backbone, dataclasses.replace(CONFIG, tune=tune, weight_decay=0.2), dtype=torch.float64
    )
    learner.make_room(LABELS)
    learner.begin(3.0)
    start = {name: value.clone() for name, value in learner.trainable().items()}
    plain = Plain(learner)
    for seed in range(3):
        batch = batch_of(backbone, seed, masked=masked, dtype=torch.float64)
        update = learner.look_ahead(batch)
        logits = plain.step(batch)
        if batch.mask is not None:
            logits = logits.masked_fill(batch.mask != 0, -torch.inf)
        torch.testing.assert_close(update.logits, logits, rtol=1e-8, atol=1e-8)
        learner.apply(update)
    assert learner.trainable().keys() == plain.tuned.keys()
    for name, value in learner.trainable().items():
        if name.endswith("k_proj.bias"):
            # Without a gradient it is not even decayed, which no softmax over keys can tell.
            assert torch.equal(value, start[name])
            continue
        assert not torch.equal(value, start[name]), name
        torch.testing.assert_close(value, plain.tuned[name].data, rtol=0, atol=1e-6, msg=name)


def test_in_single_precision_the_steps_are_the_same_up_to_rounding() -> None:
    backbone = model()
    learner = learner_of(backbone)
    plain = Plain(learner)
    for seed in range(3):
        batch = batch_of(backbone, seed, dtype=torch.float32)
        learner.apply(learner.look_ahead(batch))
        plain.step(batch)
    for name, value in learner.trainable().items():
        assert value.dtype == torch.float32
        if not name.endswith("k_proj.bias"):
            torch.testing.assert_close(value, plain.tuned[name].data, rtol=0, atol=2e-5, msg=name)


def test_looking_ahead_changes_nothing() -> None:
    learner = learner_of(model())
    before = {name: value.clone() for name, value in learner.state().items()}
    for seed in range(2):
        learner.look_ahead(batch_of(model(), seed, dtype=torch.float32))
    assert changed(before, learner.state()) == []


@pytest.mark.parametrize("tune", ["block", "classifier", "both"])
@pytest.mark.parametrize("kind", ["clip", "siglip", "dinov2"])
def test_only_what_is_tuned_ever_changes(kind: str, tune: Any) -> None:
    """Final norm, projection, pooling head, label embeddings and the original model stay."""
    backbone = model(kind)
    learner = learner_of(backbone, dataclasses.replace(CONFIG, tune=tune))
    learner.make_room(LABELS)
    before = {name: value.clone() for name, value in learner.params.items()}
    shifts = learner.shifts.clone()
    for seed in range(3):
        batch = batch_of(backbone, seed, dtype=torch.float32)
        names = batch.vectors.clone()
        learner.apply(learner.look_ahead(batch))
        offline_step(
            learner, learner.look_ahead(batch).gradients, learner.fresh_optimiser(), 0.5, 64
        )
        assert torch.equal(batch.vectors, names)
    assert changed(dict(backbone.tail), learner.original) == []
    moved = set(changed(before, learner.params))
    blocks = {name for name in before if name.startswith("layers.")}
    silent = {name for name in blocks if name.endswith("k_proj.bias")}
    assert moved | silent == (blocks if tune != "classifier" else silent)
    assert torch.equal(learner.shifts, shifts) == (tune == "block")
    assert learner.other != 0
    tokens = batch.tokens
    torch.testing.assert_close(
        learner.original_logits(tokens, names),
        learner_of(backbone).tuned_logits(tokens, names, batch.rows),
    )


def test_a_trainable_classifier_grows_without_disturbing_what_it_has() -> None:
    backbone = model()
    learner = learner_of(backbone, dataclasses.replace(CONFIG, tune="both"))
    learner.make_room(3)
    few = batch_of(backbone, 0, dtype=torch.float32)
    three = dataclasses.replace(
        few, target=few.target % 3, vectors=few.vectors[:3], rows=torch.arange(3)
    )
    learner.apply(learner.look_ahead(three))
    before = [learner.shifts.clone(), *(m.clone() for m in learner.optimiser.moments["classifier"])]
    logits = learner.tuned_logits(few.tokens, few.vectors[:3], torch.arange(3))
    learner.make_room(LABELS)
    learner.make_room(2)  # there is room already
    after = [learner.shifts, *learner.optimiser.moments["classifier"]]
    for was, now in zip(before, after, strict=True):
        assert was.any()
        assert torch.equal(now[:3], was)
        assert now.shape == (LABELS, backbone.spec.dim)
        assert not now[3:].any()
    assert torch.equal(learner.tuned_logits(few.tokens, few.vectors[:3], torch.arange(3)), logits)
    learner.apply(learner.look_ahead(few))
    assert learner.shifts[3:].any()


def test_a_label_without_a_row_keeps_its_own_embedding() -> None:
    backbone = model()
    learner = learner_of(backbone, dataclasses.replace(CONFIG, tune="classifier"))
    learner.make_room(LABELS)
    batch = batch_of(backbone, 0, dtype=torch.float32)
    learner.apply(learner.look_ahead(batch))
    rows = torch.tensor([0, -1, 2, 77, -1])  # 77: registered, and not yet given room
    logits = learner.tuned_logits(batch.tokens, batch.vectors, rows)
    moved = learner.tuned_logits(batch.tokens, batch.vectors, batch.rows)
    untouched = learner_of(backbone).tuned_logits(batch.tokens, batch.vectors, batch.rows)
    torch.testing.assert_close(logits[:, [1, 3, 4]], untouched[:, [1, 3, 4]])
    assert torch.equal(logits[:, [0, 2]], moved[:, [0, 2]])
    assert not torch.allclose(moved, untouched)


def test_a_forgotten_row_goes_and_the_others_close_up() -> None:
    backbone = model()
    learner = learner_of(backbone, dataclasses.replace(CONFIG, tune="both"))
    learner.make_room(LABELS)
    learner.apply(learner.look_ahead(batch_of(backbone, 0, dtype=torch.float32)))
    before = [learner.shifts.clone(), *(m.clone() for m in learner.optimiser.moments["classifier"])]
    learner.drop_row(1)
    after = [learner.shifts, *learner.optimiser.moments["classifier"]]
    for was, now in zip(before, after, strict=True):
        assert torch.equal(now, was[[0, 2, 3, 4]])
    plain = learner_of(backbone)
    plain.drop_row(1)  # nothing to forget
    assert plain.shifts.shape == (0, backbone.spec.dim)


def test_other_begins_five_logits_below() -> None:
    learner = learner_of(model())
    learner.begin(12.5)
    assert learner.other_logit.item() == pytest.approx(7.5)


# Offline


class Noting(AdamW):
    """An optimiser that only notes the learning rates."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def step(self, parameters: Any, gradients: Any, lr: float) -> None:
        self.rates.append(lr)


@pytest.mark.parametrize(("size", "highest"), [(2048, 6e-4), (512, 1.5e-4), (3, 1e-6)])
def test_offline_rates_follow_torchs_cosine_down_to_the_least(size: int, highest: float) -> None:
    """`6e-4 * size / 2048`, never less than where the cosine ends."""
    learner, noting, steps = learner_of(model(), LearnerConfig()), Noting(), 20
    for number in range(steps):
        offline_step(learner, {}, noting, number / steps, size)
    some = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=highest)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(some, T_max=steps, eta_min=1e-6)
    expected = []
    for _ in range(steps):
        expected.append(cosine.get_last_lr()[0])
        some.step()
        cosine.step()
    assert noting.rates == pytest.approx(expected, rel=1e-9)


def test_an_offline_run_leaves_the_online_optimiser_alone() -> None:
    learner = learner_of(model())
    batch = batch_of(model(), 0, dtype=torch.float32)
    learner.apply(learner.look_ahead(batch))
    before = {name: value.clone() for name, value in learner.state().items()}
    fresh = AdamW(learner.trainable(), 0.05)
    offline_step(learner, learner.look_ahead(batch).gradients, fresh, 0.0, 64)
    assert {name.split(".")[0] for name in changed(before, learner.state())} == {"weights"}
    assert fresh.steps == 1
    assert learner.optimiser.steps == 1


def test_the_papers_settings() -> None:
    config = LearnerConfig()
    assert config.lr == pytest.approx(6e-4 * 32 / 2048)
    assert (config.batch, config.weight_decay, config.beta) == (32, 0.05, 0.1)
    assert (config.offline_batch, config.offline_lr, config.offline_least_lr) == (2048, 6e-4, 1e-6)
    assert config.tune == "block"
    # Where the default is not the paper's.
    assert (config.scale, config.eager) == (35, 3)


def test_the_first_surprises_of_a_label_are_learned_eagerly() -> None:
    learner = learner_of(model(), dataclasses.replace(CONFIG, eager=3.0))
    rates = [learner.rate(learned) / CONFIG.lr for learned in (0, 3, 9, 300)]
    assert rates == pytest.approx([4.0, 2.5, 1.3, 1.0003])
    plain = learner_of(model(), dataclasses.replace(CONFIG, eager=0.0))
    assert plain.rate(0) == plain.rate(7) == CONFIG.lr  # as in the paper


def test_a_longer_step_is_a_larger_rate() -> None:
    batch = batch_of(model(), 0, dtype=torch.float32)
    told, set_so = (learner_of(model(), dataclasses.replace(CONFIG, lr=lr)) for lr in (1e-3, 3e-3))
    told.apply(told.look_ahead(batch), 3e-3)
    set_so.apply(set_so.look_ahead(batch))
    assert changed(told.state(), set_so.state()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"batch": 1.5},
        {"batch": "32"},
        {"offline_batch": 0},
        {"tune": "everything"},
        *({item: x} for item in ("eager", "imprint") for x in (-1.0, math.nan, math.inf)),
        *({item: x} for item in ("lr", "beta", "scale") for x in ("1e-3", math.nan)),
    ],
)
def test_settings_that_cannot_be_learned_with_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LearnerConfig(**wrong)


# Saving


@pytest.mark.parametrize("tune", ["block", "classifier", "both"])
def test_a_restored_learner_continues_bit_for_bit(tune: Any) -> None:
    backbone = model()
    config = dataclasses.replace(CONFIG, tune=tune)
    living = learner_of(backbone, config)
    living.make_room(LABELS)
    living.begin(1.0)
    for seed in range(3):
        living.apply(living.look_ahead(batch_of(backbone, seed, dtype=torch.float32)))
    saved = {name: value.clone() for name, value in living.state().items()}
    again = learner_of(backbone, config)
    again.restore(saved)
    for learner in (living, again):
        for seed in range(3, 6):
            learner.apply(learner.look_ahead(batch_of(backbone, seed, dtype=torch.float32)))
    assert changed(living.state(), again.state()) == []
    assert changed(saved, again.state()) != []
    assert int(again.state()["steps"]) == 6


def test_the_state_of_another_model_or_setting_is_refused_and_changes_nothing() -> None:
    backbone = model()
    learner = learner_of(backbone)
    before = {name: value.clone() for name, value in learner.state().items()}
    both = learner_of(backbone, dataclasses.replace(CONFIG, tune="both"))
    both.make_room(LABELS)
    foreign = {
        "more blocks": learner_of(model(blocks=2)).state(),
        "another width": learner_of(model(hidden_size=16)).state(),
        "a trainable classifier": both.state(),
        "one too few": dict(list(before.items())[1:]),
    }
    for state in foreign.values():
        state = {name: torch.ones_like(value) for name, value in state.items()}
        with pytest.raises(CheckpointError, match="another model or setting"):
            learner.restore(state)
        assert changed(before, learner.state()) == []
