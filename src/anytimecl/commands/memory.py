"""`anytimecl memory`: look after a memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anytimecl.commands import _screen

if TYPE_CHECKING:
    from anytimecl.checkpoint import Checkpoint
    from anytimecl.memory import Store

app = typer.Typer(name="memory", no_args_is_help=True, help="Look after a memory.")

Folder = Annotated[Path, typer.Argument(metavar="MEMORY", help="Folder of the memory.")]


def register(main: typer.Typer) -> None:
    """Add `anytimecl memory` to the program."""
    main.add_typer(app)


@app.command("info")
def show_info(folder: Folder) -> None:
    """Say what a memory holds, and how much room it takes."""
    from anytimecl.memory import info, open_memory

    with open_memory(folder, read_only=True) as store:
        known = info(store)
    facts = [("folder", str(folder))]
    if "spec" in known.meta:
        facts.append(("model", json.loads(known.meta["spec"])["name"]))
    if "settings" in known.meta:
        settings = json.loads(known.meta["settings"])
        facts += [(name, str(settings[name])) for name in ("codec", "sampler", "seed")]
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

    with open_memory(folder, read_only=True) as store:
        report = verify(store)
    typer.echo(str(report))
    if not report.ok:
        raise typer.Exit(1)


@app.command("backup")
def copy(
    folder: Folder,
    to: Annotated[Path, typer.Argument(help="A new folder for the copy.")],
) -> None:
    """Copy a memory as it is at this moment, even while it learns.

    The copy is a memory like any other.
    """
    from anytimecl import checkpoint as checkpoints
    from anytimecl.keeper import CHECKPOINT
    from anytimecl.memory import backup, open_memory

    with open_memory(folder, read_only=True) as store:
        # Before the examples: what is learned since is repeated from the journal, but a checkpoint
        # that is ahead of its journal would be wrong.
        saved = checkpoints.load_beside_owner(folder / CHECKPOINT)
        made = backup(store, to)
        if saved is not None and not _outdated(saved, store):
            checkpoints.save(saved, to / CHECKPOINT)
    typer.echo(f"Copied {folder} to {to} ({_screen.size(made.stat().st_size)}).")


def _outdated(saved: Checkpoint, store: Store) -> bool:
    """Whether something it knows was forgotten since."""
    return any(event.kind == "forget" for event in store.events(saved.event))


@app.command("compact")
def shrink(folder: Folder) -> None:
    """Give the room of what was forgotten back to the disk."""
    from anytimecl.memory import compact, open_memory

    with open_memory(folder) as store:
        gained = compact(store)
    typer.echo(f"Gave back {_screen.size(gained)}.")
