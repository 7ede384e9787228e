"""Plots as SVG: accuracy against stage, examples per label, and bytes per example."""

from __future__ import annotations

import io
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from anytimecl_lab._claim import THEIRS
from anytimecl_lab.few_shot import OURS, SCENARIO, Curves, curves
from anytimecl_lab.metrics import spread
from anytimecl_lab.results import Results
from anytimecl_lab.tables import FLEXIBLE, size_of, tuned_reading

SIZE = (8.0, 4.6)  # inches
AXES = {  # labels of the x-axis, as in the paper's figures
    "data-incremental": "share of a task's examples received",
    "union-data-incremental": "share of all tasks' examples received",
    "class-incremental": "share of a task's classes received",
    "task-incremental": "tasks received, in quarters",
    "mtil": "tasks received",
}
PAPERS = ("original", "tuned", "aim", "ocw_rounded", "ocw")  # blends compared in the paper
Series = Mapping[str, Mapping[str, list[float]]]  # name -> stage -> accuracy by seed
Bars = Mapping[str, list[list[float]]]  # name -> kind -> accuracy by seed


def plots(results: Results) -> dict[str, str]:
    """Title -> SVG, for every recipe; the title names the paper's figure."""
    found = {}
    for recipe in results.recipes():
        line = results.of(recipe)[0]
        if any("bytes" in each for each in results.of(recipe)):
            for task in line["tasks"]:
                found[f"{recipe}: {task}, accuracy against size"] = by_size(results, recipe, task)
            if line["scenario"] == "data-incremental":
                continue
        if line["scenario"] == SCENARIO:
            for task, sides in curves(results, recipe).items():
                found[f"{task}: accuracy against examples a label"] = by_shots(sides)
            continue
        found |= _of_recipe(results, recipe, line)
    return found


def _of_recipe(results: Results, recipe: str, line: Mapping[str, Any]) -> dict[str, str]:
    """Every method, and every blend of the paper's setting: by stage, and flexible inference."""
    told = f" (the paper's: {line['shows']})" if line.get("shows") else ""
    axis = AXES[line["scenario"]]
    methods = results.methods(recipe)
    blends = PAPERS if THEIRS in methods else ()
    lines = {name: results.by_stage(recipe, name) for name in methods}
    found = {f"{recipe}: accuracy against stage{told}": by_stage(lines, axis)}
    if blends:
        read = {blend: results.by_stage(recipe, THEIRS, blend) for blend in blends}
        found[f"{recipe}: blends in the paper's setting"] = by_stage(read, axis)
    if any(a.kind == FLEXIBLE[0] and a.recipe == recipe for a in results.answers):
        found[f"{recipe}: flexible inference"] = flexible(
            {name: _flexible(results, recipe, name, None) for name in methods}
        )
        if blends:
            found[f"{recipe}: flexible inference, blends in the paper's setting"] = flexible(
                {blend: _flexible(results, recipe, THEIRS, blend) for blend in blends}
            )
    return found


def _flexible(results: Results, recipe: str, method: str, reading: str | None) -> list[list[float]]:
    return [results.final(recipe, method, kind, reading) for kind in FLEXIBLE]


def by_stage(series: Series, axis: str) -> str:
    """A line per method, mean over tasks and seeds, with a band of one standard deviation."""
    figure, axes = _figure()
    longest = max((list(found) for found in series.values()), key=len)
    places = {stage: at for at, stage in enumerate(longest)}
    for name, found in series.items():
        x = [places[stage] for stage in found]
        spreads = [spread(values) for values in found.values()]
        y = [each.mean for each in spreads]
        style = "-" if name.startswith(("AnytimeCL", "ocw")) else "--"
        (line,) = axes.plot(x, y, style, marker="o", markersize=3, label=name)
        low, high = ([m.mean + s * m.deviation for m in spreads] for s in (-1, 1))
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_xticks(
        range(len(longest)), longest, rotation=45 if len(longest) > 8 else 0, ha="right"
    )
    axes.set_xlabel(axis)
    axes.set_ylabel("accuracy, %")
    axes.legend(fontsize=7, bbox_to_anchor=(1.01, 1), loc="upper left")
    return _svg(figure)


def by_shots(sides: Mapping[str, Curves]) -> str:
    """Labels by name and by code, side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.3 * SIZE[0], SIZE[1]), layout="constrained")
    every = figure.subplots(1, len(sides), sharey=True, squeeze=False)[0]
    for axes, (labels, methods) in zip(every, sides.items(), strict=True):
        _styled(axes)
        for name, points in methods.items():
            style = {"linewidth": 2.5} if name == OURS else {"linestyle": "--", "linewidth": 1}
            axes.plot(list(points), list(points.values()), marker="o", markersize=3, **style)
        axes.set_title(f"labels by {labels}", fontsize=9)
        axes.set_xlabel("examples a label")
    every[0].set_ylabel("accuracy, %")
    names = list(next(iter(sides.values())))
    every[-1].legend(names, fontsize=7, bbox_to_anchor=(1.01, 1), loc="upper left")
    return _svg(figure)


def flexible(bars: Bars) -> str:
    """Bars for zero-shot, union and mix."""
    figure, axes = _figure()
    width = 0.8 / len(bars)
    for at, (name, kinds) in enumerate(bars.items()):
        spreads = [spread(values or [0.0]) for values in kinds]
        x = [place - 0.4 + width * (at + 0.5) for place in range(len(FLEXIBLE))]
        deviations = [each.deviation for each in spreads]
        axes.bar(x, [each.mean for each in spreads], width, yerr=deviations, label=name)
    axes.set_xticks(range(len(FLEXIBLE)), FLEXIBLE)
    axes.set_ylabel("accuracy, %")
    axes.legend(fontsize=7, bbox_to_anchor=(1.01, 1), loc="upper left")
    return _svg(figure)


def by_size(results: Results, recipe: str, task: str) -> str:
    """Each codec as a point: bytes per example, and final accuracy of the tuned model."""
    figure, axes = _figure()
    for name in results.methods(recipe):
        x = size_of(results, recipe, name)
        values = results.final(recipe, name, "task", tuned_reading(results, recipe, name), task)
        if not values or not x:
            continue
        y = fmean(values)
        axes.errorbar([x], [y], yerr=[spread(values).deviation], marker="o", capsize=2)
        axes.annotate(name, (x, y), fontsize=7, xytext=(4, 3), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_xlabel("bytes an example")
    axes.set_ylabel("final accuracy of the tuned model, %")
    return _svg(figure)


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure  # not pyplot, which has global state

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    _styled(axes)
    return figure, axes


def _styled(axes: Any) -> None:
    from matplotlib import colormaps

    strong, pale = (list(colormaps["tab20"](range(first, 20, 2))) for first in (0, 1))
    axes.set_prop_cycle(color=[*strong, *pale])  # more than the default ten colours
    axes.grid(alpha=0.3)


def _svg(figure: Any) -> str:
    """Reproducible: without a date, and with fixed ids."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "anytimecl", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
