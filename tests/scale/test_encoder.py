"""A second encoder under the labels of the first: what trains, and how."""

from __future__ import annotations

from dataclasses import replace

import torch
from tests import helpers

from anytimecl.scale.encoder import LAYER, EncoderStream, JointLearner, LayerRates, join
from anytimecl.settings import Settings
from anytimecl.step import Update

CLIP = helpers.model()
DINO = join(helpers.model("dinov2", seed=3), CLIP)


def vectors() -> torch.Tensor:
    return CLIP.embed_labels(helpers.LABELS)


def stream(rates: LayerRates | None = None, count: int = 24) -> EncoderStream:
    lessons = helpers.lessons(count)
    tokens = DINO.encode([image for image, _ in lessons])
    labels = [label for _, label in lessons]
    settings = Settings(learner=helpers.FAST)
    known = dict(zip(helpers.LABELS, vectors(), strict=True))
    made = EncoderStream(DINO.spec, DINO.tail, settings, tokens, labels, known, rates=rates)
    made.learn(range(count))
    return made


def test_join_keeps_angles_and_the_label_space() -> None:
    layer = DINO.tail[LAYER]
    assert layer.shape == (CLIP.spec.dim, DINO.spec.tail.width)
    short = min(layer.shape)
    product = layer.T @ layer if layer.shape[0] >= layer.shape[1] else layer @ layer.T
    torch.testing.assert_close(product, torch.eye(short), atol=1e-5, rtol=0)
    assert DINO.spec.dim == CLIP.spec.dim
    new = ["lynx"]  # a label that another test embedded among others may differ in its last bits
    assert torch.equal(DINO.embed_labels(new), CLIP.embed_labels(new))
    assert DINO.spec.fingerprint != helpers.model("dinov2", seed=3).spec.fingerprint


def test_block_layer_and_other_learn_and_nothing_else() -> None:
    learner = stream().learner
    moved = {n for n, p in learner.params.items() if not torch.equal(p, learner.original[n])}
    assert LAYER in moved
    assert any(name.startswith("layers.") for name in moved)
    assert all(name == LAYER or name.startswith("layers.") for name in moved)


def test_the_layer_steps_as_adamw_does_at_its_own_falling_rate() -> None:
    rates = LayerRates(first=1e-2, half=3.0)
    learner = JointLearner(DINO.spec, DINO.tail, helpers.FAST, rates)
    expected = learner.params[LAYER].clone().requires_grad_()
    slow = torch.optim.AdamW([expected], lr=1.0, weight_decay=helpers.FAST.weight_decay)
    noise = torch.Generator().manual_seed(0)
    for count in range(1, 6):
        gradient = torch.randn(expected.shape, generator=noise)
        gradients = {LAYER: gradient, "other": torch.tensor(0.1)}
        learner.update(gradients, torch.tensor(1e-3), torch.tensor(float(count)))
        slow.param_groups[0]["lr"] = 1e-2 * 3 / (3 + count)
        expected.grad = gradient.clone()
        slow.step()
    torch.testing.assert_close(learner.params[LAYER], expected.detach())


def test_block_and_other_step_at_the_rate_that_they_are_told() -> None:
    told, set_so = (
        JointLearner(DINO.spec, DINO.tail, replace(helpers.FAST, lr=lr)) for lr in (1e-3, 3e-3)
    )
    noise = torch.Generator().manual_seed(0)
    found = {n: torch.randn(p.shape, generator=noise) for n, p in told.trainable().items()}
    told.apply(Update(torch.zeros(1, 1), torch.zeros(1, 1), found), 3e-3)
    set_so.apply(Update(torch.zeros(1, 1), torch.zeros(1, 1), found))
    assert helpers.changed(told.state(), set_so.state()) == []
    assert not torch.equal(told.other, torch.zeros(()))


def test_it_learns_what_it_is_shown() -> None:
    made = stream(count=32)
    images = DINO.encode([image for image, _ in helpers.lessons(32)])
    rows = torch.arange(len(helpers.LABELS))
    with torch.no_grad():
        before = made.learner.original_logits(images, vectors()).softmax(1)
        after = made.learner.tuned_logits(images, vectors(), rows).softmax(1)
    own = torch.tensor([helpers.LABELS.index(label) for _, label in helpers.lessons(32)])
    place = torch.arange(32)
    assert after[place, own].mean() > before[place, own].mean() + 0.05


def test_state_returns() -> None:
    made = stream()
    again = JointLearner(DINO.spec, DINO.tail, replace(helpers.FAST))
    again.restore(made.learner.state())
    assert torch.equal(again.params[LAYER], made.learner.params[LAYER])
