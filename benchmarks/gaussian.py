"""The Gaussian expert alone, one of its parts changed at a time, on held-out training images.

    python -m benchmarks.gaussian DATA [--tasks pets,resisc12,...] [--shots 1,4,16,0] [--seeds 0,1]

Nothing is trained, so all examples of a label (--shots 0) take no longer than one. The held-out
images are those of `benchmarks.ablations`. GDA, the most similar other method, is included. A
second table has the expert's leave-one-out accuracy on learned examples, from which its pool weight
is fitted: it should agree with the accuracy on held-out images.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from benchmarks.ablations import EXPERT, held_out, one_fewer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import Tensor

from anytimecl.backbone import Backbone, Prior, load
from anytimecl.experts import GaussianExpert, gaussian
from anytimecl_lab.data import from_archive
from anytimecl_lab.features import original_vectors
from anytimecl_lab.methods.gda import discriminants

VARIANTS = {"as it is": ("ANCHOR", gaussian.ANCHOR)} | EXPERT
PEER = "GDA"
EVIDENCE = {
    "held-out images": None,
    "left out": GaussianExpert.judged_left_out,
    "left out, one fewer": one_fewer,
}


def accuracies(
    learned: Tensor, targets: Tensor, held: Tensor, truth: Tensor, prior: Prior | None, scale: float
) -> dict[str, float]:
    """Accuracy (per cent) on held-out embeddings, by variant."""
    labels, found = int(truth.max()) + 1, {}
    for title, (name, value) in VARIANTS.items():
        with patch.object(gaussian, name, value):
            expert = GaussianExpert(learned.shape[1], prior)
            numbers = range(1, len(learned) + 1)
            expert.count(numbers, targets.tolist(), learned, labels)
            expert.advance(16 + 2 * len(learned))  # updates its space with all of them
            found[title] = expert.scores(held, range(labels))
    peer = discriminants(learned.double(), targets, scale)
    found[PEER] = peer(held.double())
    return {title: 100 * float((s.argmax(1) == truth).float().mean()) for title, s in found.items()}


def evidence(
    learned: Tensor, targets: Tensor, held: Tensor, truth: Tensor, prior: Prior | None
) -> dict[str, float]:
    """Accuracy (per cent) on held-out images, and leave-one-out on the learned ones."""
    labels, numbers = int(truth.max()) + 1, range(1, len(learned) + 1)
    expert = GaussianExpert(learned.shape[1], prior)
    expert.count(numbers, targets.tolist(), learned, labels)
    found = {}
    for title, leave_out in EVIDENCE.items():
        if leave_out is None:
            told, (scores, typical) = truth, expert.judged(held, range(labels))
        else:
            told = targets
            scores, typical = leave_out(expert, learned, targets.tolist(), numbers)
        found[title] = 100 * float(((scores - typical).argmax(1) == told).float().mean())
    return found


def vectors_of(archive: Path, backbone: Backbone) -> tuple[Tensor, NDArray[np.int64]]:
    """Image embeddings of a training split, and the indices of their labels."""
    split = from_archive(archive.stem, archive).train
    assert split is not None
    names = sorted(set(split.labels))
    targets = np.array([names.index(label) for label in split.labels])
    return torch.from_numpy(np.array(original_vectors(split, backbone))), targets


@torch.no_grad()
def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--tasks", default="pets,resisc12,flowers102,food101,cifar100")
    parser.add_argument("--shots", default="1,4,16,0")
    parser.add_argument("--seeds", default="0,1")
    given = parser.parse_args(words)
    backbone = load("embedded")
    rows: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    weighed: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for task in given.tasks.split(","):
        vectors, targets = vectors_of(given.data / f"{task}.zip", backbone)
        out = held_out(targets)
        held, truth = vectors[out], torch.from_numpy(targets[out])
        learned, labels = vectors[~out], targets[~out]
        for seed in map(int, given.seeds.split(",")):
            random = np.random.default_rng(seed)
            own = [random.permutation(np.flatnonzero(labels == k)) for k in range(labels.max() + 1)]
            for shots in map(int, given.shots.split(",")):
                if min(map(len, own)) < shots:
                    continue
                chosen = np.concatenate([some[: shots or None] for some in own])
                taught = torch.from_numpy(labels[chosen])
                scale = backbone.spec.logit_scale
                got = accuracies(learned[chosen], taught, held, truth, backbone.prior, scale)
                column = f"{task}, {shots or 'all'}"
                for title, value in got.items():
                    rows[title][column].append(value)
                if shots != 1:  # leave-one-out needs two examples of a label
                    own_word = evidence(learned[chosen], taught, held, truth, backbone.prior)
                    for title, value in own_word.items():
                        weighed[title][column].append(value)
    told("Gaussian expert alone: per cent right", (*VARIANTS, PEER), rows)
    told("Evidence: per cent right", EVIDENCE, weighed)


def told(title: str, kinds: Iterable[str], rows: Mapping[str, Mapping[str, list[float]]]) -> None:
    """Print means over seeds, by task and number of examples."""
    kinds = list(kinds)
    columns = list(rows[kinds[0]])
    table = Table("", *kinds, title=title)
    for column in columns:
        table.add_row(column, *(f"{np.mean(rows[kind][column]):.1f}" for kind in kinds))
    means = (np.mean([np.mean(rows[kind][c]) for c in columns]) for kind in kinds)
    table.add_row("mean", *(f"{mean:.2f}" for mean in means))
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
