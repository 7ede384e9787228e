"""The paper's setting beside an independent slow reference, and what it is made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.codec import tiny_tail
from tests.lab import reference
from tests.lab.reference import Reference
from tests.lab.worlds import CLASSES, NOVEL, asked, tokens_of, world

from anytimecl.blend import LabelRecord, Opinions, blend
from anytimecl.settings import LearnerConfig, Settings
from anytimecl.step import Batch
from anytimecl.tail import look
from anytimecl_lab.methods import METHODS
from anytimecl_lab.methods._paper import (
    SCALE,
    PaperLearner,
    PaperStream,
    if_all_seen,
    paper_config,
    scaled,
)
from anytimecl_lab.methods.offline import PaperOffline
from anytimecl_lab.methods.online import Online
from anytimecl_lab.methods.probe import EMBEDDING, LinearProbe
from anytimecl_lab.results import read_lines
from anytimecl_lab.run import LEFT
from anytimecl_lab.scenarios import SEEN

QUICK = LearnerConfig(batch=8, lr=2e-3)
EACH = 12


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    """Methods are run as the lab runs them."""
    with torch.no_grad():
        yield


def test_the_papers_setting_is_that_of_the_slow_reference() -> None:
    """After 1, 12 and 48 examples: the same answers, estimates and bias, to rounding."""
    given = world(EACH)
    tokens = tokens_of([n for n in range(len(CLASSES)) for _ in range(EACH)], seed=1)
    order = np.random.default_rng(3).permutation(len(tokens)).tolist()
    settings = Settings(seed=4, learner=paper_config(QUICK), blend="ocw")
    stream = PaperStream(
        scaled(given.spec),
        given.tail,
        settings,
        look(tokens, 1e-5),
        given.labels,
        given.vectors,
    )
    slow = Reference(
        given.tail, 2, tiny_tail.HEADS, 1e-5, "quick_gelu", given.vectors, seed=4, batch=8, lr=2e-3
    )
    names = [*CLASSES, *NOVEL]
    questions = tokens_of([0, 1, 2, 3, 0, 1, 2, 3], seed=2)
    done = 0
    for count in (1, 12, 48):
        stream.learn(order[done:count])
        for i in order[done:count]:
            with torch.enable_grad():
                slow.learn(tokens[i], given.labels[i])
        done = count
        opinions = stream.opinions(look(questions, 1e-5), names, given.label_vectors(names))
        torch.testing.assert_close(
            blend("ocw", opinions), slow.predict(questions, names), rtol=0, atol=2e-3
        )
        for name in CLASSES:
            record = stream.estimates.of(name)
            assert slow.estimates(name) == pytest.approx((record.tuned, record.original))
        assert float(stream.learner.other_logit) == pytest.approx(float(slow.other), abs=1e-4)
    assert float(slow.other) != 0


def test_the_lab_runs_as_the_slow_reference_does(
    data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From images to accuracies, all seven stages, two seeds; a second call has nothing to do."""
    out = tmp_path / "reference.jsonl"
    words = [str(data), str(out), "--tasks=pets,places", f"--backbone={model}"]
    with torch.enable_grad():
        assert reference.main([*words, "--minutes=0"]) == LEFT
        assert len(read_lines(out)) == 1
        assert reference.main(words) == 0
    lines = read_lines(out)
    assert sorted((line["subject"], line["seed"]) for line in lines) == [
        (task, seed) for task in ("pets", "places") for seed in (0, 1)
    ]
    for line in lines:
        assert len(line["stages"]) == 7
        for _, slow, fast in line["stages"]:
            assert slow == pytest.approx(fast, abs=1e-3)
    before = out.read_text()
    capsys.readouterr()
    assert reference.main(words) == 0
    assert out.read_text() == before
    assert "Largest difference: 0.00. Left: 0 of 4." in capsys.readouterr().out


def test_online_in_the_papers_setting_has_scale_100_and_other_from_zero() -> None:
    method = Online(world(), paper=True)
    learner = method.stream.learner
    assert isinstance(learner, PaperLearner)
    assert method.default == "ocw"
    assert learner.spec.logit_scale == SCALE
    assert learner.config.scale is None
    assert learner.rate(0) == learner.config.lr
    method.learn([0])
    # A bias in logits moves by a learning rate at most, not by a hundred of them.
    assert 0 < abs(float(learner.other_logit)) <= 1.01 * learner.config.lr
    plain = Online(world())
    plain.learn([0])
    assert abs(float(plain.stream.learner.other_logit)) > 1e-3


