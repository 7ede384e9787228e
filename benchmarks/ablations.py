"""What each part of the pool is worth, on training images that nothing was learned from.

    python -m benchmarks.ablations DATA [--tasks resisc12,pets,flowers102] [--seeds 0,1,2]
                                   [--shots 1,2,4,8] [--columns name,code,class,data]
                                   [--only pool,tuned] [--imprint 0] [--model embedded]
                                   [--device cpu] [--out FILE]
    python -m benchmarks.ablations show FILE...

A fifth of the examples of every label, at most ten, is held out for evaluation. *name* and *code*:
this many examples per label are learned (0: all), with labels by name or by a meaningless code.
*class*: one fifth of the classes after the other, with all remaining examples, evaluated over all
classes while some are unseen. *data*: all examples in random order, evaluated over all classes
after 2, 4, 8, 16 and 32 per cent, when numbers of examples per label differ a lot.

A stream is learned once; then one part of the pool is changed at a time. Options that change the
learning itself (`--imprint`) need a run of their own; --only selects the parts to change. Prints
the mean over tasks and shots, and its spread over seeds; --out appends every figure to a file as
JSON, which `show` reads.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from benchmarks.features import features
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor

from anytimecl import blend as blends
from anytimecl import evidence, pool
from anytimecl.backbone import Backbone, load
from anytimecl.blend import POOL, Opinions, blend
from anytimecl.experts import gaussian, instance
from anytimecl.model import Model
from anytimecl.settings import LearnerConfig, Settings
from anytimecl.stream import StreamLearner
from anytimecl_lab._progress import tell
from anytimecl_lab.scenarios import class_incremental, data_incremental

HELD = 10  # images per label, at most
Part = tuple[object, str, object]  # where, name, another value
Read = Callable[[Opinions], Tensor]
Line = dict[str, Any]


class Variant(NamedTuple):
    """The pool with some parts changed."""

    parts: tuple[Part, ...] = ()
    without: tuple[str, ...] = ()  # experts
    prior: bool = True
    read: Read = lambda opinions: blend(POOL, opinions)


def gated(**settings: float) -> Part:
    return blends, "gate", lambda *given: pool.gate(*given, **settings)


def start(tuned: float, original: float, of_images: float) -> Part:
    return pool, "START", {"tuned": tuned, "original": original, "gaussian": of_images}


def silenced(opinions: Opinions) -> Tensor:
    return blend(POOL, replace(opinions, copy=None))


def by_models(opinions: Opinions) -> Tensor:
    return blend(POOL, replace(opinions, familiar=None))


def with_typical(opinions: Opinions) -> dict[str, Tensor]:
    """Likelihood ratios without typical scores subtracted: favours labels with many examples."""
    return everyone(opinions) | opinions.scores


def fit_with_typical(model: Model, without: Sequence[str] = ()) -> None:
    scores, target, typical = model.evidence_scores()
    scores["gaussian"] = scores["gaussian"] + typical
    model.weights = pool.weigh(scores, target, names=model.spec.names)


def vouching(
    expert: gaussian.GaussianExpert, images: Tensor, rows: Sequence[int], examples: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Leave-one-out in the label's mean only."""
    return left_out(expert, images, rows, [expert.step] * len(rows))


