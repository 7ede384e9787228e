"""Any sequence of acts, kills among them, beside a slow reference that starts from scratch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from tests.helpers import FAST, TEXTS, differing, knowledge, measured, picture, settings
from tests.test_trainer import assert_counted

from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import StoreError
from anytimecl.experts import InstanceExpert
from anytimecl.memory import verify

NAMES = ("cat", "dog", "tabby cat", "great white shark", "okapi", "llama", "zebra", "hound")
PICTURES = 40  # so few that most are taught again under another label
EVERY = 25  # acts between two comparisons of the experts


class Reference:
    """Which picture has which label, and what was done, as plain as can be."""

    def __init__(self) -> None:
        self.labels: dict[int, str] = {}  # example -> label
        self.shown: dict[int, int] = {}  # example -> picture
        self.before: list[tuple[dict[int, str], dict[int, int]]] = []  # each act

    def remember(self) -> None:
        self.before.append((dict(self.labels), dict(self.shown)))

    def undo(self) -> None:
        self.labels, self.shown = self.before.pop()

    def of(self, shown: int) -> int | None:
        return next((e for e, number in self.shown.items() if number == shown), None)


class Driver:
    """Does the same to a classifier and to the reference."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, Random(seed)
        self.settings = settings(learner=FAST if seed % 2 else TEXTS)
        self.plain = Reference()
        self.classifier = self.opened()
        acts = {
            self.teach: 45, self.relabel: 20, self.undo: 14, self.rename: 5, self.merge: 3,
            self.forget: 3, self.kill: 4, self.reopen: 1, self.consolidate: 1,
        }  # fmt: skip
        self.acts, self.weights = list(acts), list(acts.values())

    def opened(self) -> AnytimeClassifier:
        return AnytimeClassifier.open(self.folder, model=measured(), settings=self.settings)

    def run(self, count: int) -> None:
        for number in range(1, count + 1):
            [act] = self.random.choices(self.acts, self.weights)
            act()
            found = dict(self.classifier.memory.ids())
            assert found == self.plain.labels, (number, act)
            if number % EVERY == 0:
                self.compare()
        self.compare()
        assert verify(self.classifier.memory).ok

    def label(self) -> str:
        return self.random.choice(NAMES)

    def teach(self) -> None:
        shown, label = self.random.randrange(PICTURES), self.label()
        known = self.plain.of(shown)
        learned = self.classifier.learn_one(picture(shown), label)
        if known is None:
            self.plain.remember()
            self.plain.labels[learned.id], self.plain.shown[learned.id] = label, shown
            assert learned.replaced is None
        else:
            before = self.plain.labels[known]
            assert learned.id == known
            assert learned.replaced == (None if before == label else before)
            if before != label:
                self.plain.remember()
                self.plain.labels[known] = label
        assert self.classifier.predict(picture(shown)).label == label

    def relabel(self) -> None:
        if self.plain.labels:
            example, label = self.random.choice(list(self.plain.labels)), self.label()
            told = self.classifier.relabel(example, label)
            assert told.before == self.plain.labels[example]
            if told.before != label:
                self.plain.remember()
                self.plain.labels[example] = label

    def undo(self) -> None:
        steps = self.random.choice((1, 1, 1, 2, 5))
        if steps <= len(self.plain.before):
            assert len(self.classifier.undo(steps)) == steps
            for _ in range(steps):
                self.plain.undo()
        else:
            with pytest.raises(StoreError, match="undone"):
                self.classifier.undo(steps)

    def rename(self) -> None:
        there = sorted(set(self.plain.labels.values()))
        free = [name for name in NAMES if name not in there]
        if there and free:
            old, new = self.random.choice(there), self.random.choice(free)
            self.classifier.rename_label(old, new)
            self.plain.remember()
            self.swap(old, new)

    def merge(self) -> None:
        there = sorted(set(self.plain.labels.values()))
        if len(there) > 1:
            source, into = self.random.sample(there, 2)
            self.classifier.merge_labels(source, into)
            self.plain.remember()
            self.swap(source, into)

    def swap(self, old: str, new: str) -> None:
        labels = self.plain.labels
        self.plain.labels = {e: new if y == old else y for e, y in labels.items()}

    def forget(self) -> None:
        if not self.plain.labels:
            return
        example = self.random.choice(list(self.plain.labels))
        gone, chosen = [example], {"example_id": example}
        if self.random.random() < 0.3:
            label = self.plain.labels[example]
            gone = [e for e, y in self.plain.labels.items() if y == label]
            chosen = {"label": label}  # type: ignore[dict-item]
        assert self.classifier.forget(**chosen) == len(gone)  # type: ignore[arg-type]
        for each in gone:
            del self.plain.labels[each], self.plain.shown[each]
        self.plain.before.clear()  # which is final

    def consolidate(self) -> None:
        if self.plain.labels:
            self.classifier.consolidate(1)

    def kill(self) -> None:
        before = knowledge(self.classifier)
        self.classifier._checkpointer.close()
        self.classifier.memory.close()
        self.classifier = self.opened()
        assert differing(before, knowledge(self.classifier)) == []

    def reopen(self) -> None:
        before = knowledge(self.classifier)
        self.classifier.close()
        self.classifier = self.opened()
        assert differing(before, knowledge(self.classifier)) == []

    def compare(self) -> None:
        """The experts, with those made from what is stored now, and nothing else."""
        trainer = self.classifier._trainer
        assert_counted(trainer)
        instances, labels = trainer.model.instances, trainer.labels
        fresh = InstanceExpert(trainer.backbone.spec.dim, trainer.backbone.prior)
        rows = [labels.index(self.plain.labels[example]) for example in instances.examples]
        found, images = trainer.images(instances.examples)
        for example, row, image in zip(found, rows, images, strict=True):
            fresh.add([example], [row], image[None])
        mine, theirs = instances.state(), fresh.state()
        for part in ("examples", "rows", "images"):
            assert torch.equal(mine[f"instance.{part}"], theirs[f"instance.{part}"]), part
        for seen in trainer.model.evidence:
            assert seen.label == self.plain.labels[seen.example]


def drive(folder: Path, count: int, seed: int) -> dict[str, Any]:
    driver = Driver(folder, seed)
    driver.run(count)
    found = knowledge(driver.classifier)
    with suppress(StoreError):
        driver.classifier.close()
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_some_hundred_acts(tmp_path: Path, seed: int) -> None:
    drive(tmp_path / "memory", 125, seed)


@pytest.mark.slow
def test_ten_thousand_acts(tmp_path: Path) -> None:
    for seed in range(5):
        drive(tmp_path / f"memory {seed}", 2000, seed)
