"""Which image would teach most, against an expert who is taught the answer."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from anytimecl.choosing import (
    NAMED,
    ROUNDS,
    Groups,
    believed,
    expected_gain,
    explained,
    most_telling,
    unseen,
)
from anytimecl.experts import GaussianExpert
from anytimecl.experts.statistics import FIXED

DIM, LABELS = 6, 3


def drawn(count: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed)))


def taught(more: tuple[int, torch.Tensor] | None = None) -> GaussianExpert:
    """Seven examples, and perhaps one more, that the space does not follow yet."""
    expert = GaussianExpert(DIM)
    for _ in range(LABELS + 1):
        expert.enter()
    expert.add_many([0, 1, 2, 0, 1, 2, 0], drawn(7, 0))
    if more is not None:
        expert.add_many([more[0]], more[1].unsqueeze(0))
    return expert


def test_images_look_like_labels_as_the_expert_says() -> None:
    images, rows, expert = drawn(8, 3), [0, 1, -1], taught()  # the last was never seen
    named = drawn(8, 5)[:, :3].log_softmax(1)
    said, typical = expert.judged(images, rows)
    found = Groups.learned(expert, rows).shares(expert.whitened(images)[0], named)
    slow = (said - typical + NAMED * named).softmax(1)
    torch.testing.assert_close(found, slow, rtol=1e-3, atol=1e-4)


def test_the_gain_is_that_of_teaching_every_answer() -> None:
    asked, rows, expert = drawn(20, 3), [0, 1, -1], taught()
    said = believed(expert, asked, drawn(20, 5)[:, :3].log_softmax(1), rows)
    found = expected_gain(expert, said, rows)

    every = learned = Groups.learned(expert, rows)
    whitened = expert.whitened(asked)[0]
    for _ in range(ROUNDS):
        shares = every.shares(whitened, said.original)
        counts = learned.counts + shares.sum(0)
        sums = learned.sums + torch.einsum("il,id->ld", shares, whitened)
        every = Groups(expert.space, counts, sums)
    goal = every.sums / every.counts.unsqueeze(1)
    chances = every.shares(whitened, said.original)

    def off(of: GaussianExpert, row: int, column: int) -> float:
        count = of.now.counts[row].float()
        mean = (of.now.sums[row].double() / FIXED / count.clamp_min(1)).float() @ of.space.whiten
        known, _ = of.space.predictive(count.unsqueeze(0), mean.unsqueeze(0))
        return float((known - goal[column]).square().sum())

    for place, image in enumerate(asked):
        slow = 0.0
        for column, row in enumerate((0, 1, LABELS)):  # `taught` has no example of the last
            nearer = off(expert, row, column) - off(taught((row, image)), row, column)
            slow += float(chances[place, column] * every.counts[column]) * nearer
        torch.testing.assert_close(float(found[place]), slow, rtol=1e-3, atol=1e-3)
    best = (found.clamp_min(0) * said.doubt).argmax()
    assert most_telling(expert, said, rows, chance=1.0) == int(best)


def test_an_odd_example_is_made_up_for() -> None:
    """Two groups, one of whose only examples lie to one side: the other side is asked about."""
    side = torch.linspace(-0.4, 0.4, 9)
    images = F.normalize(
        torch.cat(
            [torch.eye(4, DIM)[row] + side.unsqueeze(1) * torch.eye(DIM)[5] for row in (0, 1)]
        )
    )
    expert = GaussianExpert(DIM)
    for example, (row, number) in enumerate([(0, 8), (0, 7), (1, 13), (1, 13)], 1):
        if row == expert.now.rows:
            expert.enter()
        expert.add(example, row, images[number])
    said = believed(expert, images, torch.zeros(len(images), 2), [0, 1])
    assert most_telling(expert, said, [0, 1], chance=1.0) < 4


def test_a_label_of_its_own_explains_what_no_label_explains_better() -> None:
    asked, expert = drawn(8, 3), taught()
    found = explained(expert, asked)
    known = expert.scores(asked, range(LABELS)).amax(1).clamp_min(0)
    for place, image in enumerate(asked):
        own = taught((LABELS, image)).scores(asked, [LABELS])[:, 0]
        slow = (torch.maximum(own, known) - known).sum()
        torch.testing.assert_close(found[place], slow, rtol=1e-3, atol=1e-3)
    nothing = believed(expert, asked, torch.empty(8, 0), [])
    assert most_telling(GaussianExpert(DIM), nothing, [], chance=0.99) == int(
        explained(GaussianExpert(DIM), asked).argmax()
    )


def test_as_often_as_labels_are_met_once_another_is_looked_for() -> None:
    assert unseen(GaussianExpert(DIM)) == 1.0
    assert unseen(taught()) == 0.0
    assert unseen(taught((LABELS, drawn(1, 9)[0]))) == 1 / 8


def test_the_first_questions_meet_every_group_once() -> None:
    """Four labels of very different size, none of which is known."""
    random = torch.Generator().manual_seed(0)
    truth = torch.tensor([0] * 40 + [1] * 12 + [2] * 6 + [3] * 5)
    images = F.normalize(
        torch.eye(4, DIM)[truth] + 0.05 * torch.randn(len(truth), DIM, generator=random)
    )
    expert, found = GaussianExpert(DIM), []
    for number in range(4):
        asked = int(explained(expert, images).argmax())
        expert.enter()
        expert.add(number + 1, number, images[asked])
        found.append(int(truth[asked]))
    assert sorted(found) == [0, 1, 2, 3]
    assert found[0] == 0  # where most are
