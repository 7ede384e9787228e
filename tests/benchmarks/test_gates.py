"""Questions about held-out images are the ones that the gate decides."""

from __future__ import annotations

from collections import Counter

import torch
from benchmarks.gates import VARIANTS, Task, everything
from tests.helpers import model, picture

from anytimecl.settings import Settings
from anytimecl.tail import look

SETTINGS = Settings(codec="tokens-fp16")
NAMES = (["cat", "dog", "elk"], ["oak", "elm", "fir"])


def task(names: list[str], first: int) -> Task:
    """Twelve examples to learn and three to ask about."""
    backbone = model()
    tokens = backbone.encode([picture(first + number) for number in range(15)])
    labels = [names[number % 3] for number in range(15)]
    held = look(tokens[12:], backbone.spec.tail.norm_eps)
    return Task(names, tokens[:12], labels[:12], held, labels[12:])


@torch.no_grad()
def test_every_kind_of_question_has_seen_labels_and_unseen_ones() -> None:
    tasks = [task(names, 20 * number) for number, names in enumerate(NAMES)]
    asked = list(everything(tasks, model(), SETTINGS))
    kinds = Counter(each.kind for each in asked)
    assert (kinds["union"], kinds["mix"]) == (4, 12)  # the tasks take turns to be the novel one
    assert kinds["class"]
    assert kinds["data"]
    for each in asked:
        assert not each.opinions.seen.all()
        if each.kind != "class":  # a fifth of three classes may be none
            assert each.opinions.seen.any()
        assert len(each.truth) == len(each.opinions.tuned)
        assert all(len(fn(each.opinions)) == len(each.truth) for fn in VARIANTS.values())


@torch.no_grad()
def test_the_truth_is_among_the_labels_asked() -> None:
    tasks = [task(names, 20 * number) for number, names in enumerate(NAMES)]
    union = [each for each in everything(tasks, model(), SETTINGS) if each.kind == "union"]
    ordered = sorted([*NAMES[0], *NAMES[1]])
    told = [[ordered[place] for place in each.truth.tolist()] for each in union]
    assert told == [tasks[1].truth, tasks[0].truth, tasks[0].truth, tasks[1].truth]
