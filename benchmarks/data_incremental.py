"""Data-incremental learning: accuracy over the whole task as its examples arrive one by one.

    python -m benchmarks.data_incremental DATA OUT [--tasks cifar100,pets,resisc12] [--seeds 0,1,2]
                                          [--model embedded] [--device cpu]

The lab's scenario of that name with AnytimeCL only, from full tokens. Prints the accuracy of every
blend (mean over seeds), and the difference of the default from the better of its two models; OUT
has the lab's lines of results, and existing ones are not computed again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from anytimecl_lab.recipe import Contestant, Recipe
from anytimecl_lab.results import Results, collect
from anytimecl_lab.run import read_lines, run
from anytimecl_lab.tables import BLENDS

NAME, METHOD = "benchmark_data_incremental", "AnytimeCL"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", default="cifar100,pets,resisc12")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--model", default="embedded")  # embedded-float: with its trunk in float
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args(words)
    tasks = tuple(given.tasks.split(","))
    recipe = Recipe(
        name=NAME,
        title="Data-incremental learning",
        scenario="data-incremental",
        tasks=tasks,
        methods=(Contestant(METHOD, "online"),),
        seeds=tuple(map(int, given.seeds.split(","))),
        backbone=given.model,
        group=given.model,
    )
    if run([recipe], given.data, given.out, device=given.device).failed:
        raise SystemExit("Some runs failed; run again to try those again.")
    lines = [line for line in read_lines(given.out) if line.get("group") == given.model]
    for task in tasks:
        show(task, collect(line for line in lines if line["subject"] == task))


def show(task: str, results: Results) -> None:
    """Print means over seeds; the last row is the default blend minus the better model."""
    default = results.reading(NAME, METHOD)
    mean = {
        blend: {s: fmean(v) for s, v in results.by_stage(NAME, METHOD, blend).items()}
        for blend in BLENDS
    }
    stages = list(mean[default])
    table = Table("blend", *stages, "mean", title=task)
    for blend, values in mean.items():
        if values:
            table.add_row(
                blend, *(f"{v:.1f}" for v in values.values()), f"{fmean(values.values()):.1f}"
            )
    gaps = [mean[default][s] - max(mean["tuned"][s], mean["original"][s]) for s in stages]
    table.add_row(f"{default} - better", *(f"{gap:+.2f}" for gap in gaps), f"{fmean(gaps):+.2f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
