"""Lines of results, read and indexed: means over tasks, lists over seeds."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from anytimecl.errors import StoreError
from anytimecl_lab.metrics import Matrix

Line = dict[str, Any]


def read_lines(file: Path) -> list[Line]:
    """The lines of a file of results; none if it does not exist."""
    if not file.exists():
        return []
    lines = []
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            lines.append(json.loads(text))
        except ValueError as error:
            raise StoreError(
                f"{file}, line {number}, is not a line of results: {error}. Take it out to go on."
            ) from error
    return lines


def add_line(file: Path, line: Line) -> None:
    """Append a line to a file of results."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def key_of(line: Line) -> tuple[str, ...]:
    """A line's key, as `Cell.key`."""
    return tuple(str(line[item]) for item in ("recipe", "group", "subject", "name", "seed"))


@dataclass(frozen=True)
class LabAnswer:
    """One accuracy."""

    recipe: str
    method: str  # as tables name it
    reading: str
    seed: int
    subject: str
    stage: int
    stage_name: str
    kind: str  # of question
    question: str
    accuracy: float


@dataclass(eq=False)
class Results:
    """All results of some recipes; the newest line of each cell."""

    answers: list[LabAnswer]
    lines: dict[tuple[str, ...], Line]
    timings: dict[tuple[str, str], Line] = field(default_factory=dict)  # recipe, method
    _cells: dict[tuple[str, str, str, str], list[LabAnswer]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Build an index."""
        for answer in self.answers:
            key = (answer.recipe, answer.method, answer.reading, answer.kind)
            self._cells.setdefault(key, []).append(answer)

    def digests(self) -> dict[str, Counter[str]]:
        """Digest -> number of lines by recipe."""
        found: dict[str, Counter[str]] = {}
        for line in self.lines.values():
            found.setdefault(mark_of(line), Counter())[str(line["recipe"])] += 1
        return found

    def recipes(self) -> list[str]:
        """In the order of running."""
        return list(dict.fromkeys(key[0] for key in self.lines))

    def of(self, recipe: str) -> list[Line]:
        """The lines of a recipe."""
        return [line for key, line in self.lines.items() if key[0] == recipe]

    def methods(self, recipe: str) -> list[str]:
        """In the order of the recipe."""
        placed = sorted(self.of(recipe), key=lambda line: int(line["place"]))
        return list(dict.fromkeys(str(line["name"]) for line in placed))

    def reading(self, recipe: str, method: str) -> str:
        """A method's default reading; for AnytimeCL its default blend."""
        found = [line["reading"] for line in self.of(recipe) if line["name"] == method]
        return str(found[0]) if found else ""

    def readings(self, recipe: str, method: str) -> list[str]:
        """All readings of a method, in the order of its results."""
        return list(
            dict.fromkeys(
                answer.reading
                for answer in self.answers
                if answer.recipe == recipe and answer.method == method
            )
        )

    def by_stage(
        self, recipe: str, method: str, reading: str | None = None, kind: str = "task"
    ) -> dict[str, list[float]]:
        """Stage -> mean over all tasks, for each seed that has them all."""
        reading = self.reading(recipe, method) if reading is None else reading
        found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        cell = self._cells.get((recipe, method, reading, kind), [])
        for answer in sorted(cell, key=lambda each: each.stage):
            found[answer.stage_name][answer.seed].append(answer.accuracy)
        whole = max((len(v) for seeds in found.values() for v in seeds.values()), default=0)
        return {
            stage: [fmean(v) for _, v in sorted(seeds.items()) if len(v) == whole]
            for stage, seeds in found.items()
        }

    def over_stages(
        self, recipe: str, method: str, reading: str | None = None, stages: Sequence[str] = ()
    ) -> list[float]:
        """Mean over stages, by seed."""
        found = self.by_stage(recipe, method, reading)
        chosen = [values for stage, values in found.items() if not stages or stage in stages]
        if not chosen or len({len(values) for values in chosen}) > 1:
            return []
        return [fmean(column) for column in zip(*chosen, strict=True)]

    def final(
        self, recipe: str, method: str, kind: str, reading: str | None = None, question: str = ""
    ) -> list[float]:
        """After the last stage: mean over questions of a kind (or one of them), by seed."""
        reading = self.reading(recipe, method) if reading is None else reading
        cell = self._cells.get((recipe, method, reading, kind), [])
        last = max((answer.stage for answer in cell), default=0)
        seeds: dict[int, list[float]] = defaultdict(list)
        for answer in cell:
            if answer.stage == last and question in ("", answer.question):
                seeds[answer.seed].append(answer.accuracy)
        return [fmean(values) for _, values in sorted(seeds.items())]

    def half_and_half(
        self, recipe: str, method: str, kind: str, reading: str | None = None
    ) -> list[float]:
        """As `final`, with equal total weights for target tasks and novel tasks."""
        line = self.of(recipe)[0]
        sides = [
            [self.final(recipe, method, kind, reading, task) for task in line[which]]
            for which in ("tasks", "novel")
        ]
        means = [
            [fmean(seeds) for seeds in zip(*filter(None, side), strict=True)] for side in sides
        ]
        if not all(means):
            return []
        return [fmean(pair) for pair in zip(*means, strict=True)]

    def matrices(self, recipe: str, method: str, reading: str | None = None) -> list[Matrix]:
        """Accuracy on each task after each whole task, in order of learning, by seed."""
        reading = self.reading(recipe, method) if reading is None else reading
        tasks = self.of(recipe)[0]["tasks"]
        seeds: dict[int, dict[tuple[str, str], float]] = defaultdict(dict)
        for answer in self._cells.get((recipe, method, reading, "task"), []):
            task = answer.stage_name.removesuffix(" 100 %")
            seeds[answer.seed][task, answer.question] = answer.accuracy
        return [
            [[values[after, task] for task in tasks] for after in tasks]
            for _, values in sorted(seeds.items())
            if all((after, task) in values for after in tasks for task in tasks)
        ]


def mark_of(line: Line) -> str:
    """A line's digest; older lines have one of all code, or none."""
    return str(line.get("digest") or line["versions"].get("code") or "no mark")


def collect(lines: Iterable[Line]) -> Results:
    """Results from lines, without those of failed cells."""
    newest: dict[tuple[str, ...], Line] = {}
    timings: dict[tuple[str, str], Line] = {}
    for line in lines:
        if "ms" in line:
            timings[line["recipe"], line["name"]] = line
        elif "error" not in line:
            newest[key_of(line)] = line
    answers = [
        LabAnswer(
            recipe=line["recipe"],
            method=line["name"],
            reading=reading,
            seed=line["seed"],
            subject=line["subject"],
            stage=result["stage"],
            stage_name=result["name"],
            kind=kind,
            question=question,
            accuracy=accuracy,
        )
        for line in newest.values()
        for result in line["results"]
        for kind, questions in result["answers"].items()
        for question, readings in questions.items()
        for reading, accuracy in readings.items()
    ]
    return Results(answers, newest, timings)
