"""Run a recipe: one JSON line for every run of a method, with all that it was asked.

    python -m anytimecl_lab.run RECIPE... --data DIR --out FILE [--device cuda] [--jobs 8]
                                  [--seeds 0,1,2] [--only online,original] [--group subsets]
                                  [--minutes 9] [--device-memory 12]

What the file holds already is not run again; what failed is, and what another version of the
method, the lab, the model or the recipe has written. With `--minutes` no run begins that would not
end in time, and what is left is told; the same command goes on. This module and all below it do
without rich, typer and matplotlib, so that a bare machine can run the suite.
"""

from __future__ import annotations

import argparse
import gc
import sys
import traceback
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch

from anytimecl.errors import AnytimeError, ModelError
from anytimecl_lab._clock import Clock, OutOfTime
from anytimecl_lab._progress import tell
from anytimecl_lab.ask import run_cell
from anytimecl_lab.digest import digest
from anytimecl_lab.examples import Examples, bytes_of, check_device, default_room
from anytimecl_lab.needs import check_counts, counted
from anytimecl_lab.recipe import Cell, Recipe, by_labels, cells, read_recipe, settings_mark
from anytimecl_lab.records import begin_process
from anytimecl_lab.results import Line, add_line, key_of, read_lines
from anytimecl_lab.studio import Key, Shelf, Studio

GB = 1e9
LEFT = 3  # exit status if the time was over before all runs were done


class Ended(NamedTuple):
    """Number of failed runs, and of those not started for lack of time."""

    failed: int
    left: int


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
    dry: bool = False,
    room: float | None = None,
    clock: Clock | None = None,
) -> Ended:
    """Run every cell of these recipes that `out` does not have, while there is time.

    `room` is for examples on the device, in bytes; more are streamed. A `dry` run only prints what
    the recipes need.
    """
    if jobs < 1:
        raise ModelError(f"At least one run at a time is needed, not {jobs}.")
    check_device(device)
    clock = clock or Clock()
    room = default_room(device) if room is None else room
    studios = studios_of(recipes, data, device, validation=validation, room=room / jobs)
    _exactly()
    every = cells_of(studios, seeds, only)
    for studio in studios.values():
        if dry or studio.recipe.counts:
            tell(counted(studio).markdown())
            check_counts(studio)
    if dry:
        return Ended(0, 0)
    left = undone(studios, every, out)
    tell(f"{len(left):,} runs to do, {len(every) - len(left):,} done before")
    ready, failed, ended = _prepared(studios, left, clock), 0, 0
    for line in _lines(studios, ready, jobs, clock, taken(read_lines(out)), room):
        add_line(out, line)
        failed += "error" in line
        ended += 1
        told = line.get("error") or f"{line['seconds']:.1f} s"
        name = f"{line['recipe']}: {line['name']}, {line['subject']}, seed {line['seed']}"
        tell(f"[{ended}/{len(left)}] {name}: {told}")
    return Ended(failed, len(left) - ended)


def studios_of(
    recipes: Sequence[Recipe],
    data: Path | None,
    device: str = "cpu",
    *,
    validation: bool = False,
    room: float = float("inf"),
) -> dict[str, Studio]:
    """Recipe -> its studio; each kind of labels is a recipe of its own."""
    recipes = [each for recipe in recipes for each in by_labels(recipe)]
    if validation:  # so that no table mixes the two
        recipes = [replace(recipe, name=f"{recipe.name}-validation") for recipe in recipes]
    shelf = Shelf()
    found = {each.name: Studio(each, data, device, validation, shelf, room) for each in recipes}
    if len(found) < len(recipes):
        raise ModelError(
            "Two of these recipes have the same name, so their results could not be told apart: "
            f"{', '.join(each.name for each in recipes)}. Run one of them at a time."
        )
    return found


def cells_of(
    studios: dict[str, Studio], seeds: Sequence[int] | None = None, only: Sequence[str] = ()
) -> list[Cell]:
    """All requested runs."""
    methods = [each for studio in studios.values() for each in studio.recipe.methods]
    if unknown := [n for n in only if all(n not in (each.name, each.method) for each in methods)]:
        raise ModelError(f"None of these recipes has a method {', '.join(unknown)}.")
    return [cell for each in studios.values() for cell in cells(each.recipe, seeds, only)]


def undone(studios: dict[str, Studio], every: Sequence[Cell], out: Path) -> list[Cell]:
    """Runs without a line in a file by the current code, model and recipe."""
    held = {key_of(line): line for line in read_lines(out) if line.get("digest") == digest()}

    def is_done(cell: Cell) -> bool:
        line, studio = held.get(cell.key), studios[cell.recipe]
        return (
            line is not None
            and line.get("settings") == settings_mark(studio.recipe, cell.contestant)
            and line.get("fingerprint") == studio.backbone.spec.fingerprint
        )

    return [cell for cell in every if not is_done(cell)]


def _prepared(studios: dict[str, Studio], left: Sequence[Cell], clock: Clock) -> list[Cell]:
    """The runs that can start: everything they need is encoded."""
    ready: list[Cell] = []
    for name in dict.fromkeys(cell.recipe for cell in left):
        its_own = [cell for cell in left if cell.recipe == name]
        chosen = [cell.contestant for cell in its_own]
        try:
            studios[name].prepare(
                [each for i, each in enumerate(chosen) if each not in chosen[:i]], clock
            )
        except OutOfTime:
            tell(f"No time was left to encode all that {name} needs; the same command goes on.")
            break
        ready += its_own
    return ready


