"""`anytimecl examples`, `relabel`, `undo`, `rename`, `merge` and `labels`."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from anytimecl.commands import _common, _screen
from anytimecl.commands._layout import warn_of_case
from anytimecl.errors import LabelTakenError

if TYPE_CHECKING:
    from anytimecl.review import ExamplePage, StoredExample


def register(main: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (examples, relabel, undo, rename, merge, labels):
        main.command(command.__name__)(command)


def examples(
    memory: _common.MemoryOption,
    label: Annotated[str | None, typer.Option(metavar="L", help="Only of this label.")] = None,
    source: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only files with this in their name.")
    ] = None,
    like: Annotated[
        Path | None, typer.Option(metavar="IMAGE", help="The most similar to this image first.")
    ] = None,
    suspicious: Annotated[
        bool, typer.Option("--suspicious", help="The most probable label errors first.")
    ] = False,
    after: Annotated[str | None, typer.Option(metavar="PLACE", help="Go on after a page.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="On a page.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    model: _common.ModelOption = None,
) -> None:
    """List stored examples, with each expert's current prediction.

    Ends with 1 if there is no such example, and with 2 if there is no such label.
    """
    from anytimecl.classifier import AnytimeClassifier

    if like is not None and suspicious:
        raise typer.BadParameter("Give --like or --suspicious, not both.")
    backbone = _common.load_model(model, _common.read_meta(memory, read_only=True))
    with (
        AnytimeClassifier.open(memory, model=backbone, read_only=True) as classifier,
        _screen.progress("look") as advance,
    ):
        if label is not None:
            _common.check_known(classifier.memory.labels(), label)
        page = classifier.examples(
            label=label, source=source, like=like, suspicious=suspicious, after=after, limit=limit,
            progress=advance,
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(_plain(page), indent=2, ensure_ascii=False))
    elif page.examples:
        _show(page)
    if not page.examples:
        typer.echo("There is no such example.", err=True)
        raise typer.Exit(1)


def _plain(page: ExamplePage) -> dict[str, Any]:
    return {
        "examples": [_fields(example) for example in page.examples],
        "next": page.next,
        "total": page.total,
    }


def _fields(example: StoredExample) -> dict[str, Any]:
    told = {"id": example.id, "label": example.label, "source": example.source}
    time = None if example.time is None else example.time.isoformat()
    says = {
        expert: {"label": label, "probability": round(probability, 4)}
        for expert, (label, probability) in example.says.items()
    }
    scores = {"suspicion": example.suspicion, "similarity": example.similarity}
    return told | {"time": time, "says": says} | {k: v for k, v in scores.items() if v is not None}


def _show(page: ExamplePage) -> None:
    experts = list(page.examples[0].says)
    scored = next(
        (s for s in ("suspicion", "similarity") if getattr(page.examples[0], s) is not None), None
    )
    headings = ["id", *([scored] if scored else []), "label", *experts, "source"]
    rows = []
    for each in page.examples:
        said = [f"{label} {100 * sure:.0f} %" for label, sure in each.says.values()]
        score = [f"{getattr(each, scored):.2f}"] if scored else []
        rows.append([str(each.id), *score, each.label, *said, each.source or ""])
    _screen.show_table(headings, rows, numbers=["id", scored or ""])
    typer.echo(f"{len(rows):,} of {_screen.counted(page.total, 'example')}", err=True)
    if page.next is not None:
        typer.echo(f"The next page: --after {page.next}", err=True)


def relabel(
    numbers: Annotated[
        str, typer.Argument(metavar="IDS", help="Numbers of examples: 7, or 7,9,20-25.")
    ],
    label: Annotated[str, typer.Argument(help="The label that is right.")],
    memory: _common.MemoryOption,
    model: _common.ModelOption = None,
) -> None:
    """Give stored examples another label; copies of an image change together.

    A range stands for the examples that exist in it. Ends with 1 if a number or a whole range
    matches no example.
    """
    wanted = list(_ranges(numbers))
    missing = []
    with _common.owning(memory, model) as classifier:
        stored = [example for example, _ in classifier.memory.ids()]
        warn_of_case(label, classifier.labels)
        for first, last in wanted:
            found = stored[bisect_left(stored, first) : bisect_right(stored, last)]
            if not found:
                which = f"{first}" if first == last else f"from {first} to {last}"
                missing.append(f"The memory has no example {which}.")
            for number in found:
                told = classifier.relabel(number, label)
                known = f"{told.id}: {told.before!r} is {told.label!r}"
                is_so = "already" if told.before == told.label else "now"
                typer.echo(_screen.printable(f"{known} {is_so}."))
    _screen.report(missing, "Not relabelled")
    if missing:
        raise typer.Exit(1)


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    """First and last number of each part."""
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise typer.BadParameter(
                f"{part!r} is no number of an example, nor a range such as 7-9.", param_hint="IDS"
            )
        yield int(found[1]), int(found[2] or found[1])


def undo(
    memory: _common.MemoryOption,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="How many changes.")] = 1,
    model: _common.ModelOption = None,
) -> None:
    """Undo the last changes: learning, relabelling, renaming, merging. Forgetting is final."""
    with _common.owning(memory, model) as classifier:
        for told in classifier.undo(steps):
            which = f" {', '.join(map(str, told.examples[:5]))}" if told.examples else ""
            if told.before is None:
                line = f"Took back example{which} of {told.label!r}."
            else:
                line = f"Undid {told.act}{which}: {told.label!r} is {told.before!r} again."
            typer.echo(_screen.printable(line))


def rename(
    old: Annotated[str, typer.Argument(help="The label as it is.")],
    new: Annotated[str, typer.Argument(help="What to call it.")],
    memory: _common.MemoryOption,
    model: _common.ModelOption = None,
) -> None:
    """Rename a label."""
    with _common.owning(memory, model) as classifier:
        _common.check_known(classifier.memory.labels(), old)
        warn_of_case(new, [name for name in classifier.labels if name != old])
        try:
            count = classifier.rename_label(old, new)
        except LabelTakenError as error:
            told = f"There are examples of {new!r} already: use `anytimecl merge`."
            raise LabelTakenError(told) from error
        told = f"{_screen.counted(count, 'example')} of {old!r} are called {new!r} now."
        typer.echo(_screen.printable(told))


def merge(
    source: Annotated[str, typer.Argument(help="The label that goes.")],
    into: Annotated[str, typer.Argument(help="The label that its examples get.")],
    memory: _common.MemoryOption,
    model: _common.ModelOption = None,
) -> None:
    """Merge one label into another, existing one."""
    with _common.owning(memory, model) as classifier:
        _common.check_known(classifier.memory.labels(), source, into)
        count = classifier.merge_labels(source, into)
        told = f"{_screen.counted(count, 'example')} of {source!r} are {into!r} now."
        typer.echo(_screen.printable(told))


def labels(
    to: Annotated[Path, typer.Argument(metavar="OUT", help="A file, or a new folder.")],
    memory: _common.MemoryOption,
    form: Annotated[
        Literal["csv", "jsonl", "folders"] | None,
        typer.Option("--format", help="Unless given: by the ending of OUT."),
    ] = None,
    model: _common.ModelOption = None,
) -> None:
    """Write all labels as CSV, JSON Lines, or folders of images.

    Ends with 1 if there is no image for some example, when writing folders.
    """
    from anytimecl.classifier import AnytimeClassifier
    from anytimecl.listing import Format, export_labels

    _common.refuse_dash(to, "OUT")
    endings: dict[str, Format] = {".csv": "csv", ".jsonl": "jsonl", "": "folders"}
    chosen = endings.get(to.suffix.lower()) if form is None else form
    if chosen is None:
        told = f"{to} ends neither in .csv nor in .jsonl: say what to write."
        raise typer.BadParameter(told, param_hint="--format")
    backbone = _common.load_model(model, _common.read_meta(memory, read_only=True))
    with (
        AnytimeClassifier.open(memory, model=backbone, read_only=True) as classifier,
        _screen.progress("write") as advance,
    ):
        found = export_labels(classifier, to, chosen, advance)
    typer.echo(f"{_screen.counted(found.examples, 'example')} written to {to}", err=True)
    if found.without_image:
        typer.echo(f"There is no image of {found.without_image:,} more.", err=True)
        raise typer.Exit(1)
