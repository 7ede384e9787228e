"""`anytimecl consolidate`, `forget` and `rebuild`: the model learns again what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anytimecl.commands import _common, _screen
from anytimecl.errors import AnytimeError

if TYPE_CHECKING:
    from anytimecl.classifier import AnytimeClassifier


def register(main: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (consolidate, forget, rebuild):
        main.command(command.__name__)(command)


def consolidate(
    memory: _common.MemoryOption,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Passes over all examples.")] = 10,
    model: _common.ModelOption = None,
) -> None:
    """Train over the whole memory, when there is idle time."""
    with _common.owning(memory, model) as classifier:
        if not len(classifier):
            raise AnytimeError(f"Nothing is learned yet in {memory}: there is nothing to practise.")
        consolidate_all(classifier, epochs)


def consolidate_all(classifier: AnytimeClassifier, epochs: int) -> None:
    """Consolidate, with a progress bar."""
    told = "Stopped. What is known is as it was before."
    with _common.if_interrupted(told), _screen.progress("consolidate") as advance:
        classifier.consolidate(epochs, progress=advance)
    times = _screen.counted(epochs, "time")
    typer.echo(f"Went {times} through {_screen.counted(len(classifier), 'example')}.")


def rebuild(memory: _common.MemoryOption, model: _common.ModelOption = None) -> None:
    """Learn everything in the memory again from the start, without what was forgotten."""
    with _common.owning(memory, model) as classifier:
        _rebuild(classifier)


def _rebuild(classifier: AnytimeClassifier) -> None:
    told = "Stopped. What is known is as it was."
    with _common.if_interrupted(told), _screen.progress("rebuild") as advance:
        classifier.rebuild(progress=advance)
    typer.echo(f"Learned {_screen.counted(len(classifier), 'example')} again from the start.")


def forget(
    memory: _common.MemoryOption,
    example: Annotated[
        int | None, typer.Option(metavar="ID", help="The number of one example.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(metavar="L", help="Every example of this label.")
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--rebuild", help="Then learn all remaining examples again from the start."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    model: _common.ModelOption = None,
) -> None:
    """Remove one example, or every example of a label, for good.

    The examples learned since the last checkpoint are learned again without them. Their effect on
    an older checkpoint stays in the weights until a rebuild.
    """
    if (example is None) == (label is None):
        raise typer.BadParameter("Say what to forget: either --example or --label.")
    what = _to_be_forgotten(memory, example, label)
    if not yes:
        typer.confirm(f"Forget {what} for good?", abort=True, err=True)
    with _common.owning(memory, model) as classifier:
        gone = classifier.forget(example_id=example, label=label)
        typer.echo(f"Forgot {what}.")
        if again:
            _rebuild(classifier)
        elif gone.clean:
            typer.echo("What came after was learned again without it: the model kept nothing.")
        else:
            typer.echo(
                "What the model took from it stays until `anytimecl rebuild`; "
                "`anytimecl consolidate` wears it down."
            )


def _to_be_forgotten(memory: Path, example: int | None, label: str | None) -> str:
    """Description of what is forgotten; raises if it does not exist."""
    from anytimecl.labels import clean_label
    from anytimecl.memory import open_memory

    with open_memory(memory, read_only=True) as store:
        if example is not None:
            return f"example {example} of {store.example(example).label!r}"
        assert label is not None
        name, counts = clean_label(label), store.labels()
    _common.check_known(counts, name, subject=f"The memory in {memory} has")
    return f"{_screen.counted(counts[name], 'example')} of {name!r}"
