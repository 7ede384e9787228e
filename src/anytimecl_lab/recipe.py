"""Recipes: TOML files that define the runs for a table or figure.

title = "Data-incremental learning"
shows = "Figure 3 (c)"
scenario = "data-incremental"
tasks = "targets"                # a group of groups.toml beside the recipe, or a list of names
methods = "few_shot"             # those of another recipe beside it; or a list, as here:
both_settings = true             # methods in the paper's setting are run in this project's, too
labels = "name"                  # or "code": item 000, item 001, ...; or a list of both
seeds = [0, 1, 2]

[[methods]]
name = "AnytimeCL"
method = "online"
options = { beta = 0.1 }         # optional, as are codec and components
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from anytimecl.errors import ModelError, PartError, reason
from anytimecl.registry import Named
from anytimecl_lab.codecs import CODECS
from anytimecl_lab.data import Cut
from anytimecl_lab.methods import METHODS
from anytimecl_lab.scenarios import SHOTS

SCENARIOS = (
    "data-incremental",
    "class-incremental",
    "few-shot",
    "task-incremental",
    "union-data-incremental",
    "mtil",
)
PER_TASK = SCENARIOS[:3]  # a model for each task
LABELS = ("name", "code")
GROUPS = "groups.toml"
OUR_SETTING = ", this project's setting"  # suffix of an ablation's name
# Fields of a recipe or method that do not affect a method's results: names, and other runs.
BESIDES = {"name", "group", "title", "shows", "methods", "seeds", "counts"}


@dataclass(frozen=True)
class Contestant:
    """A method with its options, and its name in tables."""

    name: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    codec: str | Named | None = None  # how examples are stored; None: full tokens
    components: int | None = None  # of a PCA codec; None: its default
    encoder: str | None = None  # a second encoder, for methods that have two


@dataclass(frozen=True)
class Recipe:
    """The runs for a table or figure."""

    name: str
    title: str
    scenario: str
    tasks: tuple[str, ...]
    methods: tuple[Contestant, ...]
    shows: str = ""  # the paper's table or figure
    novel: tuple[str, ...] = ()
    labels: tuple[str, ...] = ("name",)  # "name", "code"
    seeds: tuple[int, ...] = (0, 1, 2)
    per_class: int | None = None  # training examples per class, at most
    per_class_test: int | None = None
    repeats: int = 1  # how often each example arrives, in union data-incremental learning
    stages: tuple[float, ...] | None = None  # shares of the data after which to evaluate
    shots: tuple[int, ...] = SHOTS  # examples per label, in few-shot learning
    backbone: str = "embedded"
    group: str = ""
    label_vectors: str = ""  # a file in the data folder, instead of the model's text encoder
    label_sources: tuple[str, ...] = ()  # of vectors in that file, the best first
    cuts: dict[str, Cut] = field(default_factory=dict)  # tasks cut from one archive
    published: bool = False  # sets from a folder get the names and prompts of sets.toml, too
    counts: dict[str, int] = field(default_factory=dict)  # exact number of training images per task


@dataclass(frozen=True)
class Cell:
    """One run of one method: the unit that can fail, be resumed, or run in parallel."""

    recipe: str
    group: str
    subject: str  # the task, or "all"
    contestant: Contestant
    seed: int

    @property
    def key(self) -> tuple[str, ...]:
        """Key in the lines of results."""
        return (self.recipe, self.group, self.subject, self.contestant.name, str(self.seed))


def read_recipe(file: Path, group: str | None = None) -> Recipe:
    """Read a recipe, with one of the groups of data sets in the file beside it.

    By default the group that the recipe names, or `subsets`.
    """
    values, groups = _read(file), file.with_name(GROUPS)
    named = _read(groups) if groups.exists() else {}
    if isinstance(values.get("methods"), str):
        values["methods"] = _read(file.with_name(f"{values['methods']}.toml")).get("methods")
    if not all(isinstance(each, dict) for each in values.get("methods") or ()):
        raise ModelError(
            f"{file}: methods is a list of tables, [[methods]], or the name of a recipe beside it "
            "that has such a list."
        )
    if values.pop("both_settings", False):
        methods = values.get("methods") or ()
        values["methods"] = [each for given in methods for each in _in_both(given)]
    own_group = values.pop("group", "subsets")
    group = own_group if group is None else group
    sets = named.get(group, {})
    for item in ("tasks", "novel"):
        if isinstance(values.get(item), str):
            if values[item] not in sets:
                raise ModelError(
                    f"{file}: {item} is {values[item]!r}, but {groups} has no such list of data "
                    f"sets in its group {group!r}. Groups: {', '.join(named) or 'none'}."
                )
            values[item] = sets[values[item]]
    if isinstance(values.get("labels"), str):
        values["labels"] = [values["labels"]]
    elif "labels" in values and "label_vectors" in sets:  # codes have no vectors in a file
        values["labels"] = [way for way in values["labels"] if way != "code"]
    own = values.pop("backbones", {}).get(group)  # the recipe's, if it differs from the group's
    values.setdefault("backbone", own or sets.get("backbone", "embedded"))
    values.setdefault("per_class", values.pop("caps", {}).get(group))
    for each in values.get("methods") or ():
        if each.get("encoder") == "group":
            each["encoder"] = sets.get("encoder")
        if "codec" in each:
            each["codec"] = _codec(file, each["codec"])
    for item in ("label_vectors", "label_sources", "published", "counts"):
        if item in sets:
            values.setdefault(item, sets[item])
    try:
        values["cuts"] = {name: Cut(**cut) for name, cut in sets.get("cuts", {}).items()}
        methods = tuple(Contestant(**each) for each in values.pop("methods", None) or ())
        lists = {key: tuple(each) for key, each in values.items() if isinstance(each, list)}
        recipe = Recipe(
            **{"name": file.stem, "group": group, "methods": methods, **values, **lists}
        )
    except TypeError as error:
        raise ModelError(f"{file} is not a recipe: {error}.") from error
    return _checked(file, recipe)


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ModelError(f"The recipe {file} cannot be read: {reason(error)}.") from error


def _in_both(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A method as given, and if that is in the paper's setting, in this project's."""
    yield given
    if (options := dict(given.get("options", {}))).pop("paper", False):
        yield given | {"name": f"{given.get('name')}{OUR_SETTING}", "options": options}


