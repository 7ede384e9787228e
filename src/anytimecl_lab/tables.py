"""The paper's tables from results."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from anytimecl_lab import metrics
from anytimecl_lab.few_shot import SCENARIO as FEW_SHOT
from anytimecl_lab.few_shot import few_shot_tables
from anytimecl_lab.results import Results
from anytimecl_lab.scenarios import SEEN, THEIRS
from anytimecl_lab.table import NONE, Table, shown

BLENDS = (
    "original",
    "tuned",
    "average",
    "aim",
    "ocw_rounded",
    "ocw",
    "ocw_other",
    "pool",
    "gaussian",
    SEEN,
)
FLEXIBLE = ("zero-shot", "union", "mix")
PREDECESSORS = ("union (TreeProbe)", THEIRS)  # as in the paper's predecessor


@cache
def paper() -> dict[str, dict[str, Any]]:
    """The paper's published figures."""
    text = (resources.files(__package__) / "paper.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def tables(results: Results) -> list[Table]:
    """All tables for these results, by recipe."""
    found: list[Table] = []
    for recipe in results.recipes():
        line = results.of(recipe)[0]
        scenario = str(line["scenario"])
        if any(each.get("codec") for each in results.of(recipe)) and scenario == "data-incremental":
            found += codec_tables(results, recipe)
        elif scenario == "mtil":
            found += mtil_tables(results, recipe)
        elif scenario == FEW_SHOT:
            found += few_shot_tables(results, recipe)
        else:
            found += stage_tables(results, recipe, scenario)
    return [table for table in found if table.rows]


# --------------------------------------------------------------------------------- stage by stage


def stage_tables(results: Results, recipe: str, scenario: str) -> list[Table]:
    """Accuracy against stage: of every method, of every blend of AnytimeCL, and by task."""
    methods = results.methods(recipe)
    stages = shared_stages(results, recipe)
    title = f"{recipe}: {scenario}, accuracy over all tasks after each stage"
    rows = [stage_row(results, recipe, name, None, stages, name) for name in methods]
    found = [Table(title, ["method", *map(short, stages), "mean"], rows, _seeds(results, recipe))]
    blended = {name: _blends(results, recipe, name) for name in methods}
    for name in [name for name in methods if len(blended[name]) > 1][:2]:
        title = f"{recipe}: blends of {name}"
        rows = [stage_row(results, recipe, name, each, stages, each) for each in blended[name]]
        found.append(Table(title, ["blend", *map(short, stages), "mean"], rows))
    title = f"{recipe}: further variants of the baselines"
    rows = [
        stage_row(results, recipe, name, each, stages, named(name, each))
        for name in methods
        for each in variants(results, recipe, name)
    ]
    found.append(Table(title, ["method", *map(short, stages), "mean"], rows))
    tasks = list(results.of(recipe)[0]["tasks"])
    if len(tasks) > 1:
        rows = [
            [name, *(shown(results.final(recipe, name, "task", None, task)) for task in tasks)]
            for name in methods
        ]
        found.append(Table(f"{recipe}: each task after the last stage", ["method", *tasks], rows))
    if scenario == "task-incremental":
        found += [forgetting_table(results, recipe), *flexible_tables(results, recipe)]
    return found


def shared_stages(results: Results, recipe: str) -> list[str]:
    """Stages with results of every method."""
    each = [list(results.by_stage(recipe, name)) for name in results.methods(recipe)]
    return [stage for stage in each[0] if all(stage in stages for stages in each)]


def stage_row(
    results: Results,
    recipe: str,
    method: str,
    reading: str | None,
    stages: Sequence[str],
    name: str,
) -> list[str]:
    """A row of a table of stages."""
    found = results.by_stage(recipe, method, reading)
    mean = results.over_stages(recipe, method, reading, stages)
    return [name, *(shown(found.get(stage, [])) for stage in stages), shown(mean)]


def short(stage: str) -> str:
    """Abbreviation of a stage's name for a heading.

    >>> short("pets 100 %"), short("100 %")
    ('pets', '100 %')
    """
    return stage.removesuffix(" 100 %")


def forgetting_table(results: Results, recipe: str) -> Table:
    """Forgetting, and final accuracy on the first task."""
    first = results.of(recipe)[0]["tasks"][0]
    rows = []
    for name in results.methods(recipe):
        matrices = results.matrices(recipe, name)
        lost = [metrics.forgetting(matrix) for matrix in matrices if len(matrix) > 1]
        rows.append([name, shown(results.final(recipe, name, "task", None, first)), shown(lost)])
    headings = ["method", f"{first} after the last task", "forgetting"]
    note = "Forgetting: best accuracy on a task so far less the final one, mean over tasks."
    return Table(f"{recipe}: what is kept", headings, rows, note)


def flexible_tables(results: Results, recipe: str) -> list[Table]:
    """Zero-shot, union and mix, by method and by blend."""
    methods = results.methods(recipe)
    title = f"{recipe}: flexible inference after all tasks"
    rows = [[name, *flexible_cells(results, recipe, name, None)] for name in methods]
    heads = [*FLEXIBLE, *PREDECESSORS]
    note = (
        "Ours: the mean over tasks, novel images among those of mix. TreeProbe's: target and novel "
        "tasks half each; as many novel labels as a split has, and target images alone."
    )
    found = [Table(title, ["method", *heads], rows if _asked(results, recipe) else [], note)]
    for name in methods:
        readings = [each for each in BLENDS if each in results.readings(recipe, name)]
        if len(readings) > 1 and _asked(results, recipe):
            rows = [[each, *flexible_cells(results, recipe, name, each)] for each in readings]
            found.append(Table(f"{title}, blends of {name}", ["blend", *heads], rows))
    return found


def flexible_cells(results: Results, recipe: str, method: str, reading: str | None) -> list[str]:
    """Zero-shot, union and mix, then union and mix as in the predecessor."""
    ours = [shown(results.final(recipe, method, kind, reading)) for kind in FLEXIBLE]
    half = shown(results.half_and_half(recipe, method, "union", reading))
    return [*ours, half, shown(results.final(recipe, method, THEIRS, reading))]


# -------------------------------------------------------------------------------- MTIL and codecs


def mtil_tables(results: Results, recipe: str) -> list[Table]:
    """Transfer, Avg and Last beside the paper's, and each matrix's mean over seeds."""
    rows, found = [], []
    tasks = list(results.of(recipe)[0]["tasks"])
    for name in results.methods(recipe):
        matrices = results.matrices(recipe, name)
        three = (metrics.transfer, metrics.average, metrics.last)
        own = [shown([each(matrix) for matrix in matrices]) for each in three]
        theirs = [f"{value:.1f}" for value in paper()["mtil"].get(name, [])] or [NONE] * 3
        rows.append([name, *own, *theirs])
        cells = [
            [after, *(shown([m[i][j] for m in matrices]) for j in range(len(tasks)))]
            for i, after in enumerate(tasks)
            if matrices
        ]
        found.append(Table(f"{recipe}: {name}, accuracy after each task", ["after", *tasks], cells))
        found += _printed_matrix(recipe, name, tasks)
    heads = ["Transfer", "Avg", "Last"]
    headings = ["method", *heads, *(f"paper: {head}" for head in heads)]
    note = "The paper's: eleven whole data sets, CLIP ViT-B/16."
    return [Table(f"{recipe}: Transfer, Avg and Last", headings, rows, note), *found]


def _printed_matrix(recipe: str, name: str, tasks: Sequence[str]) -> list[Table]:
    """The paper's matrix, for the tasks in these results, in the paper's order."""
    printed: dict[str, list[float]] = paper()["mtil_matrix"].get(name, {})
    every = list(printed)
    kept = [task for task in every if task in tasks]
    cells = [
        [after, *(f"{printed[after][every.index(task)]:.1f}" for task in kept)] for after in kept
    ]
    title = f"{recipe}: {name}, the paper's Table {'S3' if 'offline' in name else 'S2'}"
    note = "Of eleven whole data sets in its order; only tasks that were run here, too, are shown."
    return [Table(title, ["after", *kept], cells, note)] if len(kept) > 1 else []


def codec_tables(results: Results, recipe: str) -> list[Table]:
    """Size, time and final accuracy of every codec, beside the paper's."""
    lines = results.of(recipe)
    tasks = list(lines[0]["tasks"])
    rows = []
    timed = [name for its, name in results.timings if its == recipe]
    for name in dict.fromkeys([*results.methods(recipe), *timed]):
        size, time = size_of(results, recipe, name), results.timings.get((recipe, name))
        accuracies = [
            shown(results.final(recipe, name, "task", reading, task))
            for task in tasks
            for reading in (tuned_reading(results, recipe, name), None)
        ]
        told = [f"{size / 1000:.1f}" if size else NONE, f"{time['ms']:.1f}" if time else NONE]
        rows.append([name, *told, *accuracies, *_paper_codec(name)])
    heads = [f"{task}, {which}" for task in tasks for which in ("tuned", "blend")]
    theirs = ["paper: KB", "paper: ms", "paper: cifar100, tuned"]
    headings = ["codec", "KB an example", "ms a batch of 32", *heads, *theirs]
    note = (
        "Images give the tokens anew, so they learn as full tokens do. The paper's: CLIP ViT-B/32, "
        "50 tokens; six seeds where a deviation is given."
    )
    return [Table(f"{recipe}: what is kept of an example", headings, rows, note)]


def tuned_reading(results: Results, recipe: str, method: str) -> str | None:
    """The tuned model's reading; None for methods with a single reading."""
    return "tuned" if "tuned" in results.readings(recipe, method) else None


def size_of(results: Results, recipe: str, method: str) -> float | None:
    """Mean bytes per example."""
    own = [line for line in results.of(recipe) if line["name"] == method]
    found = [line["bytes"] for line in own if "bytes" in line]
    if not found and (recipe, method) in results.timings:
        found = [results.timings[recipe, method]["bytes"]]
    return float(found[0]) if found else None


def _paper_codec(name: str) -> list[str]:
    first, second = paper()["codecs"].get(name), paper()["components"].get(name)
    if first is None and second is None:
        return [NONE] * 3
    time = f"{first[1]:.1f}" if first else NONE
    size = f"{(first or second or [0])[0] if first else (second or [0, 0, 0])[2]:.1f}"
    told = f"{second[0]:.1f} ± {second[1]:.1f}" if second else f"{(first or [0, 0, 0])[2]:.1f}"
    return [size, time, told]


# ------------------------------------------------------------------------------------------ bits


def _blends(results: Results, recipe: str, method: str) -> list[str]:
    return [r for r in results.readings(recipe, method) if r in BLENDS or "eta=" in r]


def named(method: str, reading: str | None) -> str:
    """Name of a method with one of its readings; None is the default."""
    return method if reading is None else f"{method} {reading or 'alone'}"


def variants(results: Results, recipe: str, method: str) -> list[str]:
    """Readings of a baseline besides its default; none of a method that is read by its blends."""
    readings = results.readings(recipe, method)
    default = results.reading(recipe, method)
    return [] if "original" in readings else [each for each in readings if each != default]


def _asked(results: Results, recipe: str) -> bool:
    return any(a.recipe == recipe and a.kind == FLEXIBLE[0] for a in results.answers)


def _seeds(results: Results, recipe: str) -> str:
    seeds = sorted({int(line["seed"]) for line in results.of(recipe)})
    told = ", ".join(map(str, seeds))
    return f"Mean and sample standard deviation over seeds {told}; mean over tasks first."


def csv_rows(results: Results) -> list[list[Any]]:
    """All results, one per row, with a header."""
    heads = "recipe method reading seed subject stage stage_name kind question accuracy".split()
    return [heads, *([getattr(answer, head) for head in heads] for answer in results.answers)]
