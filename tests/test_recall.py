"""Votes by hand, and what is kept of images."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import helpers
from tests.helpers import LABELS, lesson, model, picture, taught
from torch import Tensor

from anytimecl import checkpoint
from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import CheckpointError
from anytimecl.recall import STRENGTH, Recall

DIM = 6


def images(count: int, seed: int = 0) -> Tensor:
    """Unit vectors that lie to one side, as a model's do."""
    random = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.rand(count, DIM, generator=random), dim=-1)


def told(rows: list[int], given: Tensor) -> Recall:
    recall = Recall(DIM)
    recall.make_room(max(rows) + 1)
    recall.add(rows, given)
    return recall


def votes_of(recall: Recall, asked: Tensor, rows: list[int]) -> Tensor:
    means = recall.means(rows)
    assert means is not None
    return means.votes(asked)


def votes_by_hand(rows: list[int], given: Tensor, image: Tensor, row: int) -> float:
    """How much nearer the image is to the label's mean, drawn to that of all, than to the latter.

    In units of the spread of all images and of one more that is nothing; less what examples cost.
    """
    mine = [each for each, its in zip(given, rows, strict=True) if its == row]
    mean = sum(given) / len(given)
    drawn = mean + sum((each - mean for each in mine), torch.zeros(DIM)) / (len(mine) + 1)
    nearer = (image - mean).square().sum() - (image - drawn).square().sum()
    spread = 1 - (sum(given) / (len(given) + 1)).square().sum()
    return float(STRENGTH * nearer / spread) - len(mine) / (len(mine) + 1)


def test_votes_by_hand() -> None:
    rows, given, asked = [0, 1, 1, 0, 2, 1, 0, 0], images(8), images(3, seed=1)
    votes = votes_of(told(rows, given), asked, [2, -1, 0, 1])
    for number, image in enumerate(asked):
        expected = [votes_by_hand(rows, given, image, row) for row in (2, 0, 1)]
        expected.insert(1, 0.0)  # never seen
        assert votes[number].tolist() == pytest.approx(expected, abs=1e-5)
    assert votes.abs().max() > 0.1


def test_a_label_is_voted_for_where_its_images_lie() -> None:
    rows = [0, 1, 2] * 5
    centres = torch.eye(DIM)[:3]
    given = torch.nn.functional.normalize(centres[rows] + images(15), dim=-1)
    votes = votes_of(told(rows, given), centres, [0, 1, 2])
    assert votes.argmax(1).tolist() == [0, 1, 2]
    assert (votes.diagonal() > 0).all()
    assert (votes < 0).sum() == 6  # all others


def test_the_more_examples_the_louder() -> None:
    rare, known = told([0, 1], images(2)), told([0, 1] * 9, images(2).repeat(9, 1))
    votes = [votes_of(recall, images(1), [0, 1])[0] for recall in (rare, known)]
    assert 0 < votes[0][0] - votes[0][1] < votes[1][0] - votes[1][1]


def test_one_by_one_or_at_once_is_the_same() -> None:
    rows, given = [0, 1, 1, 0, 2, 1, 0, 0] * 9, images(72)
    at_once, slowly = told(rows, given), Recall(DIM)
    slowly.make_room(3)
    for row, image in zip(rows, given, strict=True):
        slowly.add([row], image.unsqueeze(0))
    assert torch.equal(at_once.sums, slowly.sums)
    assert torch.equal(at_once.counts, slowly.counts)


def test_a_label_without_images_has_no_vote() -> None:
    recall = told([0, 2], images(2))
    assert votes_of(recall, images(2), [1]).tolist() == [[0], [0]]


def test_with_images_of_one_label_there_is_nothing_to_compare_them_with() -> None:
    assert Recall(DIM).means([-1, -1]) is None
    assert told([1, 1], images(2)).means([1, -1]) is None


def test_means_stay_as_they_were() -> None:
    recall = told([0, 1, 1], images(3))
    means = recall.means([0, 1])
    assert means is not None
    before = means.votes(images(4, seed=2))
    recall.add([0], images(1, seed=3))
    assert torch.equal(means.votes(images(4, seed=2)), before)
    assert not torch.equal(votes_of(recall, images(4, seed=2), [0, 1]), before)


def test_a_dropped_label_leaves_the_others() -> None:
    rows, given = [0, 1, 2, 1, 0], images(5)
    recall = told(rows, given)
    recall.drop(1)
    kept = [(row and row - 1, image) for row, image in zip(rows, given, strict=True) if row != 1]
    alone = told([row for row, _ in kept], torch.stack([image for _, image in kept]))
    for name, value in recall.state().items():
        torch.testing.assert_close(value, alone.state()[name])


def test_room_is_made_for_any_number_of_labels() -> None:
    recall, given = Recall(DIM), images(50)
    for row in range(50):
        recall.make_room(row + 1)
        recall.add([row], given[row : row + 1])
    assert torch.equal(recall.sums, given.double())
    assert recall.counts.tolist() == [1] * 50


def test_replaced_images() -> None:
    recall = told([0, 1, 1, 0], images(4))
    recall.replace(1, images(3, seed=5))
    assert recall.counts.tolist() == [2, 3]
    torch.testing.assert_close(recall.sums[1], images(3, seed=5).double().sum(0))
    recall.replace(1, images(0))
    assert recall.counts.tolist() == [2, 0]
    assert not recall.sums[1].any()


def near(place: Tensor, count: int, noise: float) -> Tensor:
    random = torch.Generator().manual_seed(count)
    moved = place + noise * torch.randn(count, len(place), generator=random)
    return torch.nn.functional.normalize(moved, dim=-1)