def one_fewer(
    expert: gaussian.GaussianExpert, images: Tensor, rows: Sequence[int], examples: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """As if each label had one example fewer."""
    expert.typical()  # computed with all examples, before the patch

    def fewer(space: gaussian.Space, counts: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        return predictive(space, counts - 1, means)

    with patch.object(gaussian.Space, "predictive", fewer):
        return left_out(expert, images, rows, examples)


# Parts of the Gaussian expert, by the name of what is set in its module.
EXPERT: dict[str, tuple[str, object]] = {
    "prior of 200 examples": ("STRENGTH", 200.0),
    "prior of 1500 examples": ("STRENGTH", 1500.0),
    "ridge: always 0.5": ("ridge", lambda dim, freedom: 0.5),
    "ridge: half": ("ridge", lambda dim, freedom: 0.5 * dim / freedom),
    "ridge: twice": ("ridge", lambda dim, freedom: 2 * dim / freedom),
    "floor 0": ("FLOOR", 0.0),
    "floor 0.1": ("FLOOR", 0.1),
    "floor 0.2": ("FLOOR", 0.2),
    "anchor 5": ("ANCHOR", 5.0),
    "anchor 100": ("ANCHOR", 100.0),
}
everyone = Opinions.everyone
predictive = gaussian.Space.predictive
left_out = gaussian.GaussianExpert.judged_left_out
VARIANTS: dict[str, Variant] = {
    **{name: Variant(read=lambda o, name=name: blend(name, o)) for name in ("original", "tuned")},
    "Gaussian expert alone": Variant(read=lambda o: o.scores["gaussian"]),
    "pool": Variant(),
    "without the tuned model": Variant(without=("tuned",)),
    "without the original model": Variant(without=("original",)),
    "without the Gaussian expert": Variant(without=("gaussian",)),
    "without the instance expert": Variant(read=silenced),
    "instance expert: every other image a copy": Variant(((instance, "COPIES", 0.5),)),
    "weights as they start": Variant(((pool, "CERTAINTY", 1e9),)),
    "certainty 0.5": Variant(((pool, "CERTAINTY", 0.5),)),
    "certainty 8": Variant(((pool, "CERTAINTY", 8.0),)),
    "start 0.4, 0.2, 0.15": Variant((start(0.4, 0.2, 0.15),)),
    "start 0.1, 0.1, 0.2": Variant((start(0.1, 0.1, 0.2),)),
    "start 0.2, 0.2, 0.2": Variant((start(0.2, 0.2, 0.2),)),
    "evidence of the latest 64": Variant(((evidence, "RECENT", 64),)),
    "no prior": Variant(prior=False),
    **{title: Variant(((gaussian, *part),)) for title, part in EXPERT.items()},
    "evidence: examples stay in Sw": Variant(
        ((gaussian.GaussianExpert, "judged_left_out", vouching),)
    ),
    "evidence: one example fewer": Variant(
        ((gaussian.GaussianExpert, "judged_left_out", one_fewer),)
    ),
    "scores with what is typical": Variant(
        ((Opinions, "everyone", with_typical), (Model, "_fit", fit_with_typical))
    ),
    "gate: models alone": Variant(read=by_models),
    "gate: familiar after 50 examples": Variant(((pool, "DOUBT", 50.0),)),
    "gate: the tuned model's odds": Variant((gated(many=1e9),)),
    "gate: 10 are many": Variant((gated(many=10.0),)),
    "gate: 40 are many": Variant((gated(many=40.0),)),
    "gate: no caution": Variant((gated(caution=0.0),)),
    "gate: caution 2": Variant((gated(caution=2.0),)),
}


class Task(NamedTuple):
    """A training split, divided into two parts."""

    labels: list[str]
    tokens: Tensor  # [example, token, width], for training
    targets: list[str]
    held: Tensor  # [image, token, width], held out
    truth: Tensor  # [image], index into `labels`
    vectors: dict[str, Tensor]


def held_out(targets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each example is held out, [example]."""
    random = np.random.default_rng(0)
    held = np.zeros(len(targets), bool)
    for label in range(targets.max() + 1):
        own = random.permutation(np.flatnonzero(targets == label))
        held[own[: min(HELD, len(own) // 5)]] = True
    return held


def open_task(archive: Path, backbone: Backbone, *, coded: bool) -> Task:
    """A task with a fixed division into two parts."""
    train = features(archive, "train", backbone)
    held = held_out(train.targets)
    names = [f"item {at:03d}" if coded else name for at, name in enumerate(train.names)]
    return Task(
        names,
        torch.from_numpy(train.tokens[~held]).to(backbone.device),
        [names[target] for target in train.targets[~held]],
        torch.from_numpy(train.tokens[held]).to(backbone.device).float(),
        torch.from_numpy(train.targets[held]).to(backbone.device),
        dict(zip(names, backbone.embed_labels(names), strict=True)),
    )


def learner_of(task: Task, backbone: Backbone, seed: int, config: LearnerConfig) -> StreamLearner:
    settings = Settings(codec="tokens-fp16", seed=seed, learner=config)
    given = (backbone.spec, backbone.tail, settings, task.tokens, task.targets, task.vectors)
    return StreamLearner(*given, prior=backbone.prior)


def streams(
    task: Task,
    backbone: Backbone,
    seed: int,
    shots: Sequence[int],
    config: LearnerConfig,
    columns: Sequence[str],
) -> Iterator[tuple[str, StreamLearner]]:
    """Each learner when it is evaluated, with its column."""
    random, targets = np.random.default_rng(seed), np.array(task.targets)
    own = [random.permutation(np.flatnonzero(targets == label)) for label in task.labels]
    few = next((column for column in columns if column in ("name", "code")), None)
    for count in shots:
        if few and min(map(len, own)) >= count:
            learner = learner_of(task, backbone, seed, config)
            chosen = np.concatenate([some[: count or None] for some in own])
            learner.learn(random.permutation(chosen).tolist())
            yield few, learner
    stages = {
        "class": class_incremental(task.targets, seed)[:-1],
        "data": data_incremental(len(targets), seed)[:-2],
    }
    for column in (column for column in stages if column in columns):
        learner = learner_of(task, backbone, seed, config)
        for stage in stages[column]:
            learner.learn(stage.examples)
            yield column, learner


def asked(model: Model, variant: Variant, task: Task, vectors: Tensor) -> float:
    """Accuracy on the held-out images, in per cent."""
    kept = model.weights, model.familiar, model.gaussian.prior
    with ExitStack() as changed:
        for where, name, value in variant.parts:
            changed.enter_context(patch.object(where, name, value))
        if not variant.prior:
            model.gaussian.prior = None
        model.gaussian._follow()
        model._fit(without=variant.without)
        right = [
            variant.read(model.opinions(some, task.labels, vectors)).argmax(1) == truth
            for some, truth in zip(task.held.split(256), task.truth.split(256), strict=True)
        ]
    model.weights, model.familiar, model.gaussian.prior = kept
    model.gaussian._follow()
    return 100 * float(torch.cat(right).float().mean())


@torch.no_grad()
def main(words: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["show"]:
        show([json.loads(x) for file in words[1:] for x in Path(file).read_text().splitlines()])
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--tasks", default="resisc12,pets,flowers102")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--shots", default="1,2,4,8")
    parser.add_argument("--columns", default="name,code,class,data")
    parser.add_argument("--only", help="some of the variants")
    parser.add_argument("--imprint", type=float, default=LearnerConfig().imprint)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    backbone = load(given.model, device=given.device)
    config = LearnerConfig(imprint=given.imprint)
    shots = [int(count) for count in given.shots.split(",")]
    chosen = given.only.split(",") if given.only else list(VARIANTS)
    variants = {title: VARIANTS[title] for title in chosen}
    lines: list[Line] = []
    for name in given.tasks.split(","):
        for coded in (False, True):
            columns = [x for x in given.columns.split(",") if (x == "code") == coded]
            if not columns:
                continue
            task = open_task(given.data / f"{name}.zip", backbone, coded=coded)
            for seed in map(int, given.seeds.split(",")):
                about = {"task": name, "seed": seed, "imprint": given.imprint}
                for column, learner in streams(task, backbone, seed, shots, config, columns):
                    about |= {"column": column, "examples": learner.learner.optimiser.steps}
                    found = list(compared(learner.model, task, about, variants))
                    lines += found
                    tell(str(found[-1]))
                    if given.out:
                        with given.out.open("a") as file:
                            file.writelines(json.dumps(line) + "\n" for line in found)
    show(lines)


def compared(
    model: Model, task: Task, about: Line, variants: Mapping[str, Variant]
) -> Iterator[Line]:
    """Accuracy of each variant on the held-out images."""
    vectors = torch.stack([task.vectors[label] for label in task.labels])
    for title, variant in variants.items():
        score = round(asked(model, variant, task, vectors), 4)
        yield about | {"variant": title, "accuracy": score}


def show(lines: Sequence[Line]) -> None:
    """Print the mean over tasks and stages, with its spread over seeds."""
    scores: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        scores[line["variant"], line["column"]][line["seed"]].append(line["accuracy"])
    columns = [kind for kind in ("name", "code", "class", "data") if ("pool", kind) in scores]
    table = Table("", *columns, title="Per cent right on held-out training images")
    for title in dict.fromkeys(line["variant"] for line in lines):
        cells = []
        for kind in columns:
            means = [float(np.mean(found)) for found in scores[title, kind].values()]
            cells.append(f"{np.mean(means):.2f} ± {np.std(means):.2f}")
        table.add_row(title, *cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