def _codec(file: Path, choice: Any) -> str | Named:
    try:
        named = CODECS.named(choice)
    except PartError as error:
        raise ModelError(f"{file} cannot be followed: {error}") from error
    return named if named.options else named.name


def _checked(file: Path, recipe: Recipe) -> Recipe:
    for item in fields(recipe):
        value = getattr(recipe, item.name)
        if str(item.type).startswith("tuple") and not isinstance(value, tuple | None):
            raise ModelError(f"{file} cannot be followed: {item.name} is a list, not {value!r}.")
    wrong = []
    if recipe.scenario not in SCENARIOS:
        wrong.append(f"scenario is {recipe.scenario!r}, not one of {', '.join(SCENARIOS)}")
    if not recipe.tasks or not recipe.methods or not recipe.seeds:
        wrong.append("tasks, methods and seeds are lists of at least one")
    if not recipe.labels or not set(recipe.labels) <= set(LABELS):
        wrong.append(f"labels is one of {', '.join(LABELS)}, or a list of them")
    if "code" in recipe.labels and recipe.scenario not in PER_TASK:
        wrong.append("labels by code tell the labels of one task apart, not those of several")
    if "code" in recipe.labels and recipe.label_vectors:
        wrong.append("codes have no vectors in a file: labels is name where label_vectors is given")
    for each in recipe.methods:
        if each.method not in METHODS:
            wrong.append(f"there is no method {each.method!r}, only {', '.join(METHODS)}")
    names = [each.name for each in recipe.methods]
    if len(set(names)) < len(names):
        wrong.append("two methods have the same name")
    if wrong:
        raise ModelError(f"{file} cannot be followed: {'; '.join(wrong)}.")
    return recipe


def by_labels(recipe: Recipe) -> list[Recipe]:
    """A recipe for each kind of labels, with a name of its own, so that no table mixes them."""
    return [
        replace(recipe, labels=(way,), name=recipe.name + ("" if way == "name" else f"-{way}"))
        for way in recipe.labels
    ]


def settings_mark(recipe: Recipe, chosen: Contestant) -> str:
    """Digest of everything in a recipe that affects the runs of a method."""
    told = [
        {item: value for item, value in asdict(each).items() if item not in BESIDES}
        for each in (recipe, chosen)
    ]
    plain = json.dumps(told, sort_keys=True, default=str)
    return hashlib.sha256(plain.encode()).hexdigest()[:12]


def cells(recipe: Recipe, seeds: Sequence[int] | None, only: Sequence[str]) -> list[Cell]:
    """All runs of a recipe; `only` selects methods by name or kind."""
    subjects = recipe.tasks if recipe.scenario in PER_TASK else ("all",)
    wanted = [each for each in recipe.methods if not only or {each.name, each.method} & set(only)]
    return [
        Cell(recipe.name, recipe.group, subject, contestant, seed)
        for contestant in wanted
        for subject in subjects
        for seed in (recipe.seeds if seeds is None else seeds)
    ]
