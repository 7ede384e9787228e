"""Transfer of the instance expert's state to a new leaf."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from anytimecl.model import Model


def instances_of(
    model: Model, numbers: Mapping[int, int], labels: Sequence[str]
) -> dict[str, Tensor]:
    """State of the instance expert for some examples, with their new numbers and rows."""
    expert = copy.deepcopy(model.instances)
    expert.remove(set(expert.examples) - numbers.keys())
    state = expert.state()
    place = {model.rows[label]: row for row, label in enumerate(labels)}
    for name, new in (("instance.examples", numbers), ("instance.rows", place)):
        state[name] = torch.tensor([new[old] for old in state[name].tolist()], dtype=torch.long)
    return state
