"""`anytimecl bench`: the paper's tables and figures on any data."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from anytimecl.commands._screen import counted
from anytimecl.errors import ModelError

RESULTS = Path("runs/bench/results.jsonl")

Recipes = Annotated[
    list[Path], typer.Argument(metavar="RECIPE...", help="Files such as recipes/paper/quick.toml.")
]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder of data sets, NAME.zip or NAME/; others come from the hub."),
]
Out = Annotated[Path, typer.Option(help="File of results, one JSON line a run; resumed.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")]
Group = Annotated[
    str | None,
    typer.Option(
        help="Data sets and model: a group of groups.toml beside the recipe; else the recipe's own."
    ),
]
Seeds = Annotated[str | None, typer.Option(help="As 0,1,2; unless given: the recipe's.")]
Only = Annotated[str, typer.Option(help="Only these methods, by name or kind, with commas.")]
Notes = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="A text file, put above the tables."),
]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time, each in a process.")]
Validation = Annotated[
    bool,
    typer.Option(
        "--validation", help="Evaluate on held-out training images, never on test images."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Count images and say what it will need; run nothing.")
]
Minutes = Annotated[
    float | None,
    typer.Option(help="Begin no run that would not end by then; run again to go on."),
]
DeviceMemory = Annotated[
    float | None,
    typer.Option(
        help="GB for examples on the device; the others are streamed. Unless given: half of it."
    ),
]
Files = Annotated[
    list[Path] | None, typer.Argument(metavar="[RESULTS]...", help="Files of results.")
]
Mixed = Annotated[
    bool, typer.Option("--mixed", help="Allow results of several versions of the method.")
]
OneGroup = Annotated[
    str | None, typer.Option(help="Results of this group alone, where files have several.")
]
Committed = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[RESULTS]...", help="Unless given: benchmarks/results/bench.jsonl."),
]
RecipeFolder = Annotated[Path, typer.Option(help="Folder of the recipes that were run.")]
Documents = Annotated[
    list[Path] | None,
    typer.Option("--document", help="Whose figures to find; unless given: README and docs."),
]
Folder = Annotated[Path, typer.Option(help="Folder for report.md, report.html and results.csv.")]
CodecRecipe = Annotated[Path, typer.Option("--recipe", help="Which codecs, on which tasks.")]


def register(main: typer.Typer) -> None:
    """Add `anytimecl bench` to the program."""
    group = typer.Typer(
        name="bench", help="Run the paper's experiments and report them.", no_args_is_help=True
    )
    group.callback()(_lab)
    group.command("run")(run)
    group.command("report")(report)
    group.command("codecs")(codecs)
    group.command("verify")(verify)
    main.add_typer(group)


def _lab() -> None:
    """Check that the lab, a separate package, is installed."""
    if find_spec("anytimecl_lab") is None:
        raise ModelError(
            "The benchmark lab is not installed: it is the package anytimecl_lab of the same "
            "repository. Install from its folder: pip install -c constraints.txt '.[bench]'"
        )


def run(
    recipe: Recipes,
    data: Data = None,
    out: Out = RESULTS,
    device: Device = "cpu",
    group: Group = None,
    seeds: Seeds = None,
    only: Only = "",
    jobs: Jobs = 1,
    validation: Validation = False,
    dry_run: DryRun = False,
    minutes: Minutes = None,
    device_memory: DeviceMemory = None,
) -> None:
    """Run recipes; runs that are already in the results file are skipped."""
    from anytimecl_lab._clock import Clock
    from anytimecl_lab.recipe import read_recipe
    from anytimecl_lab.run import GB
    from anytimecl_lab.run import run as run_recipes

    ended = run_recipes(
        [read_recipe(file, group) for file in recipe],
        data,
        out,
        device=device,
        seeds=_numbers(seeds),
        only=[name for name in only.split(",") if name],
        jobs=jobs,
        validation=validation,
        dry=dry_run,
        room=None if device_memory is None else GB * device_memory,
        clock=Clock(minutes),
    )
    if dry_run:
        return
    typer.echo(f"The results are in {out}. Show them: anytimecl bench report {out}")
    if ended.left:
        typer.echo(f"{counted(ended.left, 'run')} left; the same command goes on.", err=True)
    _check(ended.failed)


def report(
    results: Files = None,
    out: Folder = Path("runs/bench"),
    notes: Notes = None,
    mixed: Mixed = False,
    group: OneGroup = None,
) -> None:
    """Make tables and plots of results: Markdown, CSV, and one HTML page."""
    from anytimecl_lab.report import write_report

    said = notes.read_text(encoding="utf-8") if notes else ""
    for file in write_report(results or [RESULTS], out, notes=said, mixed=mixed, group=group):
        typer.echo(file)


def verify(
    results: Committed = None,
    recipes: RecipeFolder = Path("recipes/paper"),
    documents: Documents = None,
) -> None:
    """Check committed results: their recipes, their version, and the figures taken from them."""
    from anytimecl_lab.verify import verify as check

    files = results or [Path("benchmarks/results/bench.jsonl")]
    texts = documents or [Path("README.md"), *sorted(Path("docs").glob("*.md"))]
    problems = check(files, recipes, texts)
    for problem in problems:
        typer.echo(problem)
    if problems:
        typer.echo(f"{counted(len(problems), 'problem')}.", err=True)
        raise typer.Exit(1)
    typer.echo("Every line belongs to a recipe and to the present version; every figure is found.")


def codecs(
    data: Data = None,
    out: Folder = Path("runs/codecs"),
    device: Device = "cpu",
    group: Group = None,
    seeds: Seeds = None,
    jobs: Jobs = 1,
    recipe: CodecRecipe = Path("recipes/paper/codecs.toml"),
) -> None:
    """Compare codecs: size, time and accuracy, beside the paper's figures."""
    from anytimecl_lab.costs import time_all
    from anytimecl_lab.recipe import read_recipe
    from anytimecl_lab.report import write_report
    from anytimecl_lab.run import run as run_recipes

    chosen = read_recipe(recipe, group)
    results, timings = out / "results.jsonl", out / "timings.jsonl"
    ended = run_recipes([chosen], data, results, device=device, seeds=_numbers(seeds), jobs=jobs)
    timings.unlink(missing_ok=True)  # timings of other runs or machines are not comparable
    time_all(chosen, data, timings, device)
    for file in write_report([results, timings], out, "Codecs"):
        typer.echo(file)
    _check(ended.failed)


def _check(failed: int) -> None:
    if failed:
        typer.echo(f"{counted(failed, 'run')} failed; run again to try those again.", err=True)
        raise typer.Exit(1)


def _numbers(text: str | None) -> list[int] | None:
    """Parse a list of seeds."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"Seeds are whole numbers with commas, as 0,1,2, and not {text!r}.",
            param_hint="--seeds",
        ) from error
