"""Label errors: the probability that a stored example's label is wrong.

From leave-one-out scores of the Gaussian expert, in closed form, in two passes: since label errors
affect its statistics, the second pass uses only examples that the first one did not suspect.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anytimecl.experts import GaussianExpert
from anytimecl.pool import START

CHUNK = 256  # examples compared at once
WEIGHT = START["gaussian"]  # tempers the scores, which are overconfident


def suspicion(
    expert: GaussianExpert,
    images: Tensor,  # [example, dim], unit vectors of the original model
    rows: Sequence[int],  # [example], of their labels
) -> Tensor:
    """Leave-one-out probability that the label is wrong, [example]."""
    if not len(images):
        return torch.empty(0)
    trusted = (_doubts(expert, images, rows, 1.0) < 0.5).nonzero().flatten().tolist()
    if not trusted:
        return _doubts(expert, images, rows, WEIGHT)
    sound = GaussianExpert(expert.dim, expert.prior)
    own = [rows[i] for i in trusted]
    sound.count(range(1, len(own) + 1), own, images[trusted], expert.now.rows)
    second = _doubts(sound, images, rows, WEIGHT, known=set(trusted))
    lost = sound.now.counts[list(rows)] == 0  # every example of the label was suspected
    if not lost.any():
        return second
    return torch.where(lost, _doubts(expert, images, rows, WEIGHT), second)


def without_itself(expert: GaussianExpert, images: Tensor, rows: Sequence[int]) -> Tensor:
    """G [example, row], leave-one-out for each example's own label.

    It is 0, as for an unseen label, if the example is the only one of its label.
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
    """Probability of a label error [example]; the expert learned all examples, or those `known`."""
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
