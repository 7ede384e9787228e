"""Runs the demo and measures; draws and prints nothing.

Predictions for the two tasks are always over the labels of both: the classifier is not told which
task an image belongs to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor, stack

from anytimecl.backbone import Backbone, Trunk
from anytimecl.classifier import AnytimeClassifier
from anytimecl.demo import data
from anytimecl.demo.data import DemoExample, DemoTask
from anytimecl.errors import AnytimeError
from anytimecl.memory.maintenance import info
from anytimecl.prediction import Prediction
from anytimecl.settings import Settings
from anytimecl.trainer import Learned

AT_ONCE = 16  # pictures encoded per update of the progress bar


@dataclass(frozen=True)
class Plan:
    """Number of images per label, and how often to evaluate."""

    lights_train: int
    lights_test: int
    digits_train: int
    digits_test: int
    looks: int  # evaluations per task, evenly spaced
    corrections: int  # of each task's first zero-shot errors
    seed: int = 0


FULL = Plan(
    lights_train=35, lights_test=36, digits_train=12, digits_test=10, looks=5, corrections=10
)
QUICK = Plan(lights_train=8, lights_test=5, digits_train=6, digits_test=4, looks=2, corrections=3)


class DemoStage(Protocol):
    """Displays the demo's progress and results."""

    def chapter(self, title: str, text: str) -> None:
        """A part begins."""
        ...

    def track(self, what: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Progress of a long step; the yielded function takes the number of units done."""
        ...

    def looked(self, looks: Sequence[DemoLook]) -> None:
        """All evaluations so far."""
        ...

    def say(self, text: str) -> None:
        """A result in words."""
        ...


@dataclass(frozen=True)
class DemoScore:
    """Accuracies of the blended prediction and of both models alone."""

    blend: float
    tuned: float
    original: float


@dataclass(frozen=True)
class DemoLook:
    """An evaluation during the stream."""

    learned: int
    when: str
    whole: bool  # at the end of a stream, not within it
    lights: DemoScore
    digits: DemoScore
    untaught: DemoScore
    untaught_same: bool  # all probabilities equal those of the first evaluation


@dataclass(frozen=True)
class Reopened:
    """The memory after it was closed and opened again."""

    examples: int
    seconds: float
    same: bool  # whether all probabilities on the test images are the same as before
    example_bytes: int  # all examples together
    folder_bytes: int  # with tuned weights, optimiser state and indexes


@dataclass(frozen=True)
class Correction:
    """A zero-shot error, before and after its image was learned."""

    example: DemoExample
    before: Prediction
    after: Prediction

    @property
    def chances(self) -> tuple[float, float]:
        """Probability of the true label, before and after."""
        right = self.example.label
        return self.before.probabilities[right], self.after.probabilities[right]


@dataclass(frozen=True)
class Story:
    """All results."""

    plan: Plan
    model: str
    lights: DemoTask
    digits: DemoTask
    untaught: DemoTask
    looks: Sequence[DemoLook]
    answers: Mapping[str, Sequence[Prediction]]  # by task, after both streams
    learn_milliseconds: float  # per example: encoding, one step, and disk
    corrections: Sequence[Correction]
    reopened: Reopened
    seconds: float

    def numbers(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "model": self.model,
            "plan": asdict(self.plan),
            "looks": [asdict(look) for look in self.looks],
            "learn_milliseconds": self.learn_milliseconds,
            "corrections": [
                {
                    "label": one.example.label,
                    "before": one.before.label,
                    "after": one.after.label,
                    "chances": one.chances,
                }
                for one in self.corrections
            ],
            "reopened": asdict(self.reopened),
            "seconds": self.seconds,
        }


def tell(plan: Plan, backbone: Backbone, folder: Path, stage: DemoStage) -> Story:
    """Run the demo, with a new memory in `folder`."""
    return _Telling(plan, backbone, folder, stage).whole()


class KnownPictures:
    """A trunk that caches the tokens of some images, which are predicted many times."""

    def __init__(self, trunk: Trunk) -> None:
        self.trunk = trunk
        self.known: dict[bytes, Tensor] = {}

    def remember(self, pixels: Tensor) -> None:
        """Encode [batch, 3, height, width] and cache the tokens."""
        for one, tokens in zip(pixels, self.trunk(pixels), strict=True):
            self.known[one.numpy().tobytes()] = tokens

    def __call__(self, pixels: Tensor) -> Tensor:
        found = [self.known.get(one.cpu().numpy().tobytes()) for one in pixels]
        known = [tokens for tokens in found if tokens is not None]
        return stack(known) if len(known) == len(found) else self.trunk(pixels)


class _Telling:
    """A run of the demo."""

    def __init__(self, plan: Plan, backbone: Backbone, folder: Path, stage: DemoStage) -> None:
        self.plan = plan
        self.folder = folder
        self.stage = stage
        self.began = time.perf_counter()
        self.lights = data.traffic_lights(plan.lights_train, plan.lights_test, plan.seed)
        self.digits = data.digits(plan.digits_train, plan.digits_test, plan.seed)
        self.untaught = data.kinds(self.lights, self.digits)
        self.labels = [*self.lights.labels, *self.digits.labels]
        self.trunk = KnownPictures(backbone.trunk)
        self.backbone = replace(backbone, trunk=self.trunk)
        self.settings = Settings(seed=plan.seed)
        self.clf = self._open()
        self.looks: list[DemoLook] = []
        self.first: list[list[float]] = []  # zero-shot probabilities of labels never learned
        self.learning_seconds = 0.0

    def whole(self) -> Story:
        """Run all parts."""
        try:
            self._first_day()
            corrections = self._correct()
            self._teach(self.lights, "A stream of traffic lights")
            self._teach(self.digits, "A stream of digits")
            answers = {task.name: self._ask(task) for task in (self.lights, self.digits)}
            reopened = self._reopen(answers)
        finally:
            self.clf.close()
        learned = len(self.lights.train) + len(self.digits.train)
        return Story(
            plan=self.plan,
            model=self.backbone.spec.name,
            lights=self.lights,
            digits=self.digits,
            untaught=self.untaught,
            looks=self.looks,
            answers=answers,
            learn_milliseconds=1000 * self.learning_seconds / learned,
            corrections=corrections,
            reopened=reopened,
            seconds=time.perf_counter() - self.began,
        )

    def _open(self) -> AnytimeClassifier:
        return AnytimeClassifier.open(self.folder, model=self.backbone, settings=self.settings)

    def _first_day(self) -> None:
        count = len(self.untaught.test)
        self.stage.chapter(
            "The first day",
            f"Nothing is learned yet. {count} pictures are asked about, by naming the labels.",
        )
        with self.stage.track("Encoding the test pictures", count) as step:
            for start in range(0, count, AT_ONCE):
                some = [example.image for example in self.untaught.test[start : start + AT_ONCE]]
                self.trunk.remember(self.backbone.pixels(some))
                step(len(some))
        self._look("the first day")
        self.stage.looked(self.looks)

    def _teach(self, task: DemoTask, title: str) -> None:
        self.stage.chapter(
            title,
            f"{len(task.train)} pictures of {len(task.labels)} labels arrive one by one; each is "
            "learned in one step, and is on disk before the next.",
        )
        size = -(-len(task.train) // self.plan.looks)
        with self.stage.track(f"Learning {task.name}", len(task.train)) as step:

            def report(result: Learned | AnytimeError) -> None:
                if isinstance(result, AnytimeError):
                    raise result
                step(1)

            for start in range(0, len(task.train), size):
                some = task.train[start : start + size]
                before = time.perf_counter()
                self.clf.learn_many([(e.image, e.label) for e in some], report=report)
                self.learning_seconds += time.perf_counter() - before
                whole = start + size >= len(task.train)
                self._look(f"{'after' if whole else 'during'} {task.name}", whole)
        self.stage.looked(self.looks)

    def _ask(self, task: DemoTask) -> list[Prediction]:
        labels = task.labels if task is self.untaught else self.labels
        found: list[Prediction] = self.clf.predict([e.image for e in task.test], labels)
        return found

    def _score(self, task: DemoTask) -> DemoScore:
        return score(self._ask(task), task.test)

    def _look(self, when: str, whole: bool = True) -> None:
        untaught = self._ask(self.untaught)
        if not self.looks:
            self.first = _values(untaught)
        look = DemoLook(
            learned=len(self.clf),
            when=when,
            whole=whole,
            lights=self._score(self.lights),
            digits=self._score(self.digits),
            untaught=score(untaught, self.untaught.test),
            untaught_same=_values(untaught) == self.first,
        )
        self.looks.append(look)

    def _reopen(self, answers: Mapping[str, Sequence[Prediction]]) -> Reopened:
        self.stage.chapter("Closed, and opened again", "Everything is read back from the disk.")
        self.clf.close()
        began = time.perf_counter()
        self.clf = self._open()
        seconds = time.perf_counter() - began
        found = Reopened(
            examples=len(self.clf),
            seconds=seconds,
            same=all(
                _values(self._ask(task)) == _values(answers[task.name])
                for task in (self.lights, self.digits)
            ),
            example_bytes=info(self.clf.memory).payload_bytes,
            folder_bytes=sum(p.stat().st_size for p in self.folder.rglob("*") if p.is_file()),
        )
        self.stage.say(reopened(found))
        return found

    def _correct(self) -> list[Correction]:
        """Correct zero-shot errors, each in a new classifier.

        The demo's memory learns none of these test images.
        """
        mistakes = [pair for task in (self.lights, self.digits) for pair in self._mistakes(task)]
        self.stage.chapter(
            "One correction",
            f"Each of {len(mistakes)} mistakes is corrected once, on its own, and asked again.",
        )
        made = []
        for example, before in mistakes:
            with AnytimeClassifier.open(model=self.backbone, settings=self.settings) as clf:
                clf.learn_one(example.image, example.label, candidates=self.labels)
                made.append(Correction(example, before, clf.predict(example.image, self.labels)))
        self.stage.say(corrected(made))
        return made

    def _mistakes(self, task: DemoTask) -> list[tuple[DemoExample, Prediction]]:
        asked = zip(task.test, self._ask(task), strict=True)
        wrong = [(example, found) for example, found in asked if found.label != example.label]
        return wrong[: self.plan.corrections]


def _values(predictions: Sequence[Prediction]) -> list[list[float]]:
    """All probabilities, for exact comparison."""
    return [list(found.probabilities.values()) for found in predictions]


def reopened(found: Reopened) -> str:
    """Result of closing and opening again, in words."""
    same = "the same as before" if found.same else "NOT the same as before"
    return (
        f"{found.examples} examples are back after {found.seconds:.2f} s, and every probability on "
        f"every test picture is {same}, bit for bit. The examples take "
        f"{found.example_bytes / 1e6:.1f} MB of {found.folder_bytes / 1e6:.1f} MB; most of the "
        "rest is the tuned weights and their optimiser."
    )


def corrected(corrections: Sequence[Correction]) -> str:
    """Effect of single corrections, in words."""
    if not corrections:
        return "There was no mistake to correct."
    before, after = np.mean([one.chances for one in corrections], axis=0)
    rose = sum(one.chances[1] > one.chances[0] for one in corrections)
    right = sum(one.after.label == one.example.label for one in corrections)
    return (
        f"Of {len(corrections)} mistakes, each corrected once: the right label rose in {rose}, on "
        f"average from {before:.1%} to {after:.1%}, and {right} answers turned right at once."
    )


def score(predictions: Sequence[Prediction], examples: Sequence[DemoExample]) -> DemoScore:
    """Accuracies of predictions.

    >>> sure = Prediction("cat", 0.9, {"dog": 0.1, "cat": 0.9}, 0.0, {}, {"dog": 0.6, "cat": 0.4})
    >>> from PIL import Image
    >>> score([sure], [DemoExample(Image.new("RGB", (1, 1)), "cat")])
    DemoScore(blend=1.0, tuned=0.0, original=0.0)
    """

    def share(answer: Callable[[Prediction], dict[str, float]]) -> float:
        best = [max(given := answer(p), key=given.__getitem__) for p in predictions]
        right = sum(b == e.label for b, e in zip(best, examples, strict=True))
        return right / len(examples)

    return DemoScore(
        blend=share(lambda p: p.probabilities),
        tuned=share(lambda p: p.tuned or p.original),  # before the first update it is the original
        original=share(lambda p: p.original),
    )
