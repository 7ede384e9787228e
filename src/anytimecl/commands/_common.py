"""Shared by several commands: options, lists of labels, and opening a memory."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anytimecl.errors import (
    ImageError,
    LabelError,
    ModelError,
    PartError,
    StoreError,
    UnknownLabelError,
)

if TYPE_CHECKING:
    from anytimecl.backbone import Backbone
    from anytimecl.classifier import AnytimeClassifier
    from anytimecl.settings import Settings

EMBEDDED = "embedded"
INTERRUPTED = 130  # exit code of programs ended by Ctrl-C

MemoryOption = Annotated[Path, typer.Option("--memory", metavar="M", help="Folder of the memory.")]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="A model by name, Hugging Face name, folder or exported trunk. "
        "Default: the memory's own, or embedded for a new memory.",
    ),
]


# Labels


def read_labels(text: str | None, file: Path | None) -> list[str] | None:
    """The labels given as an option or in a file; None without either.

    >>> read_labels("cat, tabby  cat,cat", None)
    ['cat', 'tabby cat']
    """
    from anytimecl.labels import clean_labels

    if text is not None and file is not None:
        raise typer.BadParameter("Give --labels or --labels-file, not both.")
    if file is not None:
        return _labels_in(file)
    if text is None:
        return None
    return clean_labels(part for part in text.split(",") if part.strip())


def _labels_in(file: Path) -> list[str]:
    """One label per line; empty lines and those that begin with # are skipped."""
    from anytimecl.labels import clean_label

    found: dict[str, None] = {}  # an ordered set
    try:
        with file.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip() or line.lstrip().startswith("#"):
                    continue
                try:
                    found[clean_label(line)] = None
                except LabelError as error:
                    raise LabelError(f"{file}, line {number}: {error}") from error
    except UnicodeDecodeError as error:
        raise LabelError(f"{file} is not text in UTF-8: save it as that.") from error
    except OSError as error:
        raise LabelError(f"The labels in {file} cannot be read: {error.strerror}.") from error
    if not found:
        raise LabelError(f"There are no labels in {file}: write one on each line.")
    return list(found)


def _near(name: str, known: Iterable[str]) -> str:
    """A sentence that suggests similar labels.

    >>> _near("llamma", ["llama", "okapi"])
    " Did you mean 'llama'?"
    """
    from difflib import get_close_matches

    found = get_close_matches(name, known)
    return f" Did you mean {' or '.join(map(repr, found))}?" if found else ""


def check_known(known: Collection[str], *names: str, subject: str = "There is") -> None:
    """Raise for a label without examples, with suggestions."""
    from anytimecl.labels import clean_label

    for name in map(clean_label, names):
        if name not in known:
            raise UnknownLabelError(f"{subject} no example of {name!r}.{_near(name, known)}")


def choice(text: str) -> str | dict[str, Any]:
    """A component by name or, with options, as JSON.

    >>> choice("fifo"), choice('{"name": "frequency_weighted", "options": {"xi": 0.9}}')["options"]
    ('fifo', {'xi': 0.9})
    """
    if not text.lstrip().startswith("{"):
        return text
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text} is not JSON: {error}.") from error
    return found


def no_images(folder: Path) -> ImageError:
    """The error for a folder without images."""
    return ImageError(f"There are no images in {folder}.")


# Opening


def read_meta(memory: Path, *, read_only: bool) -> Mapping[str, str]:
    """The memory's metadata.

    Fast, so that a missing or locked memory is reported before a model is loaded.
    """
    from anytimecl.memory import open_memory
    from anytimecl.opening import store_of, stored_in

    named = store_of(None, memory, {})
    if named.name == "sqlite":
        with open_memory(memory, read_only=read_only) as store:
            meta: Mapping[str, str] = store.meta
    else:
        meta = stored_in(named, memory) or {}
    if missing := {"spec", "settings", "fingerprint"} - meta.keys():
        raise StoreError(
            f"The memory in {memory} was not made by a classifier: it does not tell its "
            f"{', '.join(sorted(missing))}."
        )
    return meta


