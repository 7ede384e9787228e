"""A model that knows images only, taught alone: its pool beside its Gaussian expert.

    python -m benchmarks.images_only DATA [--task pets] [--model dinov2-small] [--seeds 0,1,2]
                                     [--train 10] [--asked 15]

Labels are codes to such a model. DATA is the folder of data sets. A number of images per label is
learned one by one, in a random order per seed, and a number of test images is evaluated over the
labels learned so far: a memory of such a model rejects others. After 25, 50 and 100 % of them:
accuracies of the pool, of its Gaussian expert alone, and of the tuned model alone.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anytimecl import backbone as backbones
from anytimecl.blend import POOL, blend
from anytimecl.settings import Settings
from anytimecl.stream import StreamLearner
from anytimecl_lab.data import Split, open_set
from anytimecl_lab.examples import chunks, resident
from anytimecl_lab.features import features
from anytimecl_lab.scenarios import capped

PARTS = (0.25, 0.5, 1.0)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--task", default="pets")
    parser.add_argument("--model", default="dinov2-small")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--train", type=int, default=10, help="of each label, at most")
    parser.add_argument("--asked", type=int, default=15, help="of each label, at most")
    given = parser.parse_args(words)
    model = backbones.load(given.model).with_labels()
    task = open_set(given.task, given.data)
    assert task.train is not None, f"{given.task} has no training images"

    def part(split: Split, count: int) -> tuple[object, list[str]]:
        chosen = capped(split.labels, count, 0)
        tokens = features(split, model, chosen)[chosen]
        return resident([tokens], model.spec, "cpu"), [split.labels[i] for i in chosen]

    learned, labels = part(task.train, given.train)
    asked, truth = part(task.test, given.asked)
    vectors = dict(zip(task.names, model.embed_labels(task.names), strict=True))
    print("| seed | learned | pool | Gaussian expert | tuned model |\n|---|---|---|---|---|")
    rows: dict[int, list[list[float]]] = defaultdict(list)
    for seed in map(int, given.seeds.split(",")):
        stream = StreamLearner(
            model.spec, model.tail, Settings(seed=seed), learned, labels, vectors, prior=model.prior
        )
        order = np.random.default_rng(seed).permutation(len(labels)).tolist()
        done = 0
        for share in PARTS:
            until = round(share * len(order))
            stream.learn(order[done:until])
            done = until
            found = _accuracies(stream, vectors, asked, truth)
            print(f"| {seed} | {done} | {_cells(found)} |", flush=True)
            rows[done].append(found)
    for done, found in rows.items():
        print(f"| mean | {done} | {_cells(np.mean(found, 0), 2)} |")


def _accuracies(
    stream: StreamLearner, vectors: Mapping[str, Tensor], asked: Any, truth: Sequence[str]
) -> list[float]:
    """Of the pool, its Gaussian expert and the tuned model; unseen labels count as wrong."""
    names = [name for name in vectors if name in stream.rows]
    columns = torch.stack([vectors[name] for name in names])
    target = torch.tensor([names.index(label) if label in names else -1 for label in truth])
    said = [stream.opinions(some, names, columns) for some in chunks(asked)]
    found = [
        torch.cat([blend(POOL, one) for one in said]),
        torch.cat([one.scores["gaussian"] for one in said]),
        torch.cat([one.tuned for one in said]),
    ]
    return [100 * float((values.argmax(1) == target).float().mean()) for values in found]


def _cells(values: Iterable[float], digits: int = 1) -> str:
    return " | ".join(f"{value:.{digits}f}" for value in values)


if __name__ == "__main__":
    main()
