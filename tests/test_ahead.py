"""Work ahead, and threads that change nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import PIL.Image
import pytest
import torch
from tests.helpers import differing, knowledge, lessons, model, settings, taught

from anytimecl.ahead import some_ahead
from anytimecl.backbone import Backbone
from anytimecl.classifier import AnytimeClassifier


@pytest.fixture(params=[2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_order_and_threads_are_given_back(threads: int, workers: int) -> None:
    alive = threading.Barrier(workers)

    def work(number: int) -> tuple[int, int]:
        if number < workers:
            alive.wait(10)  # all of them work at once
        return number, torch.get_num_threads()

    found = []
    alone = workers > 1
    for made in some_ahead(range(7), work, workers, alone=alone):
        assert torch.get_num_threads() == (1 if alone else threads)
        found.append(made())
    assert found == [(number, threads if workers == 1 else 1) for number in range(7)]
    assert torch.get_num_threads() == threads


def test_who_leaves_early_gets_his_threads_back(threads: int) -> None:
    for made in some_ahead(range(100), str, 3, alone=True):
        assert made() == "0"
        break
    assert torch.get_num_threads() == threads


def test_what_came_before_an_error_of_the_items_counts() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise ValueError("no more")

    found = []
    coming = some_ahead(items(), str, 3)
    for _ in range(5):
        found.append(next(coming)())
    with pytest.raises(ValueError, match="no more"):
        next(coming)
    assert found == list("01234")


def test_many_at_once_are_learned_as_one_by_one(threads: int, tmp_path: Path) -> None:
    with (
        AnytimeClassifier.open(tmp_path, model=model(), settings=settings()) as many,
        taught(range(16)) as straight,
    ):
        assert many.learn_many(lessons(16)) == 16
        assert differing(knowledge(straight), knowledge(many)) == []


@pytest.mark.real
def test_the_embedded_model_learns_the_same_with_as_many_threads_as_are_alike(
    embedded: Backbone, tmp_path: Path
) -> None:
    """Records are the same with any number; what is learned, where the processor allows it."""
    random = torch.Generator().manual_seed(0)
    shape = (12, embedded.spec.tokens, embedded.spec.tail.width)
    tokens = torch.randn(shape, generator=random)
    found, before = [], torch.get_num_threads()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        try:
            with AnytimeClassifier.open(tmp_path / str(count), model=embedded) as classifier:
                for number, own in enumerate(tokens):
                    classifier.learn_tokens(own, f"label {number % 4}")
                records = classifier.memory.read(list(range(1, 13)))
                alike = classifier._trainer.learner.alike
                found.append((records, knowledge(classifier), alike))
        finally:
            torch.set_num_threads(before)
    for records, known, alike in found:
        assert records == found[0][0]
        assert not alike or differing(found[0][1], known) == []


@pytest.mark.real
def test_the_embedded_model_encodes_several_images_ahead(
    embedded: Backbone, threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, seen = lessons(10), []
    encode = Backbone.encode

    def noting(self: Backbone, images: Sequence[PIL.Image.Image]) -> torch.Tensor:
        seen.append((threading.get_ident(), torch.get_num_threads()))
        return encode(self, images)

    with (
        AnytimeClassifier.open(tmp_path / "many", model=embedded) as many,
        AnytimeClassifier.open(tmp_path / "straight", model=embedded) as straight,
    ):
        for image, label in shown:
            straight.learn_one(image, label)
        assert embedded.encoders == threads + 1
        with monkeypatch.context() as patch:
            patch.setattr(Backbone, "encode", noting)
            many.learn_many(shown)
        several = many._trainer.learner.alike
        assert {own for _, own in seen} == {1 if several else threads}
        assert (len({thread for thread, _ in seen}) > 1) == several
        assert differing(knowledge(straight), knowledge(many)) == []
