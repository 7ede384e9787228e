"""`anytimecl serve`: the service and its web page."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import signal
import threading
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from anytimecl.commands import _common
from anytimecl.errors import AnytimeError, reason

if TYPE_CHECKING:
    from anytimecl.backbone import Backbone
    from anytimecl.classifier import AnytimeClassifier
    from anytimecl.serve.memories import Memories
    from anytimecl.serve.tokens import AccessTokens

Durability = Literal["process", "full"]
LogFormat = Literal["text", "json"]


def register(main: typer.Typer) -> None:
    """Add `anytimecl serve` to the program."""
    main.command("serve")(serve)


def _read_config(context: typer.Context, file: Path | None) -> Path | None:
    """Use settings from a file as defaults; environment variables and flags override them."""
    if file is None:
        return None
    try:
        settings = tomllib.loads(file.read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise AnytimeError(f"The settings in {file} cannot be read: {reason(error)}.") from error
    known = {str(option.name) for option in context.command.params} - {"config", "show_config"}
    named = {name.replace("-", "_"): value for name, value in settings.items()}
    if strange := sorted(named.keys() - known):
        raise AnytimeError(
            f"{file}: there is no setting {strange[0]!r}. There are: {', '.join(sorted(known))}."
        )
    context.default_map = {**(context.default_map or {}), **named}
    return file


def _variable(name: str) -> str:
    return f"ANYTIMECL_SERVE_{name}"


def serve(
    context: typer.Context,
    memory: Annotated[
        Path | None,
        typer.Option("--memory", metavar="M", help="Folder.", envvar=_variable("MEMORY")),
    ] = None,
    memories: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            envvar=_variable("MEMORIES"),
            help="Serve any number of memories, each in a folder of its name in this one; without "
            "--memory, the first is `default` in it.",
        ),
    ] = None,
    open_memories: Annotated[
        int,
        typer.Option(
            min=1,
            envvar=_variable("OPEN_MEMORIES"),
            help="How many of them are in RAM at once, besides the first.",
        ),
    ] = 4,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            is_eager=True,
            callback=_read_config,
            envvar=_variable("CONFIG"),
            help="Settings in TOML, named as these options. Also: ANYTIMECL_SERVE_PORT, ...",
        ),
    ] = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print the settings and where each is from.")
    ] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on.", envvar=_variable("HOST"))
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65535, help="Port to listen on; 0: any free port.", envvar=_variable("PORT")
        ),
    ] = 8000,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar=_variable("TOKENS"),
            help="Lines such as `write TOKEN`, with a name and `memories=cats,dogs` if you like; "
            "rights are read, write and admin. Also: ANYTIMECL_WRITE_TOKEN, ANYTIMECL_READ_TOKEN, "
            "ANYTIMECL_ADMIN_TOKEN. Needed off 127.0.0.1. SIGHUP reads it again.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar=_variable("MODEL"),
            help="A model by name, Hugging Face name or folder. "
            "Unless given: the one that the memory was made with, else embedded.",
        ),
    ] = None,
    durability: Annotated[
        Durability,
        typer.Option(
            help="What a learned example survives: the process, or a power cut (full).",
            envvar=_variable("DURABILITY"),
        ),
    ] = "process",
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only", help="Predict only; nothing is written.", envvar=_variable("READ_ONLY")
        ),
    ] = False,
    thumbnails: Annotated[
        bool,
        typer.Option(
            help="Store a thumbnail of each learned image (about 4 KB).",
            envvar=_variable("THUMBNAILS"),
        ),
    ] = True,
    upload_mib: Annotated[
        int, typer.Option(min=1, help="Largest request, in MiB.", envvar=_variable("UPLOAD_MIB"))
    ] = 32,
    megapixels: Annotated[
        int, typer.Option(min=1, help="Largest image.", envvar=_variable("MEGAPIXELS"))
    ] = 50,
    per_second: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="Requests of one client in the long run.",
            envvar=_variable("PER_SECOND"),
        ),
    ] = 100,
    log_format: Annotated[
        LogFormat, typer.Option(help="For people, or for programs.", envvar=_variable("LOG_FORMAT"))
    ] = "text",
    access_log: Annotated[
        bool,
        typer.Option("--access-log", help="Log every request.", envvar=_variable("ACCESS_LOG")),
    ] = False,
    traces: Annotated[
        bool,
        typer.Option(
            "--traces",
            help="Send OpenTelemetry traces to where OTEL_EXPORTER_OTLP_ENDPOINT says.",
            envvar=_variable("TRACES"),
        ),
    ] = False,
    label_studio: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar=_variable("LABEL_STUDIO"),
            help="Fetch pictures from this Label Studio. Its token: LABEL_STUDIO_API_KEY.",
        ),
    ] = None,
) -> None:
    """Serve memories over HTTP, with a web page.

    Ctrl-C or SIGTERM stops it once current requests are answered.
    """
    if show_config:
        typer.echo(_shown(context))
        return
    _check_installed()
    from anytimecl.serve import logs, tracing
    from anytimecl.serve.engine import Engine
    from anytimecl.serve.granted import Granted
    from anytimecl.serve.memories import Memories
    from anytimecl.serve.options import MIB, Options
    from anytimecl.serve.server import check_binding
    from anytimecl.serve.tokens import read_tokens, warn_if_shared

    known = read_tokens(tokens, os.environ)
    check_binding(host, known)
    options = dataclasses.replace(
        Options(),
        upload_bytes=upload_mib * MIB,
        uploads_bytes=max(4 * upload_mib * MIB, Options.uploads_bytes),
        **_pixels(megapixels),
        per_second=per_second,
        burst=max(1, round(2 * per_second)),
        open_memories=open_memories,
    )
    first = _first(memory, memories)
    backbone = _model_of(first, model, read_only=read_only)
    open_one = functools.partial(
        _open,
        backbone=backbone,
        durability=durability,
        read_only=read_only,
        thumbnails=thumbnails,
    )
    classifier = open_one(first)
    logs.set_up(log_format, access_log=access_log)  # only once the options are valid
    if traces:
        tracing.export_by_environment()
    warn_if_shared(tokens)
    _reload_on_hangup(known, tokens)
    served = Memories(Engine(classifier, options), memories, open_one)
    if known:  # load granted tokens, and store new ones beside the first memory
        known.granted = Granted(served.default.folder)
    _run(served, known, host, port, label_studio)


def _first(memory: Path | None, memories: Path | None) -> Path:
    """Folder of the memory that paths without a name refer to."""
    from anytimecl.serve.access import DEFAULT

    if memories is None:
        if memory is None:
            raise typer.BadParameter("Say what to serve: --memory M, or --memories FOLDER.")
        return memory
    if memory is not None and _common.exists(memories / DEFAULT):
        raise AnytimeError(
            f"There is a memory named {DEFAULT!r} in {memories}, and {memory} would have that name "
            "here: leave --memory out, or rename that folder."
        )
    return memory or memories / DEFAULT


def _shown(context: typer.Context) -> str:
    """All settings as TOML, with the source of each."""
    lines = []
    for option in context.command.params:
        name = str(option.name)
        if name in ("config", "show_config"):
            continue
        value = context.params[name]
        source = context.get_parameter_source(name)
        origin = _SOURCES.get(source.name if source else "", "default")
        text = str(value).lower() if isinstance(value, bool) else json.dumps(value, default=str)
        lines.append(f"{'# ' if value is None else ''}{name} = {text}  # {origin}")
    return "\n".join(lines)


_SOURCES = {"COMMANDLINE": "flag", "ENVIRONMENT": "environment", "DEFAULT_MAP": "file"}


def _reload_on_hangup(known: AccessTokens, file: Path | None) -> None:
    """Read the tokens again on SIGHUP; if that fails, the old ones stay valid."""
    from anytimecl.serve.tokens import read_tokens, warn_if_shared

    log = logging.getLogger("anytimecl.serve")

    def reload(*_: object) -> None:
        try:
            known.replace(read_tokens(file, os.environ))
            warn_if_shared(file)
            log.warning("the tokens were read again")
        except (AnytimeError, OSError) as error:  # others would end the service
            log.error("the tokens stay as they were: %s", error)

    if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, reload)


def _pixels(megapixels: int) -> dict[str, int]:
    """Limits in pixels, which scale with the largest image."""
    from anytimecl.serve.options import Options

    pixels = megapixels * 1_000_000
    names = ("request_pixels", "decoding_pixels", "waiting_pixels")
    times = {name: getattr(Options, name) / Options.pixels for name in names}
    more = {name: max(getattr(Options, name), round(times[name] * pixels)) for name in names}
    return {"pixels": pixels, **more}


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


def _model_of(memory: Path, model: str | None, *, read_only: bool) -> Backbone:
    """The model of that name; by default the memory's."""
    meta = None
    if read_only or _common.exists(memory):
        meta = _common.read_meta(memory, read_only=read_only)
    return _common.load_model(model, meta)


