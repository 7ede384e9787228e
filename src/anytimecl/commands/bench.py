"""`anytimecl bench`: the paper's tables and figures on anyone's data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytimecl.commands._screen import counted

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
    str, typer.Option(help="Which data sets and model: a group of groups.toml beside the recipe.")
]
Seeds = Annotated[str | None, typer.Option(help="As 0,1,2; unless given: the recipe's.")]
Only = Annotated[str, typer.Option(help="Only these methods, by name or kind, with commas.")]
Notes = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="A text file, put above the tables."),
]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at the same time, each in a process.")]
Validation = Annotated[
    bool, typer.Option("--validation", help="Ask about held-out training images, never the test.")
]
Files = Annotated[
    list[Path] | None, typer.Argument(metavar="[RESULTS]...", help="Files of results.")
]
Folder = Annotated[Path, typer.Option(help="Folder for report.md, report.html and results.csv.")]
CodecRecipe = Annotated[Path, typer.Option("--recipe", help="Which codecs, on which tasks.")]


def register(main: typer.Typer) -> None:
    """Add `anytimecl bench` to the program."""
    group = typer.Typer(
        name="bench", help="Run the paper's experiments and report them.", no_args_is_help=True
    )
    group.command("run")(run)
    group.command("report")(report)
    group.command("codecs")(codecs)
    main.add_typer(group)


def run(
    recipe: Recipes,
    data: Data = None,
    out: Out = RESULTS,
    device: Device = "cpu",
    group: Group = "subsets",
    seeds: Seeds = None,
    only: Only = "",
    jobs: Jobs = 1,
    validation: Validation = False,
) -> None:
    """Run recipes; what is in the file of results already is not run again."""
    from anytimecl.bench.recipe import read_recipe
    from anytimecl.bench.run import run as run_recipes

    failed = run_recipes(
        [read_recipe(file, group) for file in recipe],
        data,
        out,
        device=device,
        seeds=_numbers(seeds),
        only=[name for name in only.split(",") if name],
        jobs=jobs,
        validation=validation,
    )
    typer.echo(f"The results are in {out}. Show them: anytimecl bench report {out}")
    if failed:
        typer.echo(f"{counted(failed, 'run')} failed; run again to try those again.", err=True)
        raise typer.Exit(1)


def report(results: Files = None, out: Folder = Path("runs/bench"), notes: Notes = None) -> None:
    """Make tables and plots of results: Markdown, CSV, and one HTML page."""
    from anytimecl.bench.report import write_report

    said = notes.read_text(encoding="utf-8") if notes else ""
    for file in write_report(results or [RESULTS], out, notes=said):
        typer.echo(file)


def codecs(
    data: Data = None,
    out: Folder = Path("runs/codecs"),
    device: Device = "cpu",
    group: Group = "subsets",
    seeds: Seeds = None,
    jobs: Jobs = 1,
    recipe: CodecRecipe = Path("recipes/paper/codecs.toml"),
) -> None:
    """Compare codecs: size, time and accuracy, beside the paper's figures."""
    from anytimecl.bench.codecs import time_all
    from anytimecl.bench.recipe import read_recipe
    from anytimecl.bench.report import write_report
    from anytimecl.bench.run import run as run_recipes

    chosen = read_recipe(recipe, group)
    results, timings = out / "results.jsonl", out / "timings.jsonl"
    failed = run_recipes([chosen], data, results, device=device, seeds=_numbers(seeds), jobs=jobs)
    timings.unlink(missing_ok=True)  # times are of this machine, now
    time_all(chosen, data, timings, device)
    for file in write_report([results, timings], out, "Codecs"):
        typer.echo(file)
    if failed:
        typer.echo(f"{counted(failed, 'run')} failed; run again to try those again.", err=True)
        raise typer.Exit(1)


def _numbers(text: str | None) -> list[int] | None:
    """Seeds as people write them."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(
            f"Seeds are whole numbers with commas, as 0,1,2, and not {text!r}.",
            param_hint="--seeds",
        ) from error
