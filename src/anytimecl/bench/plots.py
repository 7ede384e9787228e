"""The paper's plots, as SVG text: accuracy against stage, and against bytes."""

from __future__ import annotations

import io
from statistics import fmean
from typing import Any

from anytimecl.bench.metrics import spread
from anytimecl.bench.results import Results
from anytimecl.bench.tables import FLEXIBLE, size_of

SIZE = (8.0, 4.6)  # inches


def plots(results: Results) -> dict[str, str]:
    """Title -> SVG, for every recipe."""
    found = {}
    for recipe in results.recipes():
        line = results.of(recipe)[0]
        if any("bytes" in each for each in results.of(recipe)):
            for task in line["tasks"]:
                found[f"{recipe}: {task}, accuracy against size"] = by_size(results, recipe, task)
            if line["scenario"] == "data-incremental":
                continue
        found[f"{recipe}: accuracy against stage"] = by_stage(results, recipe)
        if any(a.kind == FLEXIBLE[0] and a.recipe == recipe for a in results.answers):
            found[f"{recipe}: flexible inference"] = flexible(results, recipe)
    return found


def by_stage(results: Results, recipe: str) -> str:
    """Every method, mean over tasks and seeds; a band of one deviation."""
    figure, axes = _figure()
    longest = max(
        (list(results.by_stage(recipe, name)) for name in results.methods(recipe)), key=len
    )
    places = {stage: at for at, stage in enumerate(longest)}
    for name in results.methods(recipe):
        found = results.by_stage(recipe, name)
        x = [places[stage] for stage in found]
        spreads = [spread(values) for values in found.values()]
        y = [each.mean for each in spreads]
        style = "-" if name.startswith("AnytimeCL") else "--"
        (line,) = axes.plot(x, y, style, marker="o", markersize=3, label=name)
        low, high = ([m.mean + s * m.deviation for m in spreads] for s in (-1, 1))
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_xticks(
        range(len(longest)), longest, rotation=45 if len(longest) > 8 else 0, ha="right"
    )
    axes.set_ylabel("accuracy, %")
    axes.legend(fontsize=7, bbox_to_anchor=(1.01, 1), loc="upper left")
    return _svg(figure)


def flexible(results: Results, recipe: str) -> str:
    """Bars for zero-shot, union and mix."""
    figure, axes = _figure()
    names = results.methods(recipe)
    width = 0.8 / len(names)
    for at, name in enumerate(names):
        spreads = [spread(results.final(recipe, name, kind)) for kind in FLEXIBLE]
        x = [place - 0.4 + width * (at + 0.5) for place in range(len(FLEXIBLE))]
        deviations = [each.deviation for each in spreads]
        axes.bar(x, [each.mean for each in spreads], width, yerr=deviations, label=name)
    axes.set_xticks(range(len(FLEXIBLE)), FLEXIBLE)
    axes.set_ylabel("accuracy, %")
    axes.legend(fontsize=7, bbox_to_anchor=(1.01, 1), loc="upper left")
    return _svg(figure)


def by_size(results: Results, recipe: str, task: str) -> str:
    """Each codec as a point: bytes of an example, final accuracy of the tuned model."""
    figure, axes = _figure()
    for name in results.methods(recipe):
        x = size_of(results, recipe, name)
        values = results.final(recipe, name, "task", "tuned", task)
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
    from matplotlib import colormaps
    from matplotlib.figure import Figure  # no pyplot: no window, no global state

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    strong, pale = (list(colormaps["tab20"](range(first, 20, 2))) for first in (0, 1))
    axes.set_prop_cycle(color=[*strong, *pale])  # more methods than the usual ten colours
    axes.grid(alpha=0.3)
    return figure, axes


def _svg(figure: Any) -> str:
    """Without a date, and with ids that do not change: the same results, the same bytes."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "anytimecl", "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata={"Date": None})
    text = file.getvalue()
    return text[text.index("<svg") :]
