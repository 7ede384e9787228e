"""Many predict while others learn: nobody waits for more than one update or sees half of one."""

from __future__ import annotations

import faulthandler
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import (
    FAST,
    LABELS,
    differing,
    knowledge,
    lesson,
    lessons,
    model,
    picture,
    settings,
    taught,
)

from anytimecl.acceleration import OnlineLearner
from anytimecl.backbone import Backbone
from anytimecl.classifier import AnytimeClassifier
from anytimecl.step import Update

PATIENCE = 120  # seconds after which a thread that hangs has failed


class Crew:
    """Threads whose errors are not lost, and which must end."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def start(self, work: Callable[..., Any], *args: Any) -> threading.Thread:
        def careful() -> None:
            try:
                work(*args)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=careful, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def join(self, *threads: threading.Thread) -> None:
        end = time.monotonic() + PATIENCE
        for thread in threads or self.threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                faulthandler.dump_traceback(sys.__stderr__)
                pytest.fail("A thread waits for ever; where, stands on stderr.")
        if self.errors:
            raise self.errors[0]


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.001)


class Gate:
    """Stands in a method: whoever comes is counted and waits to be let through."""

    def __init__(self) -> None:
        self.come = 0
        self._pass = threading.Semaphore(0)

    def let(self, count: int = 1) -> None:
        self._pass.release(count)

    def wait(self) -> None:
        self.come += 1
        assert self._pass.acquire(timeout=PATIENCE)


@contextmanager
def gated(owner: type, name: str) -> Iterator[Gate]:
    """A gate before a method of a class."""
    gate, keep = Gate(), getattr(owner, name)

    def instead(*args: Any, **options: Any) -> Any:
        gate.wait()
        return keep(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, instead)
        try:
            yield gate
        finally:
            gate.let(1000)  # so that a failing test leaves nobody waiting


def test_a_prediction_waits_for_one_update_and_no_more() -> None:
    """The next update is asked for before those who wait are in, and still comes after them."""
    classifier, crew = taught(range(6)), Crew()
    answers: list[Any] = []
    with gated(OnlineLearner, "apply") as update:
        crew.start(classifier.learn_many, lessons(4, start=6))
        until(lambda: update.come == 1)  # the first update is under way and takes its time
        readers = [
            crew.start(lambda: answers.append(classifier.predict(picture(1), LABELS)))
            for _ in range(5)
        ]
        until(lambda: classifier._lock._waiting == 5)
        assert answers == []
        update.let()
        crew.join(*readers)  # while the second update is not let through
        assert len(answers) == 5
        assert update.come <= 2
        update.let(3)
        crew.join()
    assert len(classifier) == 10


def test_predictions_go_on_while_an_update_is_worked_out() -> None:
    """Forward and backward, nearly all of a step, hold no lock."""
    classifier, crew = taught(range(6)), Crew()
    before = classifier.predict(picture(1), LABELS)
    with gated(OnlineLearner, "look_ahead") as thinking:
        learner = crew.start(classifier.learn_one, *lesson(6))
        until(lambda: thinking.come == 1)
        during: list[Any] = []
        crew.join(crew.start(lambda: during.append(classifier.predict(picture(1), LABELS))))
        crew.join(crew.start(classifier.stats))
        assert learner.is_alive()
        thinking.let()
        crew.join()
    assert during == [before]
    assert classifier.predict(picture(1), LABELS) != before


def test_an_image_that_takes_long_to_encode_holds_up_neither_learning_nor_predicting() -> None:
    classifier, crew = taught(range(6)), Crew()
    gate, keep = Gate(), Backbone.encode
    slow = threading.local()

    def encode(self: Backbone, images: Any) -> torch.Tensor:
        if getattr(slow, "here", False):
            gate.wait()
        return keep(self, images)

    def slowly(work: Callable[..., Any], *args: Any) -> None:
        slow.here = True
        work(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Backbone, "encode", encode)
        crew.start(slowly, classifier.predict, picture(1), LABELS)
        crew.start(slowly, classifier.learn_one, *lesson(7))
        until(lambda: gate.come == 2)
        crew.join(crew.start(classifier.learn_one, *lesson(6)))
        crew.join(crew.start(classifier.predict, picture(2), LABELS))
        gate.let(2)
        crew.join()
    assert differing(knowledge(classifier), knowledge(taught(range(8)))) == []


def in_two_halves(pause: Callable[[], None]) -> Callable[..., None]:
    """The update, but half of the tensors change first, and the rest after a pause."""
    keep = OnlineLearner.apply

    def apply(self: OnlineLearner, update: Update, *given: Any) -> None:
        tensors = list(self.trainable().values())
        before = [value.clone() for value in tensors]
        keep(self, update, *given)
        rest = list(zip(tensors, before, strict=True))[1::2]
        after = [value.clone() for value, _ in rest]
        for value, old in rest:
            value.copy_(old)
        pause()
        for (value, _), new in zip(rest, after, strict=True):
            value.copy_(new)

    return apply


@pytest.mark.parametrize("tune", ["block", "both"])
def test_no_prediction_sees_half_an_update(tune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer is that of some whole state; the states are those of learning undisturbed."""
    chosen = settings(blend="tuned", learner=type(FAST)(batch=6, lr=5e-3, tune=tune))
    image, labels, count = picture(1), ["cat", "itap", "dog"], 25

    def answer(classifier: AnytimeClassifier) -> tuple[float, ...]:
        found = classifier.predict(image, labels)
        return (*found.probabilities.values(), found.none_of_these, *found.original.values())

    undisturbed = taught([], settings=chosen)
    whole = {answer(undisturbed)}
    for number in range(count):
        undisturbed.learn_one(*lesson(number))
        whole.add(answer(undisturbed))
    assert len(whole) > count - 3

    classifier, crew, done = taught([], settings=chosen), Crew(), threading.Event()
    seen: list[tuple[float, ...]] = []
    halves: list[int] = []

    def pause() -> None:
        halves.append(len(seen))
        time.sleep(0.004)

    monkeypatch.setattr(OnlineLearner, "apply", in_two_halves(pause))

    def predict() -> None:
        while not done.is_set():
            seen.append(answer(classifier))

    def learn() -> None:
        try:
            for number in range(count):
                classifier.learn_one(*lesson(number))
                at = len(seen)
                until(lambda at=at: len(seen) > at)  # or learning would end before anyone looks
        finally:
            done.set()

    for _ in range(3):
        crew.start(predict)
    crew.start(learn)
    crew.join()
    assert set(seen) <= whole
    assert len(set(seen)) > 5, "too few states were seen to mean anything"
    assert len(halves) == count
    assert differing(knowledge(classifier), knowledge(undisturbed)) == []