def _open(
    memory: Path,
    backbone: Backbone,
    durability: Durability,
    *,
    read_only: bool,
    thumbnails: bool,
) -> AnytimeClassifier:
    from anytimecl.classifier import AnytimeClassifier

    if read_only:
        return AnytimeClassifier.open(memory, model=backbone, read_only=True)
    settings = None if _common.exists(memory) else _common.fitting_settings(backbone)
    return AnytimeClassifier.open(
        memory, model=backbone, settings=settings, durability=durability, thumbnails=thumbnails
    )


def _run(
    memories: Memories, tokens: AccessTokens, host: str, port: int, label_studio: str | None
) -> None:
    from anytimecl.serve.app import create_app
    from anytimecl.serve.server import make_server
    from anytimecl.serve.studio_files import LabelStudio

    classifier = memories.default.classifier
    studio = LabelStudio(label_studio, os.environ.get("LABEL_STUDIO_API_KEY"))
    server = make_server(create_app(memories, tokens, studio), memories, host, port)
    others = len(memories.names()) - 1
    more = f", and {others} more memories" if others else ""
    server.on_started = lambda address: typer.echo(
        f"{len(classifier):,} examples of {len(classifier.labels):,} labels{more}, served on "
        f"{address}"
    )
    try:
        server.run()
    except SystemExit as error:  # uvicorn cannot listen; its log says why
        raise AnytimeError(
            f"{host}:{port} cannot be listened on: choose another --port."
        ) from error
    typer.echo("Stopped. Everything that was answered is stored.")
