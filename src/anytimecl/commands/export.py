"""`anytimecl export`: the frozen part of a model as an ONNX file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anytimecl.commands import _common, _screen

if TYPE_CHECKING:
    from anytimecl.backbone import Backbone


def register(main: typer.Typer) -> None:
    """Add `anytimecl export` to the program."""
    main.command("export")(export)


def export(
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="The ONNX file to write.")],
    model: Annotated[
        str, typer.Option(metavar="M", help="A model by name, Hugging Face name or folder.")
    ] = _common.EMBEDDED,
    int8: Annotated[
        bool, typer.Option("--int8", help="A quarter of the size, and not quite the same tokens.")
    ] = False,
) -> None:
    """Write the frozen part of a model, from pixels to tokens, as ONNX.

    It is compared with torch before it is put in its place.
    """
    _common.writable(to, "--to")
    from anytimecl.backbone.export import export_trunk

    made = export_trunk(_in_torch(_common.load_model(model)), to, "int8" if int8 else "fp32")
    _screen.show_facts(
        [
            ("file", f"{made.file} ({_screen.size(made.file.stat().st_size)})"),
            ("precision", made.precision),
            ("largest difference", f"{made.max_difference:.2g}"),
            ("relative difference", f"{made.relative_difference:.2g}"),
        ]
    )


def _in_torch(backbone: Backbone) -> Backbone:
    """The embedded model runs as ONNX by itself, and has its float weights beside that."""
    from anytimecl.backbone import embedded
    from anytimecl.backbone.embedded.weights import float_trunk

    if backbone.spec.name != _common.EMBEDDED:
        return backbone
    trunk = float_trunk(embedded.folder(), backbone.spec.tail, "cpu")
    return dataclasses.replace(backbone, trunk=trunk)