def taken(lines: Sequence[Line]) -> dict[tuple[str, ...], float]:
    """Recipe, group, method -> longest time of a run in seconds, in any version."""
    found: dict[tuple[str, ...], float] = {}
    for line in lines:
        if "seconds" in line:
            key = kind_of(key_of(line))
            found[key] = max(found.get(key, 0.0), float(line["seconds"]))
    return found


def kind_of(key: tuple[str, ...]) -> tuple[str, ...]:
    """Recipe, group and method of a run."""
    recipe, group, _, name, _ = key
    return recipe, group, name


def _in_time(
    cells: Sequence[Cell], clock: Clock, known: dict[tuple[str, ...], float]
) -> Iterator[Cell]:
    """Cells that should end in time, decided when their turn comes; always the first."""
    for number, cell in enumerate(cells):
        if number == 0 or clock.left() > known.get(kind_of(cell.key), 0.0):
            yield cell


def _lines(
    studios: dict[str, Studio],
    ready: Sequence[Cell],
    jobs: int,
    clock: Clock,
    known: dict[tuple[str, ...], float],
    room: float,
) -> Iterator[Line]:
    coming = _in_time(ready, clock, known)
    if jobs == 1 or not ready:
        yield from (_safely(studios[cell.recipe], cell) for cell in coming)
        return
    empty = [replace(each, shelf=Shelf()) for each in studios.values()]  # nothing loaded yet
    given = empty, shared_by(studios, ready, room)
    jobs, done = min(jobs, len(ready)), False
    while not done:
        with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, given) as pool:
            done = yield from _in_pool(pool, coming, jobs)


def _in_pool(
    pool: ProcessPoolExecutor, coming: Iterator[Cell], jobs: int
) -> Generator[Line, None, bool]:
    """Lines of all cells, or until a process is killed, perhaps for the memory it took.

    That breaks the pool: the cells that were running have failed, and those to come need another
    pool. Returns whether the pool is whole.
    """
    running: dict[Future[Line], Cell] = {}
    whole = True
    while True:
        while whole and len(running) < jobs and (cell := next(coming, None)) is not None:
            try:
                running[pool.submit(_in_worker, cell)] = cell
            except BrokenProcessPool as error:
                whole = False
                yield _failed(cell, error)
        if not running:
            return whole
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            cell = running.pop(future)
            try:
                yield future.result()
            except BrokenProcessPool as error:
                whole = False
                yield _failed(cell, error)


def shared_by(
    studios: dict[str, Studio], ready: Sequence[Cell], room: float
) -> dict[Key, Examples]:
    """Examples on a GPU shared by all processes, in half of the room; the rest is for each process.

    Nothing on a CPU, where processes map the same files.
    """
    shared: dict[Key, Examples] = {}
    shelf = Shelf(shared)
    for name in dict.fromkeys(cell.recipe for cell in ready):
        studio = replace(studios[name], shelf=shelf)
        if studio.device.startswith("cuda"):
            left = room / 2 - sum(map(bytes_of, shared.values()))
            shared |= studio.to_share(left)
    return shared


def _safely(studio: Studio, cell: Cell) -> Line:
    """Run a cell; an exception becomes its line, so that others continue."""
    try:
        return run_cell(studio, cell)
    except Exception as error:
        tell(traceback.format_exc())
        return _failed(cell, error)
    finally:
        gc.collect()  # frees captured graphs, which are in reference cycles


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
    """Disable TF32 in convolutions, for single precision as on a CPU."""
    torch.backends.cudnn.allow_tf32 = False


def _begin(studios: Sequence[Studio], shared: dict[Key, Examples]) -> None:
    begin_process()
    _exactly()
    shelf = Shelf(shared)
    for studio in studios:
        _studios[studio.recipe.name] = replace(studio, shelf=shelf)


def _in_worker(cell: Cell) -> Line:
    return _safely(_studios[cell.recipe], cell)


def main(words: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("recipe", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, help="folder of data sets: NAME.zip or NAME/")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/results.jsonl"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--group", help="data sets and model: see groups.toml; else its own")
    parser.add_argument("--seeds", type=numbers, help="as 0,1,2; unless given: the recipe's")
    parser.add_argument("--only", default="", help="methods, by name or kind, with commas")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--validation", action="store_true", help="never look at test images")
    parser.add_argument("--dry-run", action="store_true", help="say what it needs, and end")
    add_limits(parser)
    given = parser.parse_args(words)
    try:
        ended = run(
            [read_recipe(file, given.group) for file in given.recipe],
            given.data,
            given.out,
            device=given.device,
            seeds=given.seeds,
            only=[name for name in given.only.split(",") if name],
            jobs=given.jobs,
            validation=given.validation,
            dry=given.dry_run,
            room=None if given.device_memory is None else GB * given.device_memory,
            clock=Clock(given.minutes),
        )
    except AnytimeError as error:
        tell(str(error))
        return 2
    if ended.left:
        tell(f"{ended.left:,} runs are left; the same command goes on.")
    return 1 if ended.failed else LEFT if ended.left else 0


def numbers(text: str) -> list[int]:
    """Numbers with commas between them.

    >>> numbers("0,1,2")
    [0, 1, 2]
    """
    return [int(number) for number in text.split(",")]


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add options for time and memory limits."""
    parser.add_argument("--minutes", type=float, help="begin no run that would not end by then")
    parser.add_argument(
        "--device-memory",
        type=float,
        help="GB for examples on the device, the others are streamed; unless given: half of it",
    )


if __name__ == "__main__":
    sys.exit(main())
