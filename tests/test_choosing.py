"""Which image would teach most, against an expert who is taught the answer."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from anytimecl.choosing import (
    LIKELY,
    Supposed,
    believed,
    expected_change,
    explained,
    most_telling,
    unseen,
)
from anytimecl.experts import GaussianExpert

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


def test_a_label_with_another_image_is_as_if_that_had_been_learned() -> None:
    images, others = drawn(5, 1), drawn(4, 2)
    for row in range(LABELS):
        found = Supposed.of(taught(), images, others).scores(row)
        for place, other in enumerate(others):
            slow = taught((row, other)).scores(images, [row])[:, 0]
            torch.testing.assert_close(found[:, place], slow, rtol=1e-4, atol=1e-4)
    new = Supposed.of(taught(), images, others).scores(-1)
    slow = taught((LABELS, others[0])).scores(images, [LABELS])[:, 0]
    torch.testing.assert_close(new[:, 0], slow, rtol=1e-4, atol=1e-4)


def test_the_expected_change_is_that_of_teaching_every_answer() -> None:
    asked, others, rows = drawn(8, 3), drawn(20, 4), [0, 1, -1]  # the last was never seen
    named = {name: drawn(n, 5).log_softmax(1)[:, :3] for name, n in (("asked", 8), ("others", 20))}
    expert = taught()
    before = believed(expert, others, named["others"], rows)
    mine = believed(expert, asked, named["asked"], rows)
    found = expected_change(expert, mine, before, rows)
    for place, image in enumerate(asked):
        slow = 0.0
        for column, chance in enumerate(mine.scores[place].exp().tolist()):
            if chance > LIKELY:
                row = rows[column] if rows[column] >= 0 else LABELS
                known = [row if column == at else each for at, each in enumerate(rows)]
                after = believed(taught((row, image)), others, named["others"], known).scores.exp()
                slow += chance * float((after - before.scores.exp())[:, column].square().sum())
        torch.testing.assert_close(float(found[place]), slow, rtol=1e-3, atol=1e-3)
    assert most_telling(expert, mine, before, rows, chance=1.0) == int(found.argmax())


def test_a_label_of_its_own_explains_what_no_label_explains_better() -> None:
    asked, others, expert = drawn(8, 3), drawn(20, 4), taught()
    found = explained(expert, asked, others)
    known = expert.scores(others, range(LABELS)).amax(1).clamp_min(0)
    for place, image in enumerate(asked):
        own = taught((LABELS, image)).scores(others, [LABELS])[:, 0]
        slow = (torch.maximum(own, known) - known).sum()
        torch.testing.assert_close(found[place], slow, rtol=1e-3, atol=1e-3)
    nothing = believed(expert, asked, torch.empty(8, 0), [])
    assert most_telling(GaussianExpert(DIM), nothing, nothing, [], chance=0.99) == int(
        explained(GaussianExpert(DIM), asked, asked).argmax()
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
        asked = int(explained(expert, images, images).argmax())
        expert.enter()
        expert.add(number + 1, number, images[asked])
        found.append(int(truth[asked]))
    assert sorted(found) == [0, 1, 2, 3]
    assert found[0] == 0  # where most are