def test_estimates_and_weights_change_together() -> None:
    """Who waited for the weights finds the estimates changed as well."""
    classifier, crew = taught(range(6)), Crew()
    image, label = picture(50), "golden retriever"  # its first example makes it a seen label
    before = classifier.predict(image, [label, "itap"])
    during: list[Any] = []
    with gated(OnlineLearner, "apply") as update:
        crew.start(classifier.learn_one, image, label)
        until(lambda: update.come == 1)
        crew.start(lambda: during.append(classifier.predict(image, [label, "itap"])))
        until(lambda: classifier._lock._waiting == 1)
        update.let()
        crew.join()
    after = classifier.predict(image, [label, "itap"])
    assert during == [after]
    assert after != before


def test_learners_take_turns_and_the_journal_tells_their_order() -> None:
    """Whatever the order was, learning the journal again gives the same, bit for bit."""
    classifier, crew = taught([]), Crew()
    ids: list[int] = []

    def learn(start: int) -> None:
        for number in range(start, 40, 4):
            ids.append(classifier.learn_one(*lesson(number)).id)

    for start in range(4):
        crew.start(learn, start)
    crew.start(classifier.learn_many, lessons(10, start=40))
    crew.join()
    assert len(ids) == len(set(ids)) == 40
    assert len(classifier) == 50
    assert sum(record.seen for record in classifier._trainer.model.estimates._labels.values()) == 50
    before = knowledge(classifier)
    classifier.rebuild()
    assert differing(before, knowledge(classifier)) == []


def test_a_key_teaches_once_from_any_number_of_threads() -> None:
    classifier, crew = taught([]), Crew()
    ids: list[int] = []
    start = threading.Barrier(6)

    def learn() -> None:
        start.wait(timeout=PATIENCE)
        ids.append(classifier.learn_one(*lesson(0), key="the same").id)

    for _ in range(6):
        crew.start(learn)
    crew.join()
    assert ids == [1] * 6
    assert len(classifier) == 1


def test_everything_at_once_ends_and_leaves_sound_knowledge(tmp_path: Any) -> None:
    classifier = AnytimeClassifier.open(tmp_path / "m", model=model(), settings=settings())
    classifier.learn_many(lessons(8))
    crew, done, copies = Crew(), threading.Event(), itertools.count()
    answered = itertools.count()

    def forever(work: Callable[[], Any]) -> None:
        while not done.is_set():
            work()
            next(answered)

    def predict() -> None:
        proba = classifier.predict_proba([picture(1), picture(2)], [*LABELS, "itap"])
        assert np.isfinite(proba).all()

    def learn(start: int) -> None:
        for number in range(start, start + 8):
            classifier.learn_one(*lesson(number))

    def housekeeping() -> None:
        for _ in range(2):
            classifier.forget(example_id=next(classifier.memory.ids())[0])
            classifier.consolidate(1)
            classifier.save_pretrained(tmp_path / f"copy {next(copies)}")
            classifier.rebuild()

    for work in (predict, predict, classifier.stats, lambda: classifier.labels):
        crew.start(forever, work)
    workers = [crew.start(learn, 100), crew.start(learn, 200), crew.start(housekeeping)]
    try:
        crew.join(*workers)
    finally:
        done.set()
    crew.join()
    assert next(answered) > 8
    assert len(classifier) == 8 + 16 - 2
    before = knowledge(classifier)
    classifier.close()
    with AnytimeClassifier.open(tmp_path / "m", model=model()) as again:
        assert differing(before, knowledge(again)) == []
    with AnytimeClassifier.from_pretrained(tmp_path / "copy 1", model=model()) as copy:
        assert copy.predict(picture(3)).label in copy.labels
