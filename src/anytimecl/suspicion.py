"""How likely the label of a stored example is wrong, from what the experts say without it.

The Gaussian expert can be asked that in closed form. It is asked twice: wrong labels have gone into
what it knows, so the second time it is one that knows only the examples it had no doubt about.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anytimecl.experts import GaussianExpert
from anytimecl.pool import START

CHUNK = 256  # examples that are compared at once
WEIGHT = START["gaussian"]  # of the expert's word: by itself it is far too sure to rank by


def suspicion(
    expert: GaussianExpert,
    images: Tensor,  # [example, dim], unit vectors of the original model
    rows: Sequence[int],  # [example], of their labels
) -> Tensor:
    """The probability [example] that the label is wrong, as said without that example."""
    if not len(images):
        return torch.empty(0)
    trusted = (_doubts(expert, images, rows, 1.0) < 0.5).nonzero().flatten().tolist()
    if not trusted:
        return _doubts(expert, images, rows, WEIGHT)
    sound = GaussianExpert(expert.dim, expert.prior)
    own = [rows[i] for i in trusted]
    sound.count(range(1, len(own) + 1), own, images[trusted], expert.now.rows)
    second = _doubts(sound, images, rows, WEIGHT, known=set(trusted))
    lost = sound.now.counts[list(rows)] == 0  # of a label nobody is left of, nothing more is known
    return (
        torch.where(lost, _doubts(expert, images, rows, WEIGHT), second) if lost.any() else second
    )


def without_itself(expert: GaussianExpert, images: Tensor, rows: Sequence[int]) -> Tensor:
    """G [example, row], of each example as if it had not been learned.

    To a label that it is the only example of, it is as to one that nobody ever saw: 0.
    """
    own = torch.tensor(rows, dtype=torch.long)
    everyone = expert.scores(images, range(expert.now.rows))
    everyone[range(len(own)), own] = expert.left_out(images, rows)[range(len(own)), own]
    return everyone.masked_fill(expert.now.counts == 0, -torch.inf)


def _doubts(
    expert: GaussianExpert,
    images: Tensor,
    rows: Sequence[int],
    weight: float,
    known: set[int] | None = None,
) -> Tensor:
    """By an expert who has learned all of these examples, or those `known` alone."""
    found = []
    for start in range(0, len(images), CHUNK):
        places = range(start, min(start + CHUNK, len(images)))
        mine = [i for i in places if known is None or i in known]
        scores = expert.scores(images[list(places)], range(expert.now.rows))
        scores = scores.masked_fill(expert.now.counts == 0, -torch.inf)
        if mine:
            at = [i - start for i in mine]
            scores[at] = without_itself(expert, images[mine], [rows[i] for i in mine])
        own = torch.tensor([rows[i] for i in places])
        scores[range(len(own)), own] = scores[range(len(own)), own].clamp_min(-1e30)
        sure = (weight * scores.double()).log_softmax(1)[range(len(own)), own]
        found.append(-torch.expm1(sure.clamp(max=0)))
    return torch.cat(found)
