"""The paper's scenarios: streams of examples and evaluation sets, as pure seeded functions.

A stream is a list of stages; a stage has the examples that arrive in it, in order, as indices into
the run's training examples. A question is a set of test images with their candidate labels.
Questions always cover the whole task, unseen classes included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

DATA_STAGES = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0)
FIFTHS = 5
QUARTERS = (0.25, 0.5, 0.75, 1.0)
SHOTS = (1, 2, 4, 8, 16)
NOVEL_LABELS = 100
MIX_SPLITS = 5
MIX_PER_CLASS = 100
THEIRS = "mix (TreeProbe)"  # kind of question in the paper's predecessor
SEEN = "tuned if all are seen"  # reading: the simple rule in the paper's section on MTIL
SURE, FOREIGN = "calibration", "none-of-these"  # kinds of answers that are not accuracies
REFUSALS = ("AUROC", "own refused", "foreign refused")


@dataclass(frozen=True)
class Stage:
    """Examples that arrive before an evaluation."""

    name: str
    examples: tuple[int, ...]  # new ones, in order of arrival
    whole: bool = True  # False: stage-wise methods wait until the task is complete


@dataclass(frozen=True)
class Question:
    """Test images by task and index, and their candidate labels."""

    name: str
    kind: str  # "task", or the kind of flexible inference: "zero-shot", "union", "mix", THEIRS
    candidates: tuple[str, ...]
    images: tuple[tuple[str, int], ...]  # task, index


# ------------------------------------------------------------------------------------- streams


def data_incremental(count: int, seed: int, shares: Sequence[float] = DATA_STAGES) -> list[Stage]:
    """All examples in random order, in stages that end at these shares of them.

    >>> [len(stage.examples) for stage in data_incremental(100, seed=0)]
    [2, 2, 4, 8, 16, 32, 36]
    """
    order = np.random.default_rng(seed).permutation(count).tolist()
    ends = [max(1, round(count * share)) for share in shares]
    starts = [0, *ends[:-1]]
    return [
        Stage(f"{100 * share:g} %", tuple(order[start:end]))
        for share, start, end in zip(shares, starts, ends, strict=True)
    ]


def class_incremental(labels: Sequence[str], seed: int, parts: int = FIFTHS) -> list[Stage]:
    """A random fifth of the classes per stage; examples of a stage in random order.

    >>> stages = class_incremental(["a", "b", "c", "a", "b", "c"], seed=0, parts=3)
    >>> [sorted(stage.examples) for stage in stages]
    [[2, 5], [0, 3], [1, 4]]
    """
    rng = np.random.default_rng(seed)
    classes = rng.permutation(sorted(set(labels))).tolist()
    part_of = {name: place * parts // len(classes) for place, name in enumerate(classes)}
    order = rng.permutation(len(labels)).tolist()
    return [
        Stage(f"{part + 1}/{parts}", tuple(i for i in order if part_of[labels[i]] == part))
        for part in range(parts)
    ]


def few_shot(labels: Sequence[str], seed: int, shots: Sequence[int] = SHOTS) -> list[Stage]:
    """Stages with a number of examples per label, and one with all, each for a separate model.

    Smaller samples are subsets of larger ones. Numbers larger than the smallest class are left out.
    The stage with all examples has the order of data-incremental learning.

    >>> stages = few_shot(["a", "b", "a", "b", "a"], seed=0)
    >>> [(stage.name, len(stage.examples)) for stage in stages]
    [('1', 2), ('2', 4), ('all', 5)]
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels)).tolist()
    places: dict[str, list[int]] = {}
    for i in order:
        places.setdefault(labels[i], []).append(i)
    least = min(map(len, places.values()))
    stages = []
    for shot in shots:
        if shot <= least:
            chosen = [i for own in places.values() for i in own[:shot]]
            stages.append(Stage(f"{shot}", tuple(rng.permutation(chosen).tolist())))
    return [*stages, Stage("all", tuple(order))]


def task_incremental(
    tasks: Mapping[str, Sequence[int]], seed: int, shares: Sequence[float] = QUARTERS
) -> list[Stage]:
    """One task after the other, in the given order, each in random order and in quarters.

    >>> stages = task_incremental({"pets": range(4), "food": range(4, 6)}, seed=0, shares=(0.5, 1))
    >>> [(stage.name, len(stage.examples), stage.whole) for stage in stages[:2]]
    [('pets 50 %', 2, False), ('pets 100 %', 2, True)]
    """
    rng = np.random.default_rng(seed)
    stages = []
    for task, indices in tasks.items():
        order = [indices[i] for i in rng.permutation(len(indices))]
        ends = [max(1, round(len(order) * share)) for share in shares]
        for share, start, end in zip(shares, [0, *ends[:-1]], ends, strict=True):
            name = f"{task} {100 * share:g} %"
            stages.append(Stage(name, tuple(order[start:end]), whole=share == shares[-1]))
    return stages


def mtil(tasks: Mapping[str, Sequence[int]], seed: int) -> list[Stage]:
    """One whole task after the other, for the metrics Transfer, Avg and Last."""
    stages = task_incremental(tasks, seed, shares=(1.0,))
    return [Stage(task, stage.examples) for task, stage in zip(tasks, stages, strict=True)]


def capped(labels: Sequence[str], most: int | None, seed: int) -> list[int]:
    """A random sample of at most `most` examples per class, in the original order.

    >>> capped(["a", "a", "a", "b"], most=1, seed=0)
    [2, 3]
    """
    if most is None:
        return list(range(len(labels)))
    kept: dict[str, int] = {}
    chosen = []
    for i in np.random.default_rng(seed).permutation(len(labels)).tolist():
        if kept.get(labels[i], 0) < most:
            kept[labels[i]] = kept.get(labels[i], 0) + 1
            chosen.append(i)
    return sorted(chosen)


