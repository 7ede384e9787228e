"""`anytimecl service`: memories and tokens of a running service."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from anytimecl.client import Client

VARIABLES = ("ANYTIMECL_ADMIN_TOKEN", "ANYTIMECL_WRITE_TOKEN", "ANYTIMECL_READ_TOKEN")
Right = Literal["read", "write", "admin"]
Url = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="ANYTIMECL_URL",
        help=f"The service. Its token: {', '.join(VARIABLES)}, the first that is set.",
    ),
]
Memory = Annotated[
    str | None, typer.Option("--memory", metavar="NAME", help="Without it, the first.")
]
LOCAL = "http://127.0.0.1:8000"

service = typer.Typer(name="service", no_args_is_help=True, help="Administer a running service.")


def register(main: typer.Typer) -> None:
    """Add `anytimecl service` to the program."""
    main.add_typer(service)


@service.command()
def memories(url: Url = LOCAL) -> None:
    """List the memories that the token is valid for."""
    rows = [
        (one["name"], one["right"], "open" if one["open"] else "", f"{one['bytes']:,} bytes")
        for one in _client(url).memories()
    ]
    _table(rows)


@service.command()
def create(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Of new memories.")],
    url: Url = LOCAL,
) -> None:
    """Create memories."""
    client = _client(url)
    for name in names:
        client.create_memory(name)
        typer.echo(f"created {name}")


@service.command()
def delete(
    name: Annotated[str, typer.Argument(help="Of the memory.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = LOCAL,
) -> None:
    """Delete a memory for good."""
    if not yes:
        typer.confirm(f"Delete the memory {name!r} and all that it knows?", abort=True, err=True)
    _client(url).delete_memory(name)
    typer.echo(f"deleted {name}")


@service.command()
def tokens(url: Url = LOCAL) -> None:
    """List every token by its name."""
    rows = [
        (
            one["name"],
            one["right"],
            "all memories" if one["memories"] is None else ", ".join(one["memories"]),
            "" if one["revocable"] else "the operator's",
        )
        for one in _client(url).tokens()
    ]
    _table(rows)


@service.command()
def grant(
    name: Annotated[str, typer.Argument(help="Name, for logs and the audit log.")],
    right: Annotated[Right, typer.Argument(help="read, write or admin.")],
    memory: Annotated[
        list[str] | None,
        typer.Option("--memory", metavar="NAME", help="That it is for; without it, all."),
    ] = None,
    url: Url = LOCAL,
) -> None:
    """Create a token, and print it (only this once)."""
    typer.echo(_client(url).grant(name, right, memory or None))


@service.command()
def revoke(name: Annotated[str, typer.Argument(help="Of the token.")], url: Url = LOCAL) -> None:
    """Revoke a token."""
    _client(url).revoke(name)
    typer.echo(f"revoked {name}")


@service.command()
def backup(
    to: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new one for the copy.")],
    memory: Memory = None,
    url: Url = LOCAL,
) -> None:
    """Copy a memory over the network, while it keeps learning."""
    _client(url, memory).backup(to)
    typer.echo(f"copied to {to}")


@service.command()
def audit(memory: Memory = None, url: Url = LOCAL) -> None:
    """Print the audit log (who learned, changed and undid what) as JSON Lines."""
    for act in _client(url, memory).audit():
        typer.echo(json.dumps(act))


def _client(url: str, memory: str | None = None) -> Client:
    from anytimecl.client import Client

    token = next((os.environ[name] for name in VARIABLES if os.environ.get(name)), None)
    return Client(url, token=token, memory=memory)


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print columns, aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
