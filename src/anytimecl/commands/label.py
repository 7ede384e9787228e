"""`anytimecl label`: labels images interactively, the most informative first."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anytimecl.commands import _common, _screen
from anytimecl.commands._layout import warn_of_case
from anytimecl.errors import AnytimeError

if TYPE_CHECKING:
    from anytimecl.inbox import Inbox, Item

_HELP = (
    "Enter accepts the first proposal, a number another one; anything else is the label itself "
    "(=7 or =s where that is a number or one letter). s skips, u takes the last answer back, b "
    "shows what is sure, q ends."
)


def register(main: typer.Typer) -> None:
    """Add `anytimecl label` to the program."""
    main.command("label")(label)


def label(
    folder: Annotated[Path, typer.Argument(help="Folder or zip of images without labels.")],
    memory: _common.MemoryOption,
    labels_text: Annotated[
        str | None,
        typer.Option("--labels", metavar="A,B", help="Labels to propose besides the learned ones."),
    ] = None,
    labels_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same, one a line.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Open each image in the system's viewer.")
    ] = False,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help="Store a thumbnail of each image too.")
    ] = False,
    model: _common.ModelOption = None,
) -> None:
    """Label images interactively, the most informative first (active learning).

    Nothing is learned without confirmation. The same command resumes where it stopped.

    Ends with 0, also if some are left; with 1 if some image could not be read.
    """
    from anytimecl.images import iter_images
    from anytimecl.inbox import Inbox

    wanted = _common.read_labels(labels_text, labels_file)
    if next(iter_images(folder), None) is None:  # checked before a memory is created
        raise _common.no_images(folder)
    options = {"thumbnails": thumbnails}
    with _common.owning(memory, model, lambda settings: settings, **options) as classifier:
        inbox = Inbox(classifier, folder, wanted)
        if not len(inbox):
            typer.echo(f"There is nothing left to label in {folder}.")
            return
        typer.echo(f"{_screen.counted(len(inbox), 'image')} to label. {_HELP}", err=True)
        stop = threading.Event()
        beside = threading.Thread(target=_look_ahead, args=(inbox, stop), daemon=True)
        beside.start()
        try:
            _ask_all(inbox, show=show)
        finally:
            stop.set()
            beside.join()
        left = len(inbox)
        typer.echo(f"{_screen.counted(left, 'image')} left to label.", err=True)
        _screen.report([*inbox.failures.values()], "Not readable")
    if inbox.failures:
        raise typer.Exit(1)


def _look_ahead(inbox: Inbox, stop: threading.Event) -> None:
    while not stop.is_set() and inbox.prepare(1):
        pass


def _ask_all(inbox: Inbox, *, show: bool) -> None:
    item = inbox.next()
    while item is not None:
        if show:
            inbox.load(item).show()
        typer.echo(_screen.printable(item.source))
        for place, (name, probability) in enumerate(item.proposals, 1):
            typer.echo(_screen.printable(f"  {place}  {name}  {100 * probability:.0f} %"))
        try:
            given = typer.prompt("label", default="", show_default=False).strip()
        except typer.Abort:
            return
        if given == "q":
            return
        item = _dealt(inbox, item, given)


def _dealt(inbox: Inbox, item: Item, given: str) -> Item | None:
    """Handle the answer for an image; returns the next image to ask about, or the same."""
    try:
        if given == "u":
            return inbox.undo()
        if given == "b":
            _bulk(inbox)
        elif given == "s":
            inbox.skip(item)
        else:
            chosen = _chosen(item, given, inbox.clf.labels)
            if chosen is None:
                typer.echo(_HELP, err=True)
                return item
            warn_of_case(chosen, inbox.clf.labels)
            new = ", a new label" if chosen not in inbox.clf.memory.labels() else ""
            learned = inbox.answer(item, chosen)
            typer.echo(_screen.printable(f"  learned {learned.id} as {chosen}{new}"))
    except AnytimeError as error:
        typer.secho(str(error), fg="red", err=True)
        return item
    return inbox.next()


def _chosen(item: Item, given: str, known: Sequence[str]) -> str | None:
    """The label that was meant; None for what is probably a typing error, such as y or ?."""
    if given == "" or given.isdecimal():
        place = int(given or 1) - 1
        return item.proposals[place].label if 0 <= place < len(item.proposals) else None
    if len(given) == 1 and given.isascii() and given not in known:
        return None
    return given.removeprefix("=").strip() or None


def _bulk(inbox: Inbox) -> None:
    """Show all confident proposals, and learn them if confirmed."""
    found = inbox.sure()
    if not found:
        typer.echo("Nothing is sure yet.", err=True)
        return
    for item in found:
        name, probability = item.proposals[0]
        typer.echo(_screen.printable(f"  {item.source}  {name}  {100 * probability:.0f} %"))
    if not typer.confirm(f"Teach {_screen.counted(len(found), 'image')} as proposed?"):
        return
    failed = []
    for item in found:
        try:
            inbox.answer(item, item.proposals[0].label)
        except AnytimeError as error:
            failed.append(str(error))
    typer.echo(f"  learned {_screen.counted(len(found) - len(failed), 'image')}")
    _screen.report(failed, "Not learned")
