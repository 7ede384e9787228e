"""Run a recipe: one JSON line for every run of a method, with all that it was asked.

    python -m anytimecl.bench.run RECIPE... --data DIR --out FILE [--device cuda] [--jobs 8]
                                  [--seeds 0,1,2] [--only online,original] [--group subsets]

What the file holds already is not run again; what failed is. This module and all below it do
without rich, typer and matplotlib, so that a bare machine can run the suite.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import anytimecl
from anytimecl.bench._progress import tell
from anytimecl.bench.methods import METHODS, Method
from anytimecl.bench.recipe import Cell, Recipe, cells, read_recipe
from anytimecl.bench.scenarios import Question
from anytimecl.bench.studio import Shelf, Studio
from anytimecl.bench.world import CHUNK
from anytimecl.errors import AnytimeError, ModelError, StoreError
from anytimecl.tail import pick

Line = dict[str, Any]


# ----------------------------------------------------------------------------------------- a cell


@torch.no_grad()
def run_cell(studio: Studio, cell: Cell) -> Line:
    """Learn stage by stage, ask after each, and say how long it took."""
    began = time.perf_counter()
    chosen = cell.contestant
    stages = studio.stream(cell.subject, cell.seed)
    world = studio.world(stages, cell.seed, chosen.codec, chosen.components)
    method = METHODS[chosen.method](world, **chosen.options)
    told: list[Line] = []
    waiting: list[int] = []  # examples that the method has not been given yet
    arrived = 0
    for number, stage in enumerate(stages):
        waiting += stage.examples
        arrived += len(stage.examples)
        if not method.online and not stage.whole:
            continue
        if waiting:
            method.learn(waiting)
        waiting = []
        questions = studio.questions(cell.subject)
        if number == len(stages) - 1:
            questions += studio.final_questions(cell.seed)
        told.append(
            {
                "stage": number,
                "name": stage.name,
                "examples": arrived,
                "answers": ask(studio, method, questions),
            }
        )
    line = about(studio, cell) | {"reading": method.default}
    if chosen.codec is not None:
        line["bytes"] = studio.records(chosen.codec, chosen.components).bytes
    return line | {"results": told, "seconds": round(time.perf_counter() - began, 3)}


def ask(
    studio: Studio, method: Method, questions: Sequence[Question]
) -> dict[str, dict[str, dict[str, float]]]:
    """Accuracy in per cent: kind of question -> question -> reading -> accuracy."""
    answers: dict[str, dict[str, dict[str, float]]] = {}
    for question in questions:
        answers.setdefault(question.kind, {})[question.name] = accuracies(studio, method, question)
    return answers


def accuracies(studio: Studio, method: Method, question: Question) -> dict[str, float]:
    """Every reading of a method on one question."""
    place = {name: at for at, name in enumerate(question.candidates)}
    by_task: dict[str, list[int]] = {}
    for task, i in question.images:
        by_task.setdefault(task, []).append(i)
    right: dict[str, int] = {}
    for task, images in by_task.items():
        labels = studio.test[task].labels
        for start in range(0, len(images), CHUNK):
            some = images[start : start + CHUNK]
            tokens = pick(studio.asked(task), torch.tensor(some, device=studio.device))
            target = torch.tensor([place[labels[i]] for i in some], device=studio.device)
            for reading, scores in method.readings(tokens, question.candidates).items():
                correct = int((scores.argmax(1) == target).sum())
                right[reading] = right.get(reading, 0) + correct
    total = len(question.images)
    return {reading: round(100 * count / total, 4) for reading, count in right.items()}


def about(studio: Studio, cell: Cell) -> Line:
    """What was run, where, when and with which versions."""
    recipe = studio.recipe
    where = torch.cuda.get_device_name() if studio.device.startswith("cuda") else "CPU"
    return {
        "recipe": cell.recipe,
        "group": cell.group,
        "scenario": recipe.scenario,
        "backbone": recipe.backbone,
        "fingerprint": studio.backbone.spec.fingerprint,
        "subject": cell.subject,
        "tasks": list(recipe.tasks),
        "novel": list(recipe.novel),
        "validation": studio.validation,
        "place": recipe.methods.index(cell.contestant),  # in the tables of the recipe
        **asdict(cell.contestant),
        "seed": cell.seed,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": {"device": where, "processor": _processor(), "cores": os.cpu_count()},
        "versions": {
            "anytimecl": anytimecl.__version__,
            "code": _code(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
    }


@cache
def _code() -> str:
    """A digest of this package: lines of results that differ in it may differ in method."""
    digest = hashlib.sha256()
    for file in sorted(Path(anytimecl.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _processor() -> str:
    """As the system calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