def test_an_image_far_from_all_that_was_learned_is_like_none() -> None:
    """Where all of it lies close together, as before a camera that stands still."""
    rows = [number % 4 for number in range(80)]
    places = near(torch.eye(64)[0], 4, 0.05)
    given = torch.cat([near(places[row], 1, 0.01) for row in rows])
    recall = Recall(64)
    recall.make_room(4)
    recall.add(rows, given)
    means = recall.means([0, 1, 2, 3])
    assert means is not None
    assert means.votes(places).diagonal().min() > 1
    foreign = near(torch.zeros(64), 200, 1.0)
    assert means.votes(foreign).max() < 1


def test_the_same_image_ever_again() -> None:
    """Sums round off until the images seem longer than they are."""
    recall = told([0, 1] * 150_000, near(torch.ones(DIM), 1, 0.0).expand(300_000, DIM))
    means = recall.means([0, 1])
    assert means is not None
    assert means.spread > 0
    assert means.votes(images(3)).abs().max() < 5


@pytest.mark.parametrize(
    "changed",
    [
        lambda state: state.pop("recall.counts"),
        lambda state: state.update({"recall.sums": torch.zeros(3, DIM, dtype=torch.float64)}),
        lambda state: state.update({"recall.sums": torch.zeros(2, DIM + 1, dtype=torch.float64)}),
        lambda state: state.update({"recall.sums": torch.zeros(2, DIM, dtype=torch.float32)}),
        lambda state: state.update({"recall.counts": torch.zeros(2)}),
    ],
)
def test_means_of_something_else_are_refused(changed: Callable[[Any], Any]) -> None:
    recall = told([0, 1], images(2))
    state = {name: value.clone() for name, value in recall.state().items()}
    changed(state)
    with pytest.raises(CheckpointError, match="other labels or another model"):
        recall.restore(state)
    assert recall.counts.tolist() == [1, 1]


# In a classifier


def recall_of(classifier: AnytimeClassifier) -> Recall:
    return classifier._student.recall


def check_means(classifier: AnytimeClassifier, numbers: Sequence[int]) -> None:
    """They are those of these lessons."""
    student = classifier._student
    lessons = [lesson(number) for number in numbers]
    seen = student.learner.original_images(model().encode([image for image, _ in lessons]))
    for row, label in enumerate(student.labels):
        mine = [i for i, (_, its) in enumerate(lessons) if its == label]
        expected = seen[mine].double().sum(0)
        torch.testing.assert_close(recall_of(classifier).sums[row], expected, atol=5e-3, rtol=0)
        assert recall_of(classifier).counts[row] == len(mine)
    assert len(recall_of(classifier).counts) == len(student.labels)


def test_it_holds_what_was_learned() -> None:
    with taught(range(12)) as classifier:
        check_means(classifier, range(12))


def test_a_forgotten_example_is_in_no_mean(tmp_path: Path) -> None:
    """Even where weights keep what they took from it."""
    with taught(range(12), folder=tmp_path / "memory") as classifier:
        classifier._save()
        assert not classifier.forget(example_id=3).clean
        check_means(classifier, [0, 1, *range(3, 12)])
        before = helpers.knowledge(classifier)
    with AnytimeClassifier.open(tmp_path / "memory", model=model()) as again:
        assert not helpers.differing(before, helpers.knowledge(again))
    with taught(range(12)) as in_ram:
        in_ram.forget(example_id=3)
        check_means(in_ram, [0, 1, *range(3, 12)])


def test_a_label_forgotten_since_the_checkpoint(tmp_path: Path) -> None:
    with taught(range(12), folder=tmp_path / "memory") as classifier:
        classifier._save()
        gone = classifier.labels[0]
        classifier.forget(label=gone)
        left = [number for number in range(12) if lesson(number)[1] != gone]
        check_means(classifier, left)


def without_means(folder: Path) -> None:
    """As who did not recall would have written it."""
    saved = checkpoint.load(folder)
    tensors = {n: t for n, t in saved.tensors.items() if not n.startswith("recall.")}
    assert len(tensors) < len(saved.tensors)
    checkpoint.save(dataclasses.replace(saved, tensors=tensors), folder)


def test_who_did_not_recall_from_the_start_does_not_until_it_learns_again(tmp_path: Path) -> None:
    taught(range(12), folder=tmp_path / "memory").close()
    without_means(tmp_path / "memory" / "checkpoint")
    for _ in range(2):  # and does not forget that it cannot
        with AnytimeClassifier.open(tmp_path / "memory", model=model()) as classifier:
            found = classifier._opinions(model().encode([picture(60)]), classifier._asked(LABELS))
            assert not recall_of(classifier).whole
            assert found.votes is None
            classifier.learn_one(*lesson(classifier.memory.last))
            classifier.forget(example_id=next(iter(classifier.memory.ids()))[0])
    with AnytimeClassifier.open(tmp_path / "memory", model=model()) as classifier:
        classifier.rebuild()
        assert recall_of(classifier).counts.sum() == len(classifier)


def test_a_forgotten_label_is_not_recalled() -> None:
    with taught(range(12)) as classifier:
        gone = classifier.labels[1]
        classifier.forget(label=gone)
        left = classifier.labels
        assert len(recall_of(classifier).counts) == len(left)
        found = classifier.predict(picture(50), [gone, *left])
        assert found.probabilities[gone] == found.original[gone]


def test_predictions_listen_to_it() -> None:
    with taught(range(12)) as classifier:
        before = classifier.predict_proba([picture(60)], LABELS)
        tuned = classifier.predict(picture(60), LABELS).tuned
        recall_of(classifier).sums.copy_(recall_of(classifier).sums.roll(1, 0))
        assert classifier.predict(picture(60), LABELS).tuned == tuned
        assert (before != classifier.predict_proba([picture(60)], LABELS)).any()
