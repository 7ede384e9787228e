"""Few-shot results: this project's default compared with the best of other methods ("peers").

A recipe with labels by name and by code has two names in the lines of results; both are one family
here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from anytimecl_lab.results import Results
from anytimecl_lab.scenarios import FOREIGN, REFUSALS, SURE
from anytimecl_lab.table import Table, shown

SCENARIO = "few-shot"
OURS = "AnytimeCL"
ALL = "all"  # the stage with all examples; others have a number per label

Entry = tuple[str, str]  # method, reading
Point = tuple[str, str, str]  # task, labels by name or code, examples per label
At = dict[Entry, dict[int, float]]  # seed -> accuracy
Scores = dict[Point, At]
Curves = dict[str, dict[str, float]]  # method -> examples per label -> accuracy


def scores(results: Results, recipe: str, kind: str = "task") -> Scores:
    """All results of a recipe's family."""
    family = {
        name: str(results.of(name)[0]["labels"])
        for name in results.recipes()
        if _family(results, name) == _family(results, recipe)
    }
    found: Scores = {}
    for answer in sorted(results.answers, key=lambda each: (each.stage, each.seed)):
        if answer.recipe in family and answer.kind == kind:
            asked = answer.subject
            if kind == FOREIGN:
                asked += f" against {answer.question}"
            point = (asked, family[answer.recipe], answer.stage_name)
            own = found.setdefault(point, {}).setdefault((answer.method, answer.reading), {})
            own[answer.seed] = answer.accuracy
    return found


def _family(results: Results, recipe: str) -> str:
    line = results.of(recipe)[0]
    return recipe.replace(f"-{line['labels']}", "") if line["scenario"] == SCENARIO else ""


def _first(results: Results, recipe: str) -> bool:
    """Whether the recipe is the first of its family."""
    family = _family(results, recipe)
    return recipe == next(name for name in results.recipes() if _family(results, name) == family)


def ours(results: Results, recipe: str) -> Entry:
    """This project's default, with its default reading."""
    return OURS, results.reading(recipe, OURS)


def best_peer(at: At, seeds: Iterable[int]) -> tuple[Entry, float]:
    """The method with the highest mean over these seeds, this project's own excluded."""
    means = {
        entry: fmean(values[seed] for seed in seeds)
        for entry, values in at.items()
        if not _own(entry) and values.keys() >= set(seeds)
    }
    best = max(means, key=lambda entry: means[entry])
    return best, means[best]


def gaps(results: Results, recipe: str) -> dict[Point, float]:
    """Lead of the default over the best peer at each point with few examples."""
    mine = ours(results, recipe)
    return {
        point: fmean(at[mine].values()) - best_peer(at, at[mine])[1]
        for point, at in scores(results, recipe).items()
        if point[2] != ALL
    }


def leads(results: Results, recipe: str) -> dict[Entry, float]:
    """Lead of the default over each peer, mean over all points with few examples."""
    mine = ours(results, recipe)
    points = [at for point, at in scores(results, recipe).items() if point[2] != ALL]
    entries = dict.fromkeys(entry for at in points for entry in at if not _own(entry))
    return {
        entry: fmean(fmean(at[mine][s] - at[entry][s] for s in at[mine]) for at in points)
        for entry in entries
        if all(at.get(entry, {}).keys() >= at[mine].keys() for at in points)
    }


def _own(entry: Entry) -> bool:
    return entry[0].startswith(OURS)


def curves(results: Results, recipe: str) -> dict[str, dict[str, Curves]]:
    """Family and task -> labels by name or code -> curves to plot.

    Each family once, at its first recipe. Each method with its best reading (highest mean), this
    project's with its default.
    """
    found = scores(results, recipe) if _first(results, recipe) else {}
    mine = ours(results, recipe)
    drawn: dict[str, dict[str, Curves]] = {}
    for task, labels in _rows(found):
        own = {p[2]: at for p, at in found.items() if p[:2] == (task, labels)}
        side = drawn.setdefault(f"{_family(results, recipe)}, {task}", {}).setdefault(labels, {})
        for method in dict.fromkeys(name for at in own.values() for name, _ in at):
            lines = [
                {shot: fmean(at[entry].values()) for shot, at in own.items() if entry in at}
                for entry in dict.fromkeys(e for at in own.values() for e in at if e[0] == method)
                if method != OURS or entry == mine
            ]
            side[method] = max(lines, key=lambda line: fmean(line.values()))
    return drawn


# ------------------------------------------------------------------------------------------ tables


def few_shot_tables(results: Results, recipe: str) -> list[Table]:
    """Comparison with the best peer at each point; mean of each method; all methods at each point.

    Each family once, at its first recipe.
    """
    if not _first(results, recipe):
        return []
    family = _family(results, recipe)
    found = scores(results, recipe)
    title = f"{family}: {OURS}, and the best peer at each number of examples a label"
    mine = ours(results, recipe)
    return [
        Table(
            title,
            ["task, labels by", *_shots(found)],
            _beside(found, mine),
            _about(results.of(recipe)),
        ),
        _means(family, found, mine),
        _calibration(family, scores(results, recipe, SURE), mine),
        _none_of_these(family, scores(results, recipe, FOREIGN)),
        *_everyone(family, found),
    ]


