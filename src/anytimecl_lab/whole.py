"""The whole lab, in parts that can be stopped: every recipe in every group that needs no hub.

    python -m anytimecl_lab.whole --data DATA [--out FILE] [--device cuda] [--jobs 8] [--minutes 9]
    python -m anytimecl_lab.whole --data DATA --left      # runs nothing, says what there is to do

The same command goes on where it was: what is encoded is in the cache folder, what was run is in
the file of results. It ends with what is left, recipe by recipe, and status 3 where anything is.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from anytimecl.errors import AnytimeError
from anytimecl_lab._clock import Clock
from anytimecl_lab._progress import tell
from anytimecl_lab.costs import contestants, time_all
from anytimecl_lab.digest import digest
from anytimecl_lab.recipe import GROUPS, Recipe, read_recipe
from anytimecl_lab.results import read_lines
from anytimecl_lab.run import (
    GB,
    LEFT,
    add_limits,
    cells_of,
    kind_of,
    run,
    studios_of,
    taken,
    undone,
)
from anytimecl_lab.table import NONE, Table

HERE = ("subsets", "true_vectors")
ALONE = ("quick",)  # a smoke test that is not reported
CHOICES = ("tuning", "tuning_peers")  # tuned on validation images
TIMED = "codecs"
ROUNDS = 100  # batches per timing of a codec, as in the paper
TIMINGS = "codec_timings.jsonl"  # beside the results


class Share(NamedTuple):
    """Recipes that are run together."""

    group: str
    recipes: list[Recipe]
    validation: bool = False


def shares(folder: Path, groups: Sequence[str] = HERE) -> list[Share]:
    """Everything to run; recipes with a second encoder last, since it may not be available."""
    files = [file for file in sorted(folder.glob("*.toml")) if file.name != GROUPS]
    plain = [file for file in files if file.stem not in (*ALONE, *CHOICES)]
    choices = [read_recipe(file, groups[0]) for file in files if file.stem in CHOICES]
    first, last = [], []
    for group in groups:
        recipes = [read_recipe(file, group) for file in plain]
        two = [each for each in recipes if any(method.encoder for method in each.methods)]
        first.append(Share(group, [each for each in recipes if each not in two]))
        last.append(Share(group, two))
    every = [*first, Share(groups[0], choices, validation=True), *last]
    return [share for share in every if share.recipes]


def remaining(every: Sequence[Share], data: Path | None, out: Path, jobs: int) -> Table:
    """What is left of each recipe, and its time if known from earlier runs."""
    known = taken(read_lines(out))
    rows: list[list[str]] = []
    for share in every:
        studios = studios_of(share.recipes, data, validation=share.validation)
        cells = cells_of(studios)
        left = undone(studios, cells, out)
        for name, runs in Counter(cell.recipe for cell in cells).items():
            own = [cell for cell in left if cell.recipe == name]
            spent = [known[kind] for cell in own if (kind := kind_of(cell.key)) in known]
            hours = f"{sum(spent) / jobs / 60:.1f} ({len(spent)} runs)" if spent else NONE
            rows.append([name, share.group, str(runs), str(len(own)), hours])
    headings = ["recipe", "group", "runs", "left", f"minutes, where known, of {jobs} at a time"]
    total = sum(int(row[3]) for row in rows)
    said = f"{total:,} runs are left." if total else "Nothing is left."
    return Table("What is left", headings, rows, said)


def untimed(recipe: Recipe, file: Path) -> bool:
    """Whether a codec has no timing by the current code."""
    there = {line["name"] for line in read_lines(file) if line.get("digest") == digest()}
    return bool({each.name for each in contestants(recipe)} - there)


def go(
    every: Sequence[Share],
    data: Path | None,
    out: Path,
    *,
    device: str = "cpu",
    jobs: int = 1,
    room: float | None = None,
    clock: Clock | None = None,
) -> tuple[int, list[str]]:
    """Run while there is time; returns the number of failures, and what could not start and why."""
    clock = clock or Clock()
    failed, hindered = 0, []
    for share in every:
        if clock.left() <= 0:
            break
        try:
            failed += run(
                share.recipes,
                data,
                out,
                device=device,
                jobs=jobs,
                validation=share.validation,
                room=room,
                clock=clock,
            ).failed
        except AnytimeError as error:  # continue with the others
            names = ", ".join(recipe.name for recipe in share.recipes)
            hindered.append(f"{names} ({share.group}): {error}")
    for recipe in _timed(every):
        if clock.left() > 0 and untimed(recipe, out.with_name(TIMINGS)):
            out.with_name(TIMINGS).unlink(missing_ok=True)  # not comparable between runs
            time_all(recipe, data, out.with_name(TIMINGS), device, rounds=ROUNDS)
    return failed, hindered


def _timed(every: Sequence[Share]) -> Iterator[Recipe]:
    """The recipe to time, of the first group only."""
    own = [each for share in every for each in share.recipes if each.name == TIMED]
    yield from own[:1]


def main(words: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--recipes", type=Path, default=Path("recipes/paper"))
    parser.add_argument("--data", type=Path, help="folder of data sets: NAME.zip or NAME/")
    parser.add_argument("--out", type=Path, default=Path("runs/lab/bench.jsonl"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--groups", default=",".join(HERE), help="of groups.toml, with commas")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--left", action="store_true", help="say what is left, and end")
    add_limits(parser)
    given = parser.parse_args(words)
    failed, hindered = 0, list[str]()
    try:
        every = shares(given.recipes, given.groups.split(","))
        if not given.left:
            room = None if given.device_memory is None else GB * given.device_memory
            failed, hindered = go(
                every,
                given.data,
                given.out,
                device=given.device,
                jobs=given.jobs,
                room=room,
                clock=Clock(given.minutes),
            )
        table = remaining(every, given.data, given.out, given.jobs)
    except AnytimeError as error:
        tell(str(error))
        return 2
    sys.stdout.write(table.markdown() + "\n")
    for reason in hindered:
        tell(f"Not run: {reason}")
    if failed:
        tell(f"{failed:,} runs failed; they are tried again next time.")
    return 1 if failed or hindered else LEFT if any(row[3] != "0" for row in table.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
