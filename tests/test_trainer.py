"""The one way in which an example changes a trainer, and that a journal repeats it exactly."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import (
    FAST,
    LABELS,
    TEXTS,
    changed,
    lesson,
    lessons,
    measured,
    model,
    picture,
    settings,
    taught,
)
from torch import Tensor

from anytimecl import consolidation
from anytimecl.acceleration import OnlineLearner
from anytimecl.backbone import Backbone
from anytimecl.backbone.text import LabelCache
from anytimecl.blend import BLENDS, Estimates
from anytimecl.classifier import AnytimeClassifier
from anytimecl.codec import make_codec
from anytimecl.errors import CheckpointError
from anytimecl.imprint import TEXT
from anytimecl.journaled import JournaledTrainer
from anytimecl.lock import TurnLock
from anytimecl.loss import anytime_loss
from anytimecl.memory import RamMemory, StoreWarning
from anytimecl.sampling import SAMPLERS, ClassBalanced
from anytimecl.settings import Settings
from anytimecl.step import Batch, Update
from anytimecl.tail import embed, images_of


def alone(label: str) -> Tensor:
    """Its vector [1, dim], worked out with no other beside it, which rounds otherwise."""
    return dataclasses.replace(model(), label_cache=LabelCache()).embed_labels([label])


class Plain:
    """The method, line by line: a list of examples, a dictionary of labels, no short cuts."""

    def __init__(self, chosen: Settings) -> None:
        self.backbone, self.settings = model(), chosen
        self.learner = OnlineLearner(self.backbone.spec, self.backbone.tail, chosen.learner)
        self.estimates, self.sampler = Estimates(chosen.eta), ClassBalanced()
        self.examples: dict[int, tuple[Tensor, str]] = {}
        self.labels: list[str] = []

    def learn(self, example: int, tokens: Tensor, label: str) -> None:
        random = Random(f"{self.settings.seed}:{example}")
        drawn = self.sampler.draw(self.settings.learner.batch - 1, random)
        if label not in self.labels:
            self.labels.append(label)
        batch = [(tokens, label), *(self.examples[i] for i in drawn)]
        vectors = torch.cat([alone(each) for each in self.labels])
        stacked = torch.stack([each for each, _ in batch])
        target = torch.tensor([self.labels.index(name) for _, name in batch])
        with torch.no_grad():
            original = self.learner.original_logits(stacked[:1], vectors)[0]
            if not self.examples:
                self.learner.begin(original[target[0]].item())
            rows = torch.arange(len(self.labels))
            tuned = self.learner.tuned_logits(stacked[:1], vectors, rows)[0]
            update = self.learner.look_ahead(Batch(stacked, target, vectors, rows))
            learned = sum(name == label for _, name in self.examples.values())
            config = self.settings.learner
            surprise = config.eager if tuned.argmax() != target[0] else 0
            self.learner.apply(update, config.lr * (1 + surprise / (1 + learned**2 / 9)))
        self.estimates.add(
            label,
            tuned=bool(tuned.argmax() == target[0]),
            original=bool(original.argmax() == target[0]),
        )
        self.sampler.add(example, label)
        self.examples[example] = (tokens, label)


def test_a_trainer_is_the_method_line_by_line() -> None:
    chosen = settings(seed=5, eta=0.8)
    plain, classifier = Plain(chosen), AnytimeClassifier.open(model=model(), settings=chosen)
    for number in range(25):
        image, label = lesson(number)
        learned = classifier.learn_one(image, label)
        plain.learn(learned.id, model().encode([image])[0], label)
    trainer = classifier._trainer
    assert changed(plain.learner.state(), trainer.learner.state()) == []
    assert trainer.model.estimates.state() == plain.estimates.state()
    assert trainer.labels == plain.labels
    assert_consistent(trainer)
    first = plain.learner.original
    assert changed(dict(first), {n: plain.learner.params[n] for n in first}) != []


@pytest.mark.parametrize("blend", BLENDS)
def test_it_reports_what_would_have_been_answered_before(blend: str) -> None:
    """Over the labels seen, the new example's own included."""
    classifier, rights = taught([], settings=settings(blend=blend)), []
    for number in range(30):
        image, label = lesson(number)
        labels = list(dict.fromkeys([*classifier.labels, label]))
        before = classifier.predict(image, labels, threshold=1.0)
        learned = classifier.learn_one(image, label)
        assert learned.right == (before.label == label), number
        for values, right in ((before.tuned, learned.tuned), (before.original, learned.original)):
            if values:  # nothing is said of the tuned model where no label was ever learned
                assert right == (max(values, key=values.__getitem__) == label), number
        rights.append(learned.right)
    assert 0 < sum(rights) < 30


