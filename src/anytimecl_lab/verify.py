"""Checks committed results against recipes, code and documents.

Every line must belong to a recipe and have the current digest of the code, and every figure that a
document quotes must be found in the results. A document marks such figures:

    <!-- bench: data_incremental, mtil -->
    ... text and tables; every number with a decimal point must be in a table of these recipes, or
    be the mean over seeds of one question ...
    <!-- end -->

In a cell of a table both marks may be on one line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from anytimecl.errors import ModelError
from anytimecl_lab.claims import claims
from anytimecl_lab.digest import digest
from anytimecl_lab.recipe import GROUPS, Recipe, by_labels, cells, read_recipe, settings_mark
from anytimecl_lab.results import Results, collect, key_of, mark_of, read_lines
from anytimecl_lab.table import shown
from anytimecl_lab.tables import tables

BLOCK = re.compile(r"<!-- bench: (?P<recipes>[^>]+?) -->(?P<text>.*?)<!-- end -->", re.DOTALL)
FIGURE = re.compile(r"(?<![\w.])\d+\.\d+(?!\w|\.\d)")
VALIDATION = "-validation"  # suffix of a recipe's name
SETTINGS = ("method", "options", "codec", "components")
MARK = "settings"


def verify(files: Sequence[Path], recipes: Path, documents: Sequence[Path]) -> list[str]:
    """Problems found, one sentence each."""
    lines = [line for file in files for line in read_lines(file)]
    kept = [line for line in lines if "error" not in line]
    results = collect(kept)
    return [
        *_summed(_foreign(kept, recipes)),
        *_aged(kept),
        *_models(kept),
        *(problem for file in documents for problem in figures(file, results)),
    ]


# ----------------------------------------------------------------------------------------- lines


def _foreign(lines: Sequence[dict[str, Any]], folder: Path) -> Iterator[str]:
    """Lines that belong to no recipe."""
    for line in lines:
        name = str(line["recipe"])
        wanted = _wanted(folder, name.removesuffix(VALIDATION), str(line["group"]))
        if wanted is None:
            yield f"no recipe {name} of the group {line['group']}"
            continue
        settings = wanted.get((name.removesuffix(VALIDATION), *key_of(line)[1:]))
        if "ms" in line:  # a codec's timing
            continue
        if settings is None:
            yield f"{name} does not ask for {line['name']} on {line['subject']}"
        # Lines without the digest of settings are reported for their older code digest anyway.
        elif settings != {item: line.get(item) for item in SETTINGS} | {
            MARK: line.get(MARK, settings[MARK])
        }:
            yield f"{name} has other settings for {line['name']}"


@cache
def _wanted(folder: Path, name: str, group: str) -> dict[tuple[str, ...], dict[str, Any]] | None:
    """Key of every run in a recipe -> the settings of its method."""
    for file in sorted(folder.glob("*.toml")):
        if file.name == GROUPS or not name.startswith(file.stem):
            continue
        try:
            found = [each for each in by_labels(read_recipe(file, group)) if each.name == name]
        except ModelError:
            continue
        if found:
            return _keys(found[0])
    return None


def _keys(recipe: Recipe) -> dict[tuple[str, ...], dict[str, Any]]:
    return {
        cell.key: {item: asdict(cell.contestant)[item] for item in SETTINGS}
        | {MARK: settings_mark(recipe, cell.contestant)}
        for cell in cells(recipe, None, ())
    }


def _aged(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines of another version of the code."""
    others = Counter(mark_of(line) for line in lines if mark_of(line) != digest())
    if others:
        told = ", ".join(f"{count} of {mark}" for mark, count in others.most_common())
        yield f"{others.total()} lines are not of the present version, {digest()}: {told}."


def _models(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Models that changed under the same name."""
    found: dict[str, set[str]] = {}
    for line in lines:
        found.setdefault(str(line["backbone"]), set()).add(str(line.get("fingerprint")))
    for name, marks in found.items():
        if len(marks) > 1:
            yield f"The lines of the model {name} are of {len(marks)} versions of it."


def _summed(problems: Iterator[str]) -> Iterator[str]:
    """Distinct problems, with the number of lines."""
    for problem, count in Counter(problems).items():
        yield f"{problem} ({count} line{'s' if count > 1 else ''})."


# --------------------------------------------------------------------------------------- figures


def figures(document: Path, results: Results) -> Iterator[str]:
    """Marked figures of a document that are in no table or claim of the named recipes."""
    text = document.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        names = [name.strip() for name in block["recipes"].split(",")]
        for name in names:
            if name not in results.recipes():
                yield f"{document.name}: there are no results of the recipe {name}."
        known = {figure for name in names for figure in _told(results, name)}
        missing = [f for f in FIGURE.findall(block["text"]) if f not in known]
        if missing:
            place = text.count("\n", 0, block.start()) + 1
            told = ", ".join(dict.fromkeys(missing))
            yield f"{document.name}, line {place}: not in the results of {names[0]}: {told}."


def _told(results: Results, recipe: str) -> set[str]:
    """All figures in the report of a recipe, and all means over seeds of its lines."""
    groups = dict.fromkeys(str(line["group"]) for line in results.of(recipe))
    return {figure for group in groups for figure in _told_of(results, recipe, group)}


def _told_of(results: Results, recipe: str, group: str) -> set[str]:
    own = collect(line for line in results.of(recipe) if line["group"] == group)
    own.timings.update(results.timings)
    cells = [cell for table in tables(own) for row in table.rows for cell in row]
    said = [claim.evidence for claim in claims(own)]
    each: dict[tuple[str, ...], list[float]] = {}
    for answer in own.answers:
        asked = (answer.kind, answer.question, answer.stage_name)
        each.setdefault((answer.method, answer.reading, *asked), []).append(answer.accuracy)
    means = [shown(values) for values in each.values()]
    return {figure for text in [*cells, *said, *means] for figure in FIGURE.findall(text)}
