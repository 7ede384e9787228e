"""The command line: what it offers as a whole; each command lives in `anytimecl.commands`.

Heavy imports wait inside the commands, so that `anytimecl --help` answers at once.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from anytimecl.commands import model
from anytimecl.errors import AnytimeError

COMMANDS = (model,)


class _Group(TyperGroup):
    """Shows an error meant for people as a red line, and its traceback only under `--debug`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except AnytimeError as error:
            if ctx.params["debug"]:
                raise
            typer.secho(str(error), fg="red", err=True)
            raise typer.Exit(2) from error


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