def test_seen_labels_that_are_no_candidates_have_no_part_in_what_would_be_answered() -> None:
    """Their examples do not count in the gate, as they do not when one asks."""
    classifier = taught(range(24))
    some = classifier.labels[:2]
    for number in range(24, 48):
        image, label = lesson(number)
        candidates = list(dict.fromkeys([*some, label, "a label that nobody taught"]))
        before = classifier.predict(image, candidates, threshold=1.0)
        learned = classifier.learn_one(image, label, candidates=candidates)
        assert learned.right == (before.label == label), number


def test_the_first_example_places_other_below_its_label() -> None:
    classifier = AnytimeClassifier.open(model=model(), settings=settings())
    image, label = lesson(0)
    seen = []
    keep = OnlineLearner.look_ahead

    def look(self: OnlineLearner, batch: Batch) -> Update:
        seen.append(self.other_logit.item())
        return keep(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OnlineLearner, "look_ahead", look)
        classifier.learn_one(image, label)
        classifier.learn_one(*lesson(1))
    tokens, vectors = model().encode([image]), model().embed_labels([label])
    logit = classifier._trainer.learner.original_logits(tokens, vectors).item()
    assert seen[0] == pytest.approx(logit - 5, abs=1e-5)
    assert seen[1] == pytest.approx(seen[0], abs=0.1)  # learned from then on, not placed again


class Counting(ClassBalanced):
    """A sampler with a state of its own, derived from one that has none."""

    drawn = 0

    def draw(self, count: int, random: Random) -> list[int]:
        self.drawn += 1
        return super().draw(count, random)

    def state(self) -> dict[str, Any]:
        return super().state() | {"drawn": self.drawn}


def test_a_step_that_failed_after_its_draw_is_repeated_with_the_same_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = settings(sampler=Counting())
    classifier, straight = taught(range(6), settings=chosen), taught(range(8), settings=chosen)
    with monkeypatch.context() as patch:
        patch.setattr(OnlineLearner, "look_ahead", interrupted)
        with pytest.raises(KeyboardInterrupt):
            classifier.learn_one(*lesson(6))
    classifier.learn_one(*lesson(7))
    assert_same(classifier._trainer, straight._trainer)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


# Candidates


def test_each_example_is_told_apart_from_its_own_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    classifier = AnytimeClassifier.open(model=model(), settings=settings())
    given: dict[int, tuple[str, list[str] | None]] = {}
    for number, (label, candidates) in enumerate(
        [
            ("cat", ["cat", "dog"]),
            ("dog", None),
            ("tabby cat", ["tabby cat"]),
            ("cat", ["white shark", "cat", "golden retriever"]),
        ]
    ):
        learned = classifier.learn_one(picture(number), label, candidates=candidates)
        given[learned.id] = (label, candidates)

    batches: list[Batch] = []
    keep = OnlineLearner.look_ahead

    def look(self: OnlineLearner, batch: Batch) -> Update:
        batches.append(batch)
        return keep(self, batch)

    monkeypatch.setattr(OnlineLearner, "look_ahead", look)
    monkeypatch.setattr(ClassBalanced, "draw", lambda self, count, random: sorted(given))
    classifier.learn_one(picture(9), "great white shark", candidates=["great white shark", "dog"])
    (batch,) = batches
    known = ["cat", "dog", "tabby cat", "great white shark"]
    extra = ["golden retriever", "white shark"]  # never seen: sorted, behind the others
    columns = known + extra
    assert batch.rows.tolist() == [0, 1, 2, 3, -1, -1]
    torch.testing.assert_close(batch.vectors, model().embed_labels(columns))
    rows = [("great white shark", ["great white shark", "dog"]), *given.values()]
    assert batch.target.tolist() == [columns.index(label) for label, _ in rows]
    assert batch.mask is not None
    for allowed, (_, candidates) in zip((batch.mask == 0).tolist(), rows, strict=True):
        names = {name for name, each in zip(columns, allowed, strict=True) if each}
        assert names == set(known if candidates is None else candidates)


