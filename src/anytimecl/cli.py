"""The command line; each command is in `anytimecl.commands`.

Heavy imports are inside the commands, so that `anytimecl --help` is fast.
"""

from __future__ import annotations

import errno
import os
import warnings
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from anytimecl.commands import (
    bench,
    curate,
    demo,
    encode,
    export,
    label,
    learn,
    memory,
    model,
    predict,
    retrain,
    scale,
    serve,
    service,
    stats,
    watch,
)
from anytimecl.commands._words import in_options
from anytimecl.errors import AnytimeError, reason
from anytimecl.registry import IMPORT

COMMANDS = (
    predict,
    learn,
    retrain,
    curate,
    label,
    encode,
    watch,
    serve,
    service,
    stats,
    memory,
    model,
    export,
    bench,
    scale,
    demo,
)

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of writes, which do not name the file


class _Group(TyperGroup):
    """Prints errors and warnings as plain lines; `--debug` shows the traceback."""

    def invoke(self, ctx: Any) -> Any:
        if ctx.params["debug"]:
            return super().invoke(ctx)
        with warnings.catch_warnings():
            warnings.showwarning = _tell
            try:
                return super().invoke(ctx)
            except AnytimeError as error:
                typer.secho(in_options(str(error)), fg="red", err=True)
                raise typer.Exit(2) from error
            except OSError as error:  # e.g. a full disk, or a file in place of a folder
                if error.filename is None and error.errno not in FULL:
                    raise
                where = error.filename or "What was to be written"
                typer.secho(f"{where}: {reason(error)}.", fg="red", err=True)
                raise typer.Exit(2) from error


def _tell(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning without its source line."""
    typer.secho(f"Warning: {message}", fg="yellow", err=True)


app = typer.Typer(
    name="anytimecl",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # bugs show the plain traceback
)


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    outside: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="A module or file of your own that registers codecs, samplers, experts, blends, "
            "backbones or stores.",
        ),
    ] = None,
) -> None:
    """Image classification that learns from every single correction, and never forgets."""
    if outside:
        before = filter(None, [os.environ.get(IMPORT)])
        os.environ[IMPORT] = os.pathsep.join([*before, *outside])  # subprocesses inherit it


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