def exists(memory: Path) -> bool:
    """Whether the folder has a memory; StoreError if it has the remains of one."""
    from anytimecl.memory.database import FILE
    from anytimecl.memory.opening import refuse_remains
    from anytimecl.opening import STORE

    if any((memory / file).exists() for file in (FILE, STORE)):
        return True
    refuse_remains(memory)
    return False


def load_model(
    name: str | None, meta: Mapping[str, str] | None = None, otherwise: str = ""
) -> Backbone:
    """The model of that name; by default that of the memory with this `meta`.

    `otherwise` is what to do without it, for the error.
    """
    from anytimecl import backbone

    if meta is None:
        return backbone.load(choice(name or EMBEDDED))
    try:
        return backbone.load_stored(meta, None if name is None else choice(name))
    except ModelError as error:
        if name is None and not isinstance(error, PartError):  # where a name helps
            otherwise = f"Name it or its folder with --model. {otherwise}".strip()
        if not otherwise:
            raise
        raise ModelError(f"{error} {otherwise}") from error


def fitting_settings(backbone: Backbone) -> Settings:
    """Default settings of a new memory with this model."""
    from anytimecl.codec import default_codec
    from anytimecl.settings import Settings

    return Settings(codec=default_codec(backbone.spec))


def chosen_settings(
    settings: Settings,
    codec: str | None,
    sampler: str | None,
    seed: int | None,
    experts: Sequence[str] | None = None,
    blend: str | None = None,
) -> Settings:
    """The settings with the chosen options; invalid ones raise before a memory is created."""
    changes: dict[str, Any] = {} if seed is None else {"seed": seed}
    for option, text in (("codec", codec), ("sampler", sampler), ("blend", blend)):
        if text is not None:
            changes[option] = choice(text)
    if experts:
        changes["experts"] = tuple(map(choice, experts))
    try:
        return dataclasses.replace(settings, **changes)
    except PartError as error:
        raise typer.BadParameter(str(error)) from error


@contextmanager
def owning(
    memory: Path,
    model: str | None,
    choose: Callable[[Settings], Settings] | None = None,
    **options: Any,
) -> Iterator[AnytimeClassifier]:
    """Open a memory's classifier for changes; `choose` makes the settings of a new one.

    What is chosen must agree with an existing memory. `options` are passed on to the memory.
    """
    classifier = _open_to_write(memory, model, choose, options)
    try:
        yield classifier
    except KeyboardInterrupt:
        # Without a checkpoint, which could contain half of a change; the journal is complete.
        classifier.memory.close()
        raise
    except BaseException:
        classifier.close()
        raise
    else:
        classifier.close()


def _open_to_write(
    memory: Path,
    model: str | None,
    choose: Callable[[Settings], Settings] | None,
    options: Mapping[str, Any],
) -> AnytimeClassifier:
    from anytimecl.classifier import AnytimeClassifier
    from anytimecl.settings import Settings

    if choose is None or exists(memory):
        meta = read_meta(memory, read_only=False)
        made_with = Settings.from_json(meta["settings"])
        settings = made_with.agreed(choose(made_with) if choose else None)
        backbone = load_model(model, meta)
    else:
        choose(Settings())  # raises before a model is loaded
        backbone = load_model(model)
        settings = choose(fitting_settings(backbone))
    return AnytimeClassifier.open(memory, model=backbone, settings=settings, **options)


# Ctrl-C


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed: stop between two images; pressing it again interrupts."""
    pressed = False

    def press(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # only the main thread can have a signal handler
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def if_interrupted(told: str) -> Iterator[None]:
    """Print a message on Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(told, err=True)
        raise


def writable(path: Path, option: str) -> Path:
    """The path if a file can be written there; checked before the work, not after it."""
    refuse_dash(path, option)
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder: name a file.", param_hint=option)
    if not path.parent.is_dir():
        raise typer.BadParameter(f"There is no folder {path.parent}.", param_hint=option)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise typer.BadParameter(f"{path} may not be written.", param_hint=option)
    return path


def refuse_dash(path: Path, option: str) -> None:
    """Raise for -, which would become a file of that name."""
    if str(path) == "-":
        told = "- does not stand for standard output here: name a file."
        raise typer.BadParameter(told, param_hint=option)