def test_without_candidates_nothing_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = taught(range(6))
    batches: list[Batch] = []
    keep = OnlineLearner.look_ahead
    monkeypatch.setattr(
        OnlineLearner, "look_ahead", lambda self, batch: batches.append(batch) or keep(self, batch)
    )
    classifier.learn_one(picture(7), "golden retriever")
    assert batches[0].mask is None
    torch.testing.assert_close(batches[0].vectors, model().embed_labels(classifier.labels))


# Offline


@pytest.mark.parametrize("chunk", [256, 3])
def test_consolidation_is_plain_training_over_the_memory(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of 8 over 20 examples, three epochs: torch's AdamW under torch's cosine."""
    monkeypatch.setattr(consolidation, "CHUNK", chunk)
    config = dataclasses.replace(FAST, offline_batch=8, offline_lr=2e-3)
    classifier = taught(range(20), settings=settings(learner=config))
    # One example has candidates, so that chunks differ in their number of columns.
    classifier.learn_one(picture(20), "cat", candidates=["cat", "golden retriever"])
    learner, memory = classifier._trainer.learner, classifier.memory
    tuned = {n: torch.nn.Parameter(v.clone()) for n, v in learner.trainable().items()}
    fixed = {name: value.clone() for name, value in learner.params.items()}
    done: list[tuple[int, int]] = []
    classifier.consolidate(3, progress=lambda *each: done.append(each))

    ids = [example for example, _ in memory.ids()]
    labels = [*memory.labels(), "golden retriever"]
    vectors = model().embed_labels(labels)
    order = Random(memory.last)  # the number of the event is the seed
    optimiser = torch.optim.AdamW(tuned.values(), lr=2e-3, weight_decay=config.weight_decay)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=9, eta_min=1e-6)
    for _ in range(3):
        shuffled = order.sample(ids, len(ids))
        for batch in (shuffled[:8], shuffled[8:16], shuffled[16:]):
            examples = [memory.example(i) for i in batch]
            records = [example.record for example in examples]
            tokens = make_codec("tokens-fp32", model().spec, model().tail).decode(records)
            features = F.normalize(embed(fixed | tuned, model().spec.tail, tokens), dim=-1)
            logits = FAST.scale * features @ vectors.T
            allowed = torch.tensor(
                [[name in (e.candidates or labels[:-1]) for name in labels] for e in examples]
            )
            loss = anytime_loss(
                logits.masked_fill(~allowed, -torch.inf),
                FAST.scale * tuned["other"],
                torch.tensor([labels.index(e.label) for e in examples]),
                config.beta,
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            cosine.step()
    assert done == [(number, 9) for number in range(1, 10)]
    for name, value in learner.trainable().items():
        if not name.endswith("k_proj.bias"):
            moved = (value - fixed.get(name, torch.zeros(()))).abs()
            off = (value - tuned[name].data).abs()
            assert moved.max() > 1e-3, name
            # Where a gradient is nearly zero AdamW makes a step of its rounding error.
            assert off.quantile(0.995) < 2e-5, name


def test_consolidating_nothing_changes_nothing() -> None:
    classifier = taught([])
    before = {n: v.clone() for n, v in classifier._trainer.learner.state().items()}
    classifier.consolidate(2)
    assert changed(before, classifier._trainer.learner.state()) == []
    classifier.learn_one(*lesson(0))


# Forgetting


def assert_counted(trainer: JournaledTrainer) -> None:
    """Statistics are those of what is stored, in whole numbers, and of nothing else."""
    dim, settled = model().spec.dim, trainer.model.gaussian.step
    for part, first in (("now", trainer.memory.last + 1), ("settled", settled)):
        counts = torch.zeros(len(trainer.labels), dtype=torch.long)
        sums = torch.zeros(len(trainer.labels), dim, dtype=torch.long)
        moment = torch.zeros(dim, dim, dtype=torch.long)
        for example, label in trainer.memory.ids():
            if example >= first:
                continue
            tokens = trainer.codec.decode([trainer.memory.example(example).record])
            image = F.normalize(embed(model().tail, model().spec.tail, tokens), dim=-1)[0]
            whole = (image.double() * 2**16).round().long()
            counts[trainer.rows[label]] += 1
            sums[trainer.rows[label]] += whole
            moment += whole.outer(whole)
        found = getattr(trainer.model.gaussian, part)
        assert torch.equal(found.counts, counts), part
        assert torch.equal(found.sums, sums), part
        assert torch.equal(found.moment, moment), part


def assert_imprinted(trainer: JournaledTrainer) -> None:
    """Labels go with the images of the examples in the memory, and with no others."""
    prior, shifts = trainer.model.gaussian.prior, trainer.learner.shifts
    if trainer.model.imprint is None:
        assert len(shifts) == 0
        return
    assert prior is not None
    known = trainer.model.gaussian.now
    for row, (count, total) in enumerate(zip(known.counts, known.sums, strict=True)):
        away = (total.double() / 2**16 - count * prior.mean) / (count + TEXT)
        torch.testing.assert_close(shifts[row].double(), away, atol=1e-6, rtol=1e-5)
    assert not shifts[known.rows :].any()


def assert_consistent(trainer: JournaledTrainer) -> None:
    """Labels, rows, vectors and counts say the same, and agree with the memory."""
    left = trainer.memory.labels()
    assert set(trainer.labels) == left.keys()
    assert trainer.rows == {label: row for row, label in enumerate(trainer.labels)}
    assert {label: trainer.examples.count(label) for label in trainer.labels} == left
    known = trainer.model.vectors
    torch.testing.assert_close(known, model().embed_labels(trainer.labels))
    if trainer.settings.learner.tune == "block":
        assert_imprinted(trainer)
    else:
        assert len(trainer.learner.shifts) == len(left)
    assert set(trainer.model.estimates.state()["labels"]) <= left.keys()
    ids = dict(trainer.memory.ids())
    assert trainer.model.kept <= ids.keys()
    assert {seen.example: seen.label for seen in trainer.model.evidence}.items() <= ids.items()
    assert_counted(trainer)


@pytest.mark.parametrize("tune", ["block", "both"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_forgotten_label_is_no_rival_any_more(tune: Any, sampler: str) -> None:
    chosen = settings(sampler=sampler, learner=dataclasses.replace(FAST, tune=tune))
    classifier = taught(range(20), settings=chosen)
    trainer = classifier._trainer
    assert_consistent(trainer)
    row = trainer.rows["dog"]
    shifts = trainer.learner.shifts.clone()
    classifier.forget(label="dog")
    assert "dog" not in trainer.rows
    assert_consistent(trainer)
    if tune == "both":
        left = [each for each in range(len(shifts)) if each != row]
        assert torch.equal(trainer.learner.shifts, shifts[left])
    for number in range(20, 40):
        image, label = lesson(number)
        if label != "dog":
            classifier.learn_one(image, label)
    assert_consistent(trainer)
    classifier.learn_one(picture(3), "dog")
    assert trainer.labels[-1] == "dog"
    assert trainer.model.estimates.of("dog").seen == 1
    assert_consistent(trainer)


def test_a_label_with_examples_left_stays_as_it_was() -> None:
    classifier = taught(range(20))
    trainer = classifier._trainer
    before, record = list(trainer.labels), dataclasses.replace(trainer.model.estimates.of("dog"))
    some = [example for example, label in classifier.memory.ids() if label == "dog"][:-1]
    for example in some:
        classifier.forget(example_id=example)
    assert trainer.labels == before
    assert trainer.model.estimates.of("dog") == record
    assert_consistent(trainer)


def test_how_far_a_step_goes_depends_on_what_was_learned_not_on_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    classifier = taught(range(20))
    learner = classifier._trainer.learner
    learned = {label: classifier._trainer.model.estimates.of(label).seen for label in LABELS}
    for example in [i for i, label in classifier.memory.ids() if label == "dog"][:-1]:
        classifier.forget(example_id=example)
    told, expected, apply = [], [], learner.apply

    def noted(update: Update, rate: float | None, count: Tensor | None) -> None:
        told.append(rate)
        apply(update, rate, count)

    monkeypatch.setattr(learner, "apply", noted)
    for image, label in lessons(40, start=20):
        knew = classifier.learn_one(image, label).tuned
        expected.append(None if knew else learner.rate(learned[label]))
        learned[label] += 1
    assert told == expected
    assert 0 < told.count(None) < 40


def test_what_a_cap_evicts_is_never_drawn_again() -> None:
    """With warnings as errors: a draw of what is gone would warn."""
    classifier = taught(range(60), cap=7)
    trainer = classifier._trainer
    assert len(classifier) == 7
    assert_consistent(trainer)
    drawn = {i for n in range(99) for i in trainer.sampler.draw(5, Random(n))}
    assert drawn == {example for example, _ in classifier.memory.ids()}


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("codec", ["attention-pca", "tokens-fp32", "image"])
@pytest.mark.parametrize("threads", [1, 3])
def test_an_image_learned_beside_others_is_that_of_its_record_alone(
    kind: str, codec: str, threads: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        backbone = model(kind, blocks=int(kind == "clip"))
        classifier = taught(range(12), model=backbone, settings=settings(codec=codec))
        trainer = classifier._trainer
        for seen in trainer.model.evidence:
            [stored] = trainer.memory.stored([seen.example])
            decoded = trainer.codec.decode([stored.record])
            with torch.no_grad():
                alone = images_of(backbone.tail, backbone.spec.tail, decoded)[0]
            assert torch.equal(seen.original, alone)
            assert torch.equal(seen.original, trainer.image(stored.record))
    finally:
        torch.set_num_threads(before)


# Repeating


def fresh(
    memory: RamMemory, chosen: Settings, backbone: Backbone | None = None
) -> JournaledTrainer:
    """A trainer that has seen nothing of a memory yet."""
    codec = make_codec(chosen.codec, model().spec, model().tail)
    return JournaledTrainer(backbone or model(), codec, memory, chosen, TurnLock())


def assert_same(one: JournaledTrainer, two: JournaledTrainer) -> None:
    """The same, bit for bit."""
    first, second = one.checkpoint(), two.checkpoint()
    assert changed(dict(first.tensors), dict(second.tensors)) == []
    assert first.state == second.state
    assert first.event == second.event


LEARNERS = {tune: dataclasses.replace(FAST, tune=tune) for tune in ("block", "classifier", "both")}
LEARNERS["texts"] = TEXTS


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_replayed_journal_gives_the_same_trainer(sampler: str, learner: str) -> None:
    chosen = settings(sampler=sampler, learner=LEARNERS[learner])
    classifier = taught(range(12), settings=chosen, model=measured())
    classifier.consolidate(2)
    for number in range(12, 18):
        classifier.learn_one(*lesson(number))
    classifier.learn_one(picture(18), "dog", candidates=["dog", "great white shark"])
    again = fresh(classifier.memory, chosen, measured())
    done: list[tuple[int, int]] = []
    assert again.replay(lambda *each: done.append(each)) == 20
    assert done[-1] == (20, 19)
    assert_same(classifier._trainer, again)


@pytest.mark.parametrize("learner", ["block", "both", "texts"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_restored_trainer_continues_bit_for_bit_even_after_forgetting(
    sampler: str, learner: str
) -> None:
    chosen = settings(sampler=sampler, learner=LEARNERS[learner])
    classifier = taught(range(20), settings=chosen, model=measured())
    first = next(iter(classifier.memory.ids()))
    classifier.forget(example_id=first[0])  # its label keeps its place in line
    classifier.forget(label="tabby cat")
    classifier.learn_one(picture(20), "tabby cat")
    living = classifier._trainer
    assert_consistent(living)
    assert living.model.kept
    again = fresh(classifier.memory, chosen, measured())
    again.restore(living.checkpoint())
    assert_consistent(again)
    for number in range(21, 30):
        image, label = lesson(number)
        classifier.learn_one(image, label)
    again.replay()
    assert_same(living, again)


@pytest.mark.parametrize("backbone", [model(), measured()])
def test_a_checkpoint_from_before_a_forgetting_does_not_bring_it_back(backbone: Backbone) -> None:
    """As after a crash between the forgetting and the checkpoint that follows it."""
    classifier = taught(range(12), model=backbone)
    saved = classifier._trainer.checkpoint()
    for number in range(12, 16):
        classifier.learn_one(*lesson(number))
    gone = [example for example, label in classifier.memory.ids() if label == "dog"]
    classifier.memory.forget([*gone, 1])
    again = fresh(classifier.memory, settings(), backbone)
    again.restore(saved)
    assert again.model.kept <= dict(classifier.memory.ids()).keys()
    again.replay()
    assert_consistent(again)
    assert (len(again.model.instances.examples) > 0) == (backbone.prior is not None)
    assert again.model.estimates.of("dog").seen == 0
    assert again.event == classifier.memory.last


def test_checkpoints_of_another_model_or_memory_are_refused() -> None:
    classifier = taught(range(5))
    saved = classifier._trainer.checkpoint()
    foreign = dataclasses.replace(saved, fingerprint="0" * 16)
    with pytest.raises(CheckpointError, match="another model"):
        fresh(classifier.memory, settings()).restore(foreign)
    elsewhere = AnytimeClassifier.open(model=model(), settings=settings())
    elsewhere.learn_one(picture(0), "golden retriever")
    with pytest.raises(CheckpointError, match="another memory"):
        fresh(elsewhere.memory, settings()).restore(saved)
    both = settings(learner=dataclasses.replace(FAST, tune="both"))
    with pytest.raises(CheckpointError, match="another model or setting"):
        fresh(classifier.memory, both).restore(saved)


def batch_dependent(texts: Sequence[str]) -> Tensor:
    """A text side that rounds by what stands beside, only more so than any real one does."""
    assert model().text is not None
    vectors = model().text(texts) + 0.01 * (len(texts) - 1)
    return F.normalize(vectors, dim=-1)


def test_what_is_learned_does_not_depend_on_what_was_asked() -> None:
    """Else a reopened trainer, who was asked nothing yet, would learn otherwise."""

    def learned(asking: bool) -> dict[str, Tensor]:
        cache = LabelCache()
        backbone = dataclasses.replace(model(), text=batch_dependent, label_cache=cache)
        classifier = AnytimeClassifier.open(model=backbone, settings=settings())
        for number in range(8):
            if asking:
                classifier.predict(picture(number), LABELS)
            classifier.learn_one(*lesson(number))
        return classifier._trainer.learner.state()

    assert changed(learned(asking=True), learned(asking=False)) == []


def test_restoring_asks_the_text_side_nothing() -> None:
    classifier = taught(range(12))
    silent = dataclasses.replace(model(), text=None, label_cache=LabelCache())
    codec = make_codec("tokens-fp32", model().spec, model().tail)
    again = JournaledTrainer(silent, codec, classifier.memory, settings(), TurnLock())
    again.restore(classifier._trainer.checkpoint())
    assert_same(classifier._trainer, again)


def test_a_checkpoint_is_a_copy() -> None:
    classifier = taught(range(5))
    saved = classifier._trainer.checkpoint()
    tensors = {name: value.clone() for name, value in saved.tensors.items()}
    state = repr(saved.state)
    for number in range(5, 9):
        classifier.learn_one(*lesson(number))
    assert changed(tensors, dict(saved.tensors)) == []
    assert repr(saved.state) == state


def damage(classifier: AnytimeClassifier, *examples: int) -> None:
    """Needs a memory without a cache."""
    for example in examples:
        classifier.memory.db.execute("UPDATE example SET crc = crc + 1 WHERE id = ?", (example,))


def test_damaged_records_are_left_out_with_a_warning_and_learning_goes_on() -> None:
    classifier = taught(range(12), cache_bytes=0)
    damage(classifier, 2, 5, 6)
    with pytest.warns(StoreWarning, match="is damaged"):
        classifier.learn_many(lessons(12, start=12))
    with pytest.warns(StoreWarning, match="is damaged"):
        classifier.consolidate(1)
    again = fresh(classifier.memory, settings())
    with pytest.warns(StoreWarning, match="is damaged"):
        again.replay()
    assert again.event == classifier.memory.last
    for value in again.learner.state().values():
        assert value.isfinite().all()


def test_consolidation_averages_over_what_it_could_read() -> None:
    """Two of four records damaged: as if only the other two were stored."""
    classifier = taught(range(4), cache_bytes=0)
    trainer = classifier._trainer
    whole = trainer._offline_gradients([1, 4], trainer.learner)
    damage(classifier, 2, 3)
    with pytest.warns(StoreWarning, match="is damaged"):
        part = trainer._offline_gradients([1, 2, 3, 4], trainer.learner)
    for name, gradient in whole.items():
        torch.testing.assert_close(part[name], gradient)
    with pytest.warns(StoreWarning, match="is damaged"):
        assert trainer._offline_gradients([2, 3], trainer.learner) == {}
