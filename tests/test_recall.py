"""Votes by hand, and what is kept of images."""

from __future__ import annotations

import pytest
import torch
from tests.helpers import LABELS, lesson, model, picture, taught
from torch import Tensor

from anytimecl.classifier import AnytimeClassifier
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
    votes = told(rows, given).means().votes(asked, [2, -1, 0, 1])
    for number, image in enumerate(asked):
        expected = [votes_by_hand(rows, given, image, row) for row in (2, 0, 1)]
        expected.insert(1, 0.0)  # never seen
        assert votes[number].tolist() == pytest.approx(expected, abs=1e-5)
    assert votes.abs().max() > 0.1


def test_a_label_is_voted_for_where_its_images_lie() -> None:
    rows = [0, 1, 2] * 5
    centres = torch.eye(DIM)[:3]
    given = torch.nn.functional.normalize(centres[rows] + images(15), dim=-1)
    votes = told(rows, given).means().votes(centres, [0, 1, 2])
    assert votes.argmax(1).tolist() == [0, 1, 2]
    assert (votes.diagonal() > 0).all()
    assert (votes < 0).sum() == 6  # all others


def test_the_more_examples_the_louder() -> None:
    rare, known = told([0, 1], images(2)), told([0, 1] * 9, images(2).repeat(9, 1))
    votes = [recall.means().votes(images(1), [0, 1])[0] for recall in (rare, known)]
    assert 0 < votes[0][0] - votes[0][1] < votes[1][0] - votes[1][1]


def test_one_by_one_or_at_once_is_the_same() -> None:
    rows, given = [0, 1, 1, 0, 2, 1, 0, 0] * 9, images(72)
    at_once, slowly = told(rows, given), Recall(DIM)
    slowly.make_room(3)
    for row, image in zip(rows, given, strict=True):
        slowly.add([row], image.unsqueeze(0))
    assert torch.equal(at_once.sums, slowly.sums)
    assert torch.equal(at_once.counts, slowly.counts)


def test_nothing_learned_and_a_label_without_images_have_no_vote() -> None:
    assert Recall(DIM).means().votes(images(2), [-1, -1]).tolist() == [[0, 0], [0, 0]]
    recall = told([0, 2], images(2))
    assert recall.means().votes(images(2), [1]).tolist() == [[0], [0]]
    single = told([0], images(1)).means().votes(images(2), [0])
    assert single.tolist() == [[-0.5], [-0.5]]  # one image is the mean of all


def test_means_stay_as_they_were() -> None:
    recall = told([0, 1, 1], images(3))
    means = recall.means()
    before = means.votes(images(4, seed=2), [0, 1])
    recall.add([0], images(1, seed=3))
    assert torch.equal(means.votes(images(4, seed=2), [0, 1]), before)
    assert not torch.equal(recall.means().votes(images(4, seed=2), [0, 1]), before)


def test_a_dropped_label_leaves_the_others() -> None:
    rows, given = [0, 1, 2, 1, 0], images(5)
    recall = told(rows, given)
    recall.drop(1)
    kept = [(row and row - 1, image) for row, image in zip(rows, given, strict=True) if row != 1]
    alone = told([row for row, _ in kept], torch.stack([image for _, image in kept]))
    for name, value in recall.state().items():
        torch.testing.assert_close(value, alone.state()[name])


def test_of_some_labels() -> None:
    recall = told([0, 1, 2, 1, 0], images(5))
    some = recall.of([2, 0])
    assert some.counts.tolist() == [1, 2]
    assert torch.equal(some.sums, recall.sums[[2, 0]])
    some.add([0], images(1))
    assert recall.counts.tolist() == [2, 2, 1]


# In a classifier


def recall_of(classifier: AnytimeClassifier) -> Recall:
    return classifier._student.recall


def test_it_holds_what_was_learned() -> None:
    with taught(range(12)) as classifier:
        lessons = [lesson(number) for number in range(12)]
        tokens = model().encode([image for image, _ in lessons])
        seen = classifier._student.learner.original_images(tokens)
        for row, label in enumerate(classifier._student.labels):
            mine = [i for i, (_, its) in enumerate(lessons) if its == label]
            expected = seen[mine].sum(0)
            torch.testing.assert_close(recall_of(classifier).sums[row], expected, atol=5e-3, rtol=0)
            assert recall_of(classifier).counts[row] == len(mine)


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
