"""`anytimecl export`: the trunk of a model as an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anytimecl.commands import _common, _screen


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

    It is compared with torch before it is put in its place. In Python,
    `with_onnx(load(MODEL), FILE)` of `anytimecl.backbone.export` is the model with it.
    """
    _common.writable(to, "--to")
    from anytimecl.backbone.export import export_trunk

    # The embedded model is ONNX already; its float weights are a separate model.
    model = "embedded-float" if model == _common.EMBEDDED else model
    made = export_trunk(_common.load_model(model), to, "int8" if int8 else "fp32")
    _screen.show_facts(
        [
            ("file", f"{made.file} ({_screen.size(made.file.stat().st_size)})"),
            ("model", model),
            ("precision", made.precision),
            ("largest difference", f"{made.max_difference:.2g}"),
            ("relative difference", f"{made.relative_difference:.2g}"),
            ("features' cosine", f"{made.cosine:.4f} at least"),
        ]
    )
