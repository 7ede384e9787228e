"""Blends, and variants of the default one, on training images that nothing was learned from.

    python -m benchmarks.gates DATA [--tasks resisc12,pets,flowers102] [--seeds 0] [--device cpu]
                               [--eager 3]

A fifth of every training split, at most 800 images, is held out. Four kinds of questions about it:
*class* and *data* (each task alone: fifths of its classes; 2, 4, 8 and 16 % of its examples) at
the stages where labels are still unseen; and, with all tasks learned but one, *union* (every task
over the labels of all) and *mix* (a third of the learned labels, and all of the other task).
Prints accuracies, each the mean over its stages and tasks, and their mean.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from benchmarks.features import features
from rich.console import Console
from rich.table import Table
from torch import Tensor

from anytimecl.backbone import Backbone, load
from anytimecl.bench._progress import tell
from anytimecl.bench.scenarios import class_incremental, data_incremental
from anytimecl.blend import BLENDS as NAMES
from anytimecl.blend import Opinions, blend, gate, recalled
from anytimecl.learner import LearnerConfig
from anytimecl.recall import STRENGTH
from anytimecl.settings import Settings
from anytimecl.stream import StreamLearner
from anytimecl.tail import Seen, look

KINDS = ("class", "data", "union", "mix")
SHARES = (0.02, 0.04, 0.08, 0.16)
BLENDS = [name for name in reversed(NAMES) if name != "ocw_rounded"]  # the default last

Variant = Callable[[Opinions], Tensor]


class Task(NamedTuple):
    """A training split in two."""

    labels: list[str]  # of the task
    tokens: Tensor  # [example, token, width], to learn
    targets: list[str]
    held: Seen  # to ask about
    truth: list[str]


class Asked(NamedTuple):
    """A question to a stream at some stage."""

    kind: str
    opinions: Opinions
    truth: Tensor  # [image]


def gated(**settings: float) -> Variant:
    """The default blend, its gate with settings of its own."""

    def answers(opinions: Opinions) -> Tensor:
        heard = recalled(opinions)
        return gate(blend("paired", heard), heard, **settings)

    return answers


def voted(strength: float = 1.0, kept: float = 0.1) -> Variant:
    """The default blend, with votes of so many times the strength."""

    def answers(opinions: Opinions) -> Tensor:
        if opinions.votes is None:
            return blend("gated", opinions)
        louder = dataclasses.replace(opinions, votes=strength * opinions.votes)
        return blend("gated", recalled(louder, kept))

    return answers


def unpriced(opinions: Opinions) -> Tensor:
    """The default blend, if votes cost a label nothing."""
    if opinions.votes is None:
        return blend("gated", opinions)
    price = opinions.column(lambda record: record.seen / (record.seen + 1))
    return blend("recalled", dataclasses.replace(opinions, votes=opinions.votes + price))


def among_seen(opinions: Opinions) -> Tensor:
    """The default blend, if votes had no say in how much belongs to the seen labels."""
    return gate(blend("paired", recalled(opinions)), opinions)


def all_known(opinions: Opinions) -> Tensor:
    """The default blend, if the original model were right about every label."""
    sure = [dataclasses.replace(record, original=1.0) for record in opinions.records]
    heard = recalled(opinions)
    return gate(blend("paired", heard), dataclasses.replace(heard, records=sure))


def against_all(opinions: Opinions) -> Tensor:
    """The default blend, if seen labels were weighed against all unseen ones together."""
    seen, heard = opinions.seen, recalled(opinions)
    if seen.all() or not seen.any():
        return blend("gated", heard)
    unseen = [p * ~seen for p in (heard.tuned, heard.original)]
    rival = unseen[1].argmax(1, keepdim=True)
    together = [
        torch.where(seen, p, torch.zeros_like(p).scatter(1, rival, rest.sum(1, keepdim=True)))
        for p, rest in zip((heard.tuned, heard.original), unseen, strict=True)
    ]
    told = dataclasses.replace(heard, tuned=together[0], original=together[1])
    mixed = gate(blend("paired", heard), told)
    return torch.where(seen, mixed, heard.original)


VARIANTS: dict[str, Variant] = {
    **{name: lambda opinions, name=name: blend(name, opinions) for name in BLENDS},
    "no votes, a tenth kept": voted(0.0),
    "votes, nothing kept": voted(kept=0.0),
    "votes, a fifth kept": voted(kept=0.2),
    "votes of strength 3": voted(3 / STRENGTH),
    "votes of strength 8": voted(8 / STRENGTH),
    "votes without a price": unpriced,
    "votes among the seen labels alone": among_seen,
    "gate, against all unseen labels": against_all,
    "gate, the tuned model's odds alone": gated(many=1e9),
    "gate, the original's for any label": all_known,
    "gate, no caution": gated(caution=0.0),
    "gate, caution 0.5": gated(caution=0.5),
    "gate, caution 1.5": gated(caution=1.5),
    "gate, 10 are many": gated(many=10.0),
    "gate, 40 are many": gated(many=40.0),
}


def open_task(archive: Path, backbone: Backbone, seed: int) -> Task:
    """In two parts."""
    train = features(archive, "train", backbone)
    order = np.random.default_rng(seed).permutation(len(train.tokens))
    held, rest = np.split(order, [min(800, len(order) // 5)])
    tokens = torch.from_numpy(train.tokens[held]).to(backbone.device).float()
    return Task(
        list(train.names),
        torch.from_numpy(train.tokens[rest]).to(backbone.device),
        [train.names[target] for target in train.targets[rest]],
        look(tokens, backbone.spec.tail.norm_eps),
        [train.names[target] for target in train.targets[held]],
    )


def stream_of(tasks: Sequence[Task], backbone: Backbone, settings: Settings) -> StreamLearner:
    """Knows nothing yet; the examples of all tasks, one task after the other."""
    names = list(dict.fromkeys(name for task in tasks for name in task.labels))
    return StreamLearner(
        backbone.spec,
        backbone.tail,
        settings,
        torch.cat([task.tokens for task in tasks]),
        [label for task in tasks for label in task.targets],
        dict(zip(names, backbone.embed_labels(names), strict=True)),
    )


def ask(
    kind: str, stream: StreamLearner, backbone: Backbone, task: Task, labels: Sequence[str]
) -> Asked:
    """The held-out images of a task whose label is among these."""
    names = sorted(set(labels))
    inside = [i for i, label in enumerate(task.truth) if label in names]
    images = task.held.map(lambda tensor: tensor[inside])
    vectors = backbone.embed_labels(names)
    opinions = stream.opinions(images, names, vectors)
    truth = torch.tensor([names.index(task.truth[i]) for i in inside], device=vectors.device)
    return Asked(kind, opinions, truth)


def alone(task: Task, backbone: Backbone, settings: Settings) -> Iterator[Asked]:
    """Class- and data-incremental."""
    kinds = {
        "class": class_incremental(task.targets, settings.seed),
        "data": data_incremental(len(task.targets), settings.seed, SHARES),
    }
    for kind, stages in kinds.items():
        stream = stream_of([task], backbone, settings)
        for stage in stages:
            stream.learn(stage.examples)
            if set(task.labels) - stream.rows.keys():
                yield ask(kind, stream, backbone, task, task.labels)


def together(
    tasks: Sequence[Task], novel: Task, backbone: Backbone, settings: Settings
) -> Iterator[Asked]:
    """All tasks learned, one after the other, but one."""
    stream, start = stream_of(tasks, backbone, settings), 0
    random = np.random.default_rng(settings.seed)
    for task in tasks:
        stream.learn((start + random.permutation(len(task.targets))).tolist())
        start += len(task.targets)
    learned = [label for task in tasks for label in task.labels]
    for task in (*tasks, novel):
        yield ask("union", stream, backbone, task, learned + novel.labels)
    order = random.permutation(learned).tolist()
    for part in range(3):
        for task in (*tasks, novel):
            yield ask("mix", stream, backbone, task, order[part::3] + novel.labels)


def everything(tasks: Sequence[Task], backbone: Backbone, settings: Settings) -> Iterator[Asked]:
    """Every question."""
    for task in tasks:
        yield from alone(task, backbone, settings)
    for left in range(len(tasks)):
        yield from together([*tasks[:left], *tasks[left + 1 :]], tasks[left], backbone, settings)


@torch.no_grad()
def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--tasks", default="resisc12,pets,flowers102")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--eager", type=float, default=LearnerConfig().eager)
    given = parser.parse_args(words)
    if "," not in given.tasks:
        parser.error("--tasks needs two at least: one is learned while another is not")
    backbone = load(given.model, device=given.device)
    right: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seed in map(int, given.seeds.split(",")):
        archives = [given.data / f"{name}.zip" for name in given.tasks.split(",")]
        tasks = [open_task(archive, backbone, seed) for archive in archives]
        learner = LearnerConfig(eager=given.eager)
        settings = Settings(codec="tokens-fp16", seed=seed, learner=learner)
        for number, asked in enumerate(everything(tasks, backbone, settings), 1):
            tell(f"seed {seed}: question {number}, {asked.kind}")
            for name, variant in VARIANTS.items():
                found = variant(asked.opinions).argmax(1) == asked.truth
                if len(found):  # of a few labels there may be no image
                    right[name][asked.kind].append(100 * float(found.float().mean()))
    show(right)


def show(right: dict[str, dict[str, list[float]]]) -> None:
    asked = [kind for kind in KINDS if right["original"][kind]]
    table = Table("", *asked, "mean", title="Accuracy on held-out training images")
    for name, kinds in right.items():
        means = [float(np.mean(kinds[kind])) for kind in asked]
        table.add_row(name, *(f"{value:.2f}" for value in (*means, np.mean(means))))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
