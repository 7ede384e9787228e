"""The command line: what it offers as a whole; each command lives in `anytimecl.commands`.

Heavy imports wait inside the commands, so that `anytimecl --help` answers at once.
"""

from __future__ import annotations

import warnings
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from anytimecl.commands import (
    bench,
    demo,
    export,
    learn,
    memory,
    model,
    predict,
    scale,
    serve,
    stats,
    watch,
)
from anytimecl.errors import AnytimeError

COMMANDS = (predict, learn, watch, serve, stats, memory, model, export, bench, scale, demo)


class _Group(TyperGroup):
    """Shows errors and warnings as lines for people; `--debug` shows where they come from."""

    def invoke(self, ctx: Any) -> Any:
        if ctx.params["debug"]:
            return super().invoke(ctx)
        with warnings.catch_warnings():
            warnings.showwarning = _tell
            try:
                return super().invoke(ctx)
            except AnytimeError as error:
                typer.secho(str(error), fg="red", err=True)
                raise typer.Exit(2) from error


def _tell(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning for people, without the line of code that gave it."""
    typer.secho(f"Warning: {message}", fg="yellow", err=True)


app = typer.Typer(
    name="anytimecl",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a bug deserves its plain traceback
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Image classification that learns from every single correction, and never forgets."""


@app.command()
def version() -> None:
    """Print the version of anytimecl."""
    try:
        typer.echo(installed_version("anytimecl"))
    except PackageNotFoundError:
        typer.echo("unknown: anytimecl runs from a source folder that is not installed")


for _command in COMMANDS:
    _command.register(app)


def main() -> None:
    """The `anytimecl` program."""
    app()


if __name__ == "__main__":
    main()