def test_a_tuned_classifier_is_a_free_linear_layer() -> None:
    """Its rows grow beyond unit length, and its gradient is that of the plain layer."""
    given = world()
    config = replace(paper_config(QUICK), tune="classifier")
    learner = PaperLearner(scaled(given.spec), given.tail, config)
    learner.make_room(len(CLASSES))
    vectors = given.label_vectors(CLASSES)
    target = torch.tensor([0, 12 // EACH, 2])
    batch = Batch(given.take([0, 12, 24]), target, vectors, torch.arange(len(CLASSES)))
    update = learner.look_ahead(batch)
    weight = vectors.clone().requires_grad_()
    with torch.enable_grad():
        images = given.image_vectors(given.tail, batch.tokens)
        logits = torch.cat([SCALE * images @ weight.T, torch.zeros(3, 1)], 1)
        without = logits.scatter(1, target[:, None], -torch.inf)
        loss = F.cross_entropy(logits, target) + 0.1 * without.logsumexp(1).mean()
        (plain,) = torch.autograd.grad(loss, weight)
    torch.testing.assert_close(update.gradients["classifier"], plain, rtol=1e-4, atol=1e-4)
    learner.shifts[0] = vectors[0]
    rows = torch.arange(len(CLASSES))
    doubled = learner.tuned_logits(batch.tokens, vectors, rows)[:, 0]
    once = learner.original_logits(batch.tokens, vectors)[:, 0]
    torch.testing.assert_close(doubled, 2 * once, rtol=1e-4, atol=1e-3)


def test_offline_as_in_the_paper_scores_before_the_update() -> None:
    method = PaperOffline(world(), epochs=2, batch=16)
    assert (method.default, method.learner.spec.logit_scale) == ("ocw", SCALE)
    plain = METHODS["offline-paper"](world())
    assert isinstance(plain, PaperOffline)
    assert (plain.schedule.epochs, plain.schedule.batch, plain.schedule.lr) == (10, 2048, 6e-4)
    assert not plain.schedule.per_example
    method.learn(list(range(0, 48, 2)))
    record = method.model.estimates.of("ant")
    assert record.seen == 6
    assert record.tuned == record.original  # nothing had been tuned yet
    before = method.learner.params
    moved = [n for n, value in before.items() if not torch.equal(value, method.world.tail[n])]
    assert moved
    method.learn(list(range(1, 48, 2)))
    assert method.model.estimates.of("ant").seen == 12
    read = method.readings(asked()[0], CLASSES)
    assert torch.equal(method.predict(asked()[0], CLASSES), read["ocw"])
    assert not torch.equal(read["tuned"], read["original"])


def test_the_simple_rule_takes_the_tuned_model_where_all_candidates_are_seen() -> None:
    tuned, original = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.2, 0.8]])
    nobody = torch.zeros(1)
    seen, unseen = LabelRecord(seen=1), LabelRecord()
    assert if_all_seen(Opinions(tuned, original, nobody, [seen, seen])) is tuned
    assert if_all_seen(Opinions(tuned, original, nobody, [seen, unseen])) is original
    assert SEEN in Online(world(), paper=True).readings(asked()[0], CLASSES)


def test_the_tuned_model_alone_speaks_of_labels_it_never_met() -> None:
    method = Online(world(), paper=True)
    method.stream.learner.params["layers.2.mlp.fc2.bias"] += 1.0
    method.learn([0, 12])
    read = method.readings(asked()[0], NOVEL)
    assert not torch.equal(read["tuned"], read["original"])
    assert torch.equal(read["ocw"], read["original"])


def test_aim_mixes_probabilities_and_aim_emb_mixes_embeddings() -> None:
    given = world()
    method = LinearProbe(given)
    method.learn(list(range(24)))  # ants and bees
    tokens, _ = asked()
    names = [*CLASSES, *NOVEL]
    read = method.readings(tokens, names)
    images, vectors = given.image_vectors(given.tail, tokens), given.label_vectors(names)
    original = (given.spec.logit_scale * images @ vectors.T).softmax(1)
    mass = original[:, :2].sum(1)
    likeliest = method._scores(images).argmax(1)
    for row, label in enumerate(likeliest.tolist()):
        mixed = mass[row] * vectors[label] + (1 - mass[row]) * images[row]
        told = (given.spec.logit_scale * (mixed / mixed.norm()) @ vectors.T).softmax(0)
        torch.testing.assert_close(read[EMBEDDING][row], told, rtol=1e-4, atol=1e-5)
    assert torch.equal(method.predict(tokens, names), read[""])