def _about(lines: Sequence[Mapping[str, Any]]) -> str:
    seeds = sorted({int(line["seed"]) for line in lines})
    return (
        "Each number of examples is learned by a model of its own. The best peer is that of the "
        "highest mean over seeds at each point, among all methods with and without zero-shot "
        f"logits; the difference is to it. Seeds {', '.join(map(str, seeds))}."
    )


def _beside(found: Scores, mine: Entry) -> list[list[str]]:
    rows = []
    for task, labels in _rows(found):
        row = [f"{task}, {labels}"]
        for shot in _shots(found):
            at = found.get((task, labels, shot), {})
            own = at.get(mine, {})
            cell = shown([*own.values()])
            if own and any(not _own(e) and at[e].keys() >= own.keys() for e in at):
                best, value = best_peer(at, own)
                cell += f"; {_name(best)} {value:.1f}: {fmean(own.values()) - value:+.1f}"
            row.append(cell)
        rows.append(row)
    return rows


def _means(family: str, found: Scores, mine: Entry) -> Table:
    """Mean of every method and reading over tasks and numbers of examples."""
    ways = list(dict.fromkeys(labels for _, labels, _ in found))
    columns = [(labels, few) for few in (True, False) for labels in ways]
    rows = []
    for entry in dict.fromkeys(entry for at in found.values() for entry in at):
        row = [_name(entry)]
        for labels, few in columns:
            points = [at for p, at in found.items() if p[1] == labels and (p[2] != ALL) == few]
            row.append(shown(_over([at.get(entry, {}) for at in points])))
        rows.append(row)
    heads = [f"by {labels}, {'few' if few else ALL}" for labels, few in columns]
    note = f"The default is read as {_name(mine)}. Few: the mean over all numbers but all."
    return Table(f"{family}: every method, mean over points", ["method", *heads], rows, note)


def _over(points: Sequence[Mapping[int, float]]) -> list[float]:
    """Mean over points, for each seed that all of them have."""
    seeds = set.intersection(*(set(point) for point in points)) if points else set()
    return [fmean(point[seed] for point in points) for seed in sorted(seeds)]


def _calibration(family: str, found: Scores, mine: Entry) -> Table:
    rows = [
        [
            f"{task}, {labels}",
            *(_seeds(found.get((task, labels, shot), {}), mine) for shot in _shots(found)),
        ]
        for task, labels in _rows(found)
        if any(mine in at for at in found.values())
    ]
    title = f"{family}: expected calibration error of {OURS}, %"
    note = "15 bins of equal width; that of every method is in results.csv."
    return Table(title, ["task, labels by", *_shots(found)], rows, note)


def _none_of_these(family: str, found: Scores) -> Table:
    """Methods that predict it, with a row for every task and kind of labels."""
    rows = []
    for task, labels in _rows(found):
        own = {shot: found.get((task, labels, shot), {}) for shot in _shots(found)}
        for method in dict.fromkeys(name for at in own.values() for name, _ in at):
            cells = [
                "; ".join(f"{what} {_seeds(at, (method, what))}" for what in REFUSALS)
                if (method, REFUSALS[0]) in at
                else shown([])
                for at in own.values()
            ]
            rows.append([method, f"{task}, {labels}", *cells])
    title = f"{family}: none of these, own test images against novel ones, %"
    return Table(title, ["method", "task, labels by", *_shots(found)], rows)


def _everyone(family: str, found: Scores) -> list[Table]:
    tables = []
    for task, labels in _rows(found):
        shots = [shot for shot in _shots(found) if (task, labels, shot) in found]
        entries = dict.fromkeys(e for shot in shots for e in found[task, labels, shot])
        rows = [
            [_name(entry), *(_seeds(found[task, labels, shot], entry) for shot in shots)]
            for entry in entries
        ]
        title = f"{family}: {task}, labels by {labels}"
        tables.append(Table(title, ["method", *shots], rows))
    return tables


def _rows(found: Scores) -> list[tuple[str, str]]:
    """By task, then names before codes."""
    seen = dict.fromkeys((task, labels) for task, labels, _ in found)
    tasks = list(dict.fromkeys(task for task, _ in seen))
    return sorted(seen, key=lambda row: (tasks.index(row[0]), row[1] != "name"))


def _shots(found: Scores) -> list[str]:
    """Numbers of examples in order, then all examples."""
    every = {shot for _, _, shot in found}
    return sorted(every, key=lambda shot: (shot == ALL, int(shot) if shot != ALL else 0))


def _seeds(at: At, entry: Entry) -> str:
    return shown([*at.get(entry, {}).values()])


def _name(entry: Entry) -> str:
    return " ".join(part for part in entry if part)
