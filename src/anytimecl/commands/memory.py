"""`anytimecl memory`: inspect, check, copy, export and import memories."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anytimecl.commands import _common, _screen
from anytimecl.errors import ModelError, StoreError

if TYPE_CHECKING:
    from anytimecl.backbone import Backbone

app = typer.Typer(name="memory", no_args_is_help=True, help="Inspect, check and copy memories.")

Folder = Annotated[Path, typer.Argument(metavar="MEMORY", help="Folder of the memory.")]


def register(main: typer.Typer) -> None:
    """Add `anytimecl memory` to the program."""
    main.add_typer(app)


@app.command("info")
def show_info(folder: Folder) -> None:
    """Show the content and size of a memory."""
    from anytimecl.memory import info, open_memory

    with open_memory(folder, read_only=True) as store:
        known = info(store)
    facts = [("folder", str(folder))]
    if "spec" in known.meta:
        facts.append(("model", json.loads(known.meta["spec"])["name"]))
    if "settings" in known.meta:
        settings = json.loads(known.meta["settings"])
        for name in ("codec", "sampler", "seed"):
            found = settings[name]
            facts.append((name, json.dumps(found) if isinstance(found, dict) else str(found)))
    each = known.payload_bytes / known.examples if known.examples else 0
    facts += [
        ("examples", f"{known.examples:,} of {_screen.counted(known.labels, 'label')}"),
        ("records", f"{_screen.size(known.payload_bytes)}, {_screen.size(round(each))} each"),
        ("on disk", f"{_screen.size(known.disk_bytes)}, {_screen.size(known.free_bytes)} free"),
        ("events", f"{known.events:,}"),
        ("version", str(known.version)),
    ]
    if known.lost_events:
        facts.append(("lost", f"{_screen.counted(known.lost_events, 'event')}, after damage"))
    _screen.show_facts(facts)


@app.command("verify")
def check(folder: Folder) -> None:
    """Read everything that is stored and check it. Ends with 1 if anything is wrong."""
    from anytimecl.memory import open_memory, verify

    try:
        with open_memory(folder, read_only=True) as store, _screen.progress("checking") as advance:
            report = verify(store, advance)
    except StoreError as error:  # it cannot even be opened, and its message names this command
        told = str(error).replace("run `anytimecl memory verify`, or restore", "restore")
        raise StoreError(told) from error
    typer.echo(str(report))
    if not report.ok:
        raise typer.Exit(1)


@app.command("backup")
def copy(
    folder: Folder,
    to: Annotated[Path, typer.Argument(help="A new folder for the copy.")],
) -> None:
    """Copy a memory as it is at this moment, even while it learns.

    The copy is a complete memory.
    """
    from anytimecl.transfer import copy_memory

    made = copy_memory(folder, to)
    typer.echo(f"Copied {folder} to {to} ({_screen.size(made.stat().st_size)}).")


@app.command("rescue")
def save_the_rest(
    folder: Folder,
    to: Annotated[Path, typer.Argument(help="A new folder for what can still be read.")],
) -> None:
    """Write what can still be read of a damaged memory as a new one, with the same ids.

    It is learned again when the new memory is opened. Ends with 1 if anything was lost.
    """
    from anytimecl.transfer import rescue_memory

    with _screen.progress("rescue") as advance:
        saved, lost = rescue_memory(folder, to, progress=advance)
    typer.echo(f"Rescued {_screen.counted(saved, 'example')} of {folder} into {to}.")
    _screen.report([f"example {number}" for number in lost], "Lost")
    if lost:
        raise typer.Exit(1)


@app.command("compact")
def shrink(folder: Folder) -> None:
    """Free the disk space of forgotten examples."""
    from anytimecl.memory import compact, open_memory

    with open_memory(folder) as store:
        gained = compact(store)
    typer.echo(f"Gave back {_screen.size(gained)}.")


# Export and import


@app.command("export")
def write_out(
    folder: Folder,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A new folder for the files.")],
    features: Annotated[
        str,
        typer.Option(
            metavar="F",
            help="As safetensors: embeddings, tokens (large), or none, which needs no model.",
        ),
    ] = "embeddings",
    model: _common.ModelOption = None,
) -> None:
    """Write a memory as Parquet and safetensors, for pandas and Hugging Face datasets.

    `memory import` restores the same memory from it. Works while another program learns.
    """
    from anytimecl.settings import Settings
    from anytimecl.transfer import FEATURES, attached, export_classifier

    look = None
    if features != "none":
        if features not in FEATURES:
            known = ", ".join([*FEATURES, "none"])
            raise typer.BadParameter(f"There are: {known}.", param_hint="--features")
        meta = _common.read_meta(folder, read_only=True)
        backbone = _common.load_model(model, meta, "Or export without it: --features none.")
        codec = Settings.from_json(meta["settings"]).codec
        look = FEATURES[features](backbone, attached(backbone, codec))
    with _screen.progress("export") as advance:
        count = export_classifier(folder, to, features=look, progress=advance)
    typer.echo(f"Exported {_screen.counted(count, 'example')} of {folder} to {to}.")


@app.command("import")
def read_in(
    export: Annotated[Path, typer.Argument(help="Folder that `memory export` wrote.")],
    to: Annotated[Path, typer.Option("--to", metavar="MEMORY", help="New or existing memory.")],
    model: _common.ModelOption = None,
) -> None:
    """Read an export into a memory.

    A new memory is identical to the exported one, with the same ids. In an existing one the
    examples are added and learned; those imported before are skipped.
    """
    from anytimecl.memory.importing import read_export
    from anytimecl.transfer import import_classifier

    found = read_export(export)
    backbone = None
    if model is not None:
        backbone = _common.load_model(model, found.meta)
        _check_model(backbone, found.meta, export)
    told = "Stopped. What was added is kept, and the same command adds the rest."
    with _common.if_interrupted(told), _screen.progress("import") as advance:
        new, known = import_classifier(found, to, progress=advance)
    passed = f", passed over {known:,} that were there" if known else ""
    typer.echo(f"Imported {_screen.counted(new, 'example')} into {to}{passed}.")
    if new:
        _learn_what_came(to, backbone, found.meta)


def _learn_what_came(to: Path, backbone: Backbone | None, meta: Mapping[str, str]) -> None:
    """Open the memory, which learns the imported examples and writes a checkpoint."""
    from anytimecl.classifier import AnytimeClassifier

    try:
        backbone = backbone or _common.load_model(None, meta)
    except ModelError as error:
        typer.echo(f"They are learned when the memory is opened. {error}", err=True)
        return
    told = "Stopped. All is stored, and the rest is learned when the memory is opened next."
    with _common.if_interrupted(told), _screen.progress("learn") as advance:
        AnytimeClassifier.open(to, model=backbone, progress=advance).close()


@app.command("reencode")
def turn_over(
    folder: Folder,
    to: Annotated[Path, typer.Option("--to", metavar="NEW", help="A new folder.")],
    model: _common.ModelOption = None,
    codec: Annotated[
        str | None, typer.Option(metavar="C", help="How the new memory stores examples.")
    ] = None,
) -> None:
    """Convert a memory to another model or codec, by learning all its examples in a new one.

    Another model needs the images, so the memory must have been made with `--codec image`. After
    Ctrl-C, the same command resumes. Ends with 1 if some image could not be used.
    """
    from anytimecl.codec import CODECS
    from anytimecl.memory import open_memory
    from anytimecl.transfer import reencode

    chosen = None if codec is None else _common.choice(codec)
    if chosen is not None:
        CODECS.named(chosen)  # raises before a model is loaded
    meta = _common.read_meta(folder, read_only=True)
    # Another model has its own tail: a SigLIP's has no block, others have one.
    backbone = _common.load_model(model, meta if model is None else None)
    with (
        open_memory(folder, read_only=True) as source,
        _common.if_interrupted("Stopped. The same command goes on from here."),
        _screen.progress("reencode") as advance,
    ):
        made = reencode(source, to, backbone, codec=chosen, progress=advance)
    typer.echo(f"Learned {_screen.counted(made.examples, 'example')} of {folder} again in {to}.")
    _screen.report([f"example {number}" for number in made.left_out], "Left out")
    if made.left_out:
        raise typer.Exit(1)


def _check_model(backbone: Backbone, meta: Mapping[str, str], export: Path) -> None:
    from anytimecl.backbone.spec import Spec, differences
    from anytimecl.opening import way_out
    from anytimecl.settings import Settings

    if meta.get("fingerprint") != backbone.spec.fingerprint:
        made_with = Spec.from_dict(json.loads(meta["spec"]))
        told = ", ".join(differences(made_with, backbone.spec))
        raise StoreError(
            f"The export in {export} was made with the model {made_with.name!r}, not with "
            f"{backbone.spec.name!r} ({told}). Import it without --model. "
            + way_out(Settings.from_json(meta["settings"]).name_of("codec"), "the new memory")
        )
