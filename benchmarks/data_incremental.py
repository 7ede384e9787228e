"""Data-incremental learning: accuracy over the whole task as its examples arrive one by one.

    python -m benchmarks.data_incremental DATA OUT [--tasks cifar100,pets,resisc12] [--seeds 0,1,2]
                                          [--model embedded] [--device cpu]

Each example is scored, learned and drawn again as `AnytimeClassifier` does it, from full tokens;
only encoding is done ahead. After 2, 4, 8, 16, 32, 64 and 100 % of the examples every blend answers
the whole test split. Prints a table (mean over seeds) and writes every figure to OUT as JSON lines;
figures that are there already are not computed again.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from benchmarks.features import Features, features
from rich.console import Console
from rich.table import Table

from anytimecl.backbone import Backbone, load
from anytimecl.blend import BLENDS, blend
from anytimecl.settings import Settings
from anytimecl.stream import StreamLearner

STAGES = (0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0)


def stages(total: int) -> list[int]:
    """After how many examples each stage ends."""
    return [max(1, round(total * share)) for share in STAGES]


def accuracies(stream: StreamLearner, test: Features, vectors: torch.Tensor) -> dict[str, float]:
    """Every blend on the whole test split, unseen classes included."""
    device = vectors.device
    right: dict[str, int] = defaultdict(int)
    for start in range(0, len(test.tokens), 64):
        tokens = torch.from_numpy(test.tokens[start : start + 64]).to(device).float()
        target = torch.from_numpy(test.targets[start : start + 64]).to(device)
        opinions = stream.opinions(tokens, test.names, vectors)
        for name in BLENDS:
            right[name] += int((blend(name, opinions).argmax(1) == target).sum())
    return {name: 100 * count / len(test.tokens) for name, count in right.items()}


@torch.no_grad()
def run(
    backbone: Backbone, train: Features, test: Features, seed: int
) -> Iterator[dict[str, object]]:
    """One stream, one line of results a stage."""
    vectors = backbone.embed_labels(test.names)
    stream = StreamLearner(
        backbone.spec,
        backbone.tail,
        Settings(codec="tokens-fp16", seed=seed),
        torch.from_numpy(train.tokens).to(backbone.device),
        [train.names[target] for target in train.targets],
        dict(zip(test.names, vectors, strict=True)),
    )
    order = np.random.default_rng(seed).permutation(len(train.tokens)).tolist()
    done = 0
    for share, end in zip(STAGES, stages(len(order)), strict=True):
        stream.learn(order[done:end])
        done = end
        print(f"seed {seed}: {end:,} of {len(order):,} examples learned", flush=True)
        yield {"stage": share, "examples": end, **accuracies(stream, test, vectors)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", default="cifar100,pets,resisc12")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--model", default="embedded")  # embedded-float: its trunk not in int8
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    lines = (
        [json.loads(x) for x in given.out.read_text().splitlines()] if given.out.exists() else []
    )
    backbone = load(given.model, device=given.device)
    for task in given.tasks.split(","):
        archive = given.data / f"{task}.zip"
        for seed in map(int, given.seeds.split(",")):
            key = {"task": task, "seed": seed, "model": backbone.spec.name}
            if len([x for x in lines if key.items() <= x.items()]) == len(STAGES):
                continue
            train, test = (features(archive, split, backbone) for split in ("train", "test"))
            fresh = [key | line for line in run(backbone, train, test, seed)]
            lines += fresh
            with given.out.open("a") as file:
                file.writelines(json.dumps(line) + "\n" for line in fresh)
        show(task, [x for x in lines if x["task"] == task and x["model"] == backbone.spec.name])


def show(task: str, lines: list[dict[str, float]]) -> None:
    """Mean over seeds; the last row is the default blend against the better of the two models."""
    table = Table("blend", *(f"{100 * s:.0f} %" for s in STAGES), "mean", title=task)
    mean = {
        name: [np.mean([x[name] for x in lines if x["stage"] == s]) for s in STAGES]
        for name in BLENDS
    }
    for name, values in mean.items():
        table.add_row(name, *(f"{v:.1f}" for v in values), f"{np.mean(values):.1f}")
    better = np.maximum(mean["tuned"], mean["original"])
    default = Settings().blend
    gaps = np.array(mean[default]) - better
    table.add_row(f"{default} - better", *(f"{g:+.2f}" for g in gaps), f"{gaps.mean():+.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