# -------------------------------------------------------------------------------------- all cells


def run(
    recipes: Sequence[Recipe],
    data: Path | None,
    out: Path,
    *,
    device: str = "cpu",
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    jobs: int = 1,
    validation: bool = False,
) -> int:
    """Every cell of these recipes that `out` does not hold; returns how many failed."""
    if validation:  # so that no table ever mixes the two
        recipes = [replace(recipe, name=f"{recipe.name}-validation") for recipe in recipes]
    done = {key_of(line) for line in read_lines(out) if "error" not in line}
    _exactly()
    shelf = Shelf()
    studios = {each.name: Studio(each, data, device, validation, shelf) for each in recipes}
    every = [cell for recipe in recipes for cell in cells(recipe, seeds, only)]
    if not every:
        raise ModelError(f"None of these recipes has a method {', '.join(only)}.")
    left = [cell for cell in every if cell.key not in done]
    tell(f"{len(left):,} runs to do, {len(every) - len(left):,} done before")
    out.parent.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(cell.recipe for cell in left):
        its_own = [cell.contestant for cell in left if cell.recipe == name]
        studios[name].prepare([each for i, each in enumerate(its_own) if each not in its_own[:i]])
    failed = 0
    for number, line in enumerate(_lines(studios, left, jobs), start=1):
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        failed += "error" in line
        told = line.get("error") or f"{line['seconds']:.1f} s"
        name = f"{line['recipe']}: {line['name']}, {line['subject']}, seed {line['seed']}"
        tell(f"[{number}/{len(left)}] {name}: {told}")
    return failed


def _lines(studios: dict[str, Studio], left: Sequence[Cell], jobs: int) -> Iterator[Line]:
    if jobs == 1 or not left:
        yield from (_safely(studios[cell.recipe], cell) for cell in left)
        return
    plain = [(each.recipe, each.data, each.device, each.validation) for each in studios.values()]
    with ProcessPoolExecutor(min(jobs, len(left)), get_context("spawn"), _begin, (plain,)) as pool:
        cell_of = {pool.submit(_in_worker, cell): cell for cell in left}
        for future in as_completed(cell_of):
            try:
                yield future.result()
            except BrokenProcessPool as error:  # a process was killed, for memory perhaps
                yield _failed(cell_of[future], error)


def _safely(studio: Studio, cell: Cell) -> Line:
    """A line in any case: what went wrong in one cell is no reason to end the others."""
    try:
        return run_cell(studio, cell)
    except Exception as error:
        tell(traceback.format_exc())
        return _failed(cell, error)
    finally:
        gc.collect()  # a method's captured graph holds memory of the device, in cycles


def _failed(cell: Cell, error: Exception) -> Line:
    return {
        "recipe": cell.recipe,
        "group": cell.group,
        "subject": cell.subject,
        "name": cell.contestant.name,
        "seed": cell.seed,
        "error": f"{type(error).__name__}: {error}",
    }


_studios: dict[str, Studio] = {}  # of this process, by recipe


def _exactly() -> None:
    """Single precision means that in convolutions too, as on a CPU."""
    torch.backends.cudnn.allow_tf32 = False


def _begin(plain: Sequence[tuple[Recipe, Path | None, str, bool]]) -> None:
    torch.set_num_threads(1)
    _exactly()
    shelf = Shelf()
    for recipe, data, device, validation in plain:
        _studios[recipe.name] = Studio(recipe, data, device, validation, shelf)


def _in_worker(cell: Cell) -> Line:
    return _safely(_studios[cell.recipe], cell)


def read_lines(file: Path) -> list[Line]:
    """The lines of a file of results; none where there is no file."""
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


def key_of(line: Line) -> tuple[str, ...]:
    """What a line is known by, as `Cell.key`."""
    return tuple(str(line[item]) for item in ("recipe", "group", "subject", "name", "seed"))


def main(words: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("recipe", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, help="folder of data sets: NAME.zip or NAME/")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/results.jsonl"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--group", default="subsets", help="data sets and model: see groups.toml")
    parser.add_argument("--seeds", help="as 0,1,2; unless given: the recipe's")
    parser.add_argument("--only", default="", help="methods, by name or kind, with commas")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--validation", action="store_true", help="never look at test images")
    given = parser.parse_args(words)
    try:
        failed = run(
            [read_recipe(file, given.group) for file in given.recipe],
            given.data,
            given.out,
            device=given.device,
            seeds=[int(seed) for seed in given.seeds.split(",")] if given.seeds else None,
            only=[name for name in given.only.split(",") if name],
            jobs=given.jobs,
            validation=given.validation,
        )
    except AnytimeError as error:
        tell(str(error))
        return 2
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
