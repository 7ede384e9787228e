"""A recipe: a TOML file that says what is run for one table or figure.

title = "Data-incremental learning"
shows = "Figure 2 (c)"
scenario = "data-incremental"
tasks = "targets"                # a group of groups.toml beside the recipe, or a list of names
seeds = [0, 1, 2]

[[methods]]
name = "AnytimeCL"
method = "online"
options = { beta = 0.1 }         # optional, as are codec and components
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anytimecl.bench.methods import METHODS
from anytimecl.codec import CODECS
from anytimecl.errors import ModelError

SCENARIOS = (
    "data-incremental",
    "class-incremental",
    "task-incremental",
    "union-data-incremental",
    "mtil",
)
PER_TASK = SCENARIOS[:2]  # a model for each task
GROUPS = "groups.toml"


@dataclass(frozen=True)
class Contestant:
    """A method under the name that tables give it."""

    name: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    codec: str | None = None  # what examples are kept as; None: full tokens
    components: int | None = None  # of a PCA codec; None: its own


@dataclass(frozen=True)
class Recipe:
    """What is run."""

    name: str
    title: str
    scenario: str
    tasks: tuple[str, ...]
    methods: tuple[Contestant, ...]
    shows: str = ""  # the paper's table or figure
    novel: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    per_class: int | None = None  # training examples of each class, at most
    per_class_test: int | None = None
    stages: tuple[float, ...] | None = None  # shares of the data after which is asked
    backbone: str = "embedded"
    group: str = ""


@dataclass(frozen=True)
class Cell:
    """One run of one method: what can fail, be resumed, or run beside others."""

    recipe: str
    group: str
    subject: str  # the task, or "all" of them
    contestant: Contestant
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        """What the cell is known by in the lines of results."""
        return (self.recipe, self.group, self.subject, self.contestant.name, str(self.seed))


def read_recipe(file: Path, group: str = "subsets") -> Recipe:
    """The recipe in a file, with one of the groups of data sets beside it."""
    try:
        values: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        groups = file.with_name(GROUPS)
        named = tomllib.loads(groups.read_text(encoding="utf-8")) if groups.exists() else {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ModelError(f"The recipe {file} cannot be read: {error}") from error
    sets = named.get(group, {})
    for item in ("tasks", "novel"):
        if isinstance(values.get(item), str):
            if values[item] not in sets:
                raise ModelError(
                    f"{file}: {item} is {values[item]!r}, but {groups} has no such list of data "
                    f"sets in its group {group!r}. Groups: {', '.join(named) or 'none'}."
                )
            values[item] = sets[values[item]]
    values.setdefault("backbone", sets.get("backbone", "embedded"))
    try:
        methods = tuple(Contestant(**each) for each in values.pop("methods", ()))
        lists = {key: tuple(each) for key, each in values.items() if isinstance(each, list)}
        recipe = Recipe(
            **{"name": file.stem, "group": group, "methods": methods, **values, **lists}
        )
    except TypeError as error:
        raise ModelError(f"{file} is not a recipe: {error}.") from error
    return _checked(file, recipe)


def _checked(file: Path, recipe: Recipe) -> Recipe:
    wrong = []
    if recipe.scenario not in SCENARIOS:
        wrong.append(f"scenario is {recipe.scenario!r}, not one of {', '.join(SCENARIOS)}")
    if not recipe.tasks or not recipe.methods or not recipe.seeds:
        wrong.append("tasks, methods and seeds are lists of at least one")
    for each in recipe.methods:
        if each.method not in METHODS:
            wrong.append(f"there is no method {each.method!r}, only {', '.join(METHODS)}")
        if each.codec is not None and each.codec not in CODECS:
            wrong.append(f"there is no codec {each.codec!r}, only {', '.join(CODECS)}")
    names = [each.name for each in recipe.methods]
    if len(set(names)) < len(names):
        wrong.append("two methods have the same name")
    if wrong:
        raise ModelError(f"{file} cannot be followed: {'; '.join(wrong)}.")
    return recipe


def cells(recipe: Recipe, seeds: Sequence[int] | None, only: Sequence[str]) -> list[Cell]:
    """All runs of a recipe; `only` keeps methods by their name or kind."""
    subjects = recipe.tasks if recipe.scenario in PER_TASK else ("all",)
    wanted = [each for each in recipe.methods if not only or {each.name, each.method} & set(only)]
    return [
        Cell(recipe.name, recipe.group, subject, contestant, seed)
        for contestant in wanted
        for subject in subjects
        for seed in (recipe.seeds if seeds is None else seeds)
    ]
