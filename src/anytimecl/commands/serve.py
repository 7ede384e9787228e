"""`anytimecl serve`: the service and its page."""

from __future__ import annotations

import dataclasses
import logging
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from anytimecl.commands import _common
from anytimecl.errors import AnytimeError

if TYPE_CHECKING:
    from anytimecl.classifier import AnytimeClassifier
    from anytimecl.serve.options import Options

Durability = Literal["process", "full"]


def register(main: typer.Typer) -> None:
    """Add `anytimecl serve` to the program."""
    main.command("serve")(serve)


def serve(
    memory: _common.MemoryOption,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Lines such as `write TOKEN` or `read TOKEN`. Also: ANYTIMECL_WRITE_TOKEN, "
            "ANYTIMECL_READ_TOKEN. Needed off 127.0.0.1.",
        ),
    ] = None,
    model: _common.ModelOption = None,
    durability: Annotated[
        Durability,
        typer.Option(help="What a learned example survives: the process, or a power cut (full)."),
    ] = "process",
    upload_mib: Annotated[int, typer.Option(min=1, help="Largest request, in MiB.")] = 32,
    megapixels: Annotated[int, typer.Option(min=1, help="Largest image.")] = 50,
    per_second: Annotated[
        float, typer.Option(min=0.1, help="Requests of one client in the long run.")
    ] = 100,
    label_studio: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Fetch pictures from this Label Studio. Its token: LABEL_STUDIO_API_KEY.",
        ),
    ] = None,
) -> None:
    """Serve a memory over HTTP, with a page for people.

    Ctrl-C or SIGTERM ends it once what was begun is answered.
    """
    _check_installed()
    from anytimecl.serve.options import MIB, Options
    from anytimecl.serve.server import check_binding
    from anytimecl.serve.tokens import read_tokens

    known = read_tokens(tokens, os.environ)
    check_binding(host, known)
    options = dataclasses.replace(
        Options(),
        upload_bytes=upload_mib * MIB,
        uploads_bytes=max(8 * upload_mib * MIB, Options.uploads_bytes),
        pixels=megapixels * 1_000_000,
        per_second=per_second,
        burst=max(1, round(2 * per_second)),
    )
    classifier = _open(memory, model, durability)
    _run(classifier, options, known, host, port, label_studio)


def _check_installed() -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise AnytimeError(
            f"The service needs {error.name}: pip install -c constraints.txt '.[serve]'"
        ) from error


def _open(memory: Path, model: str | None, durability: Durability) -> AnytimeClassifier:
    from anytimecl.classifier import AnytimeClassifier

    meta = _common.read_meta(memory, read_only=False) if _common.exists(memory) else None
    backbone = _common.load_model(model, meta)
    if backbone.text is None:  # or a memory would be made that can never learn
        raise AnytimeError(f"{backbone.spec.name} knows images only: choose another model.")
    return AnytimeClassifier.open(memory, model=backbone, durability=durability)


def _run(
    classifier: AnytimeClassifier,
    options: Options,
    tokens: Any,
    host: str,
    port: int,
    label_studio: str | None,
) -> None:
    from anytimecl.serve.app import create_app
    from anytimecl.serve.engine import Engine
    from anytimecl.serve.label_studio import Studio
    from anytimecl.serve.server import make_server

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.captureWarnings(True)  # threads warn too, and nobody shows it otherwise
    warnings.simplefilter("default")
    engine = Engine(classifier, options)
    studio = Studio(label_studio, os.environ.get("LABEL_STUDIO_API_KEY"))
    server = make_server(create_app(engine, tokens, studio), engine, host, port)
    server.on_started = lambda address: typer.echo(
        f"{len(classifier):,} examples of {len(classifier.labels):,} labels, served on {address}"
    )
    try:
        server.run()
    except SystemExit as error:  # how uvicorn says that it cannot listen; its log says why
        raise AnytimeError(
            f"{host}:{port} cannot be listened on: choose another --port."
        ) from error
    typer.echo("Stopped. Everything that was answered is stored.")