def held_out(
    labels: Sequence[str], share: int, most: int, seed: int
) -> tuple[list[int], list[int]]:
    """Training and validation examples: 1 / `share` of each class, at most `most`, is held out.

    At least one of each class, unless the class has only one example.

    >>> held_out(["a", "a", "a", "b", "b", "c"], share=3, most=9, seed=0)
    ([0, 1, 4, 5], [2, 3])
    """
    total = Counter(labels)
    held: Counter[str] = Counter()
    kept: list[int] = []
    asked: list[int] = []
    for i in np.random.default_rng(seed).permutation(len(labels)).tolist():
        label = labels[i]
        spare = min(most, max(1, total[label] // share)) if total[label] > 1 else 0
        (asked if held[label] < spare else kept).append(i)
        held[label] += 1
    return sorted(kept), sorted(asked)


# ----------------------------------------------------------------------------------- questions


def whole_task(task: str, labels: Sequence[str], candidates: Sequence[str]) -> Question:
    """All test images of a task, over all its labels."""
    images = tuple((task, i) for i in range(len(labels)))
    return Question(task, "task", tuple(candidates), images)


def strictly_novel(targets: Mapping[str, Sequence[str]], novel: Sequence[str]) -> list[int]:
    """Test images of a novel task whose labels no target task has.

    The paper says "A novel task contains none of these labels", but real data sets share some
    names.

    >>> strictly_novel({"cifar100": ["rose", "bee"]}, ["rose", "accordion"])
    [1]
    """
    seen = {label for labels in targets.values() for label in labels}
    return [i for i, label in enumerate(novel) if label not in seen]


def flexible(
    targets: Mapping[str, Sequence[str]], novel: Mapping[str, Sequence[str]], seed: int
) -> list[Question]:
    """Questions for zero-shot, union and mix, from the labels of each task's test images."""
    kept = {task: strictly_novel(targets, labels) for task, labels in novel.items()}
    pools = {task: [(i, novel[task][i]) for i in indices] for task, indices in kept.items()}
    names = sorted({label for pool in pools.values() for _, label in pool})
    rng = np.random.default_rng(seed)
    some = set(rng.permutation(names)[:NOVEL_LABELS].tolist())
    return [
        *_zero_shot(pools),
        *_union(targets, pools, some),
        *_mix(targets, pools, some, rng),
        *_their_mix(targets, names, np.random.default_rng(seed)),
    ]


Pools = Mapping[str, Sequence[tuple[int, str]]]  # novel task -> test images with their labels


def _zero_shot(pools: Pools) -> list[Question]:
    """Each novel task over its own labels."""
    return [
        Question(
            task,
            "zero-shot",
            tuple(sorted({label for _, label in pool})),
            tuple((task, i) for i, _ in pool),
        )
        for task, pool in pools.items()
        if pool
    ]


def _union(targets: Mapping[str, Sequence[str]], pools: Pools, some: set[str]) -> list[Question]:
    """Each task, over the labels of all target tasks and some of the novel ones."""
    candidates = tuple(sorted({y for labels in targets.values() for y in labels} | some))
    asked = {task: list(range(len(labels))) for task, labels in targets.items()}
    asked |= {task: [i for i, label in pool if label in some] for task, pool in pools.items()}
    return [
        Question(task, "union", candidates, tuple((task, i) for i in indices))
        for task, indices in asked.items()
        if indices
    ]


def _mix(
    targets: Mapping[str, Sequence[str]], pools: Pools, some: set[str], rng: np.random.Generator
) -> list[Question]:
    """Random fifths of the target labels, plus the same novel labels; 100 images per class."""
    images = [*_images(targets), *((y, task, i) for task, pool in pools.items() for i, y in pool)]
    return [
        _mixed(part, "mix", own | some, images, rng)
        for part, own in enumerate(_fifths(targets, rng), start=1)
    ]


def _their_mix(
    targets: Mapping[str, Sequence[str]], novel: Sequence[str], rng: np.random.Generator
) -> list[Question]:
    """The predecessor's mix: a fifth of the target labels, as many novel ones, target images only.

    Its union differs from the paper's only in the mean, in which target and novel tasks count half
    each; `Results.half_and_half` computes it from the same answers.
    """
    questions = []
    for part, own in enumerate(_fifths(targets, rng), start=1):
        others = set(rng.permutation(list(novel))[: len(own)].tolist())
        questions.append(_mixed(part, THEIRS, own | others, _images(targets), rng))
    return [question for question in questions if question.images]


Images = Sequence[tuple[str, str, int]]  # label, task, index


def _images(targets: Mapping[str, Sequence[str]]) -> Images:
    return [(y, task, i) for task, labels in targets.items() for i, y in enumerate(labels)]


def _fifths(targets: Mapping[str, Sequence[str]], rng: np.random.Generator) -> list[set[str]]:
    """A random division of all target labels."""
    labels = rng.permutation(sorted({y for each in targets.values() for y in each})).tolist()
    return [
        {y for at, y in enumerate(labels) if at * MIX_SPLITS // len(labels) == part}
        for part in range(MIX_SPLITS)
    ]


def _mixed(
    part: int, kind: str, candidates: set[str], images: Images, rng: np.random.Generator
) -> Question:
    """At most 100 images of each candidate."""
    inside = [image for image in images if image[0] in candidates]
    chosen = capped([y for y, _, _ in inside], MIX_PER_CLASS, int(rng.integers(2**31)))
    asked = tuple((inside[k][1], inside[k][2]) for k in chosen)
    return Question(f"mix {part}/{MIX_SPLITS}", kind, tuple(sorted(candidates)), asked)
