"""`anytimecl stats`: statistics of each label."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from anytimecl.commands import _common, _screen

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from anytimecl.classifier import LabelStats

Sort = Literal["examples", "label", "tuned", "original", "weight", "age"]
Stats = Mapping[str, "LabelStats"]

MOST_BARS = 250  # labels in the plot
FORMATS = (".png", ".svg", ".pdf", ".jpg")
_BLUE, _GREY, _PALE, _INK = "#2563a8", "#8a8f98", "#c9d7e8", "#2a2e35"


# Largest first; labels alphabetically; age in order of first appearance.
_KEYS: dict[Sort, Callable[[tuple[str, LabelStats]], Any]] = {
    "examples": lambda item: -item[1].examples,
    "label": lambda item: item[0].casefold(),
    "tuned": lambda item: -item[1].tuned,
    "original": lambda item: -item[1].original,
    "weight": lambda item: -item[1].weight,
    "age": lambda item: 0,
}


def register(main: typer.Typer) -> None:
    """Add `anytimecl stats` to the program."""
    main.command("stats")(stats)


def stats(
    memory: _common.MemoryOption,
    plot: Annotated[
        Path | None, typer.Option(metavar="OUT.png", help="Draw a picture as well.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
    sort: Annotated[Sort, typer.Option(help="Order of the labels.")] = "examples",
    model: _common.ModelOption = None,
) -> None:
    """Show examples, both models' estimated accuracy and the tuned one's weight, label by label.

    The estimates come from examples that were scored just before they were learned.
    """
    from anytimecl.classifier import AnytimeClassifier

    if plot is not None:
        if plot.suffix.lower() not in FORMATS:
            raise typer.BadParameter(f"End its name in {', '.join(FORMATS)}.", param_hint="--plot")
        _common.writable(plot, "--plot")
    meta = _common.read_meta(memory, read_only=True)
    backbone = _common.load_model(model, meta)
    with AnytimeClassifier.open(memory, model=backbone, read_only=True) as classifier:
        found = dict(sorted(classifier.stats().items(), key=_KEYS[sort]))
        count = len(classifier)
    if as_json:
        labels = [{"label": label, **known._asdict()} for label, known in found.items()]
        typer.echo(json.dumps({"examples": count, "labels": labels}, indent=2))
    elif found:
        _show(found, count)
    else:
        typer.echo(f"Nothing is learned yet in {memory}.")
    if plot is not None:
        draw(found, plot)
        typer.echo(f"Drawn in {plot}", err=True)


def _show(found: Stats, count: int) -> None:
    headings = ["label", "examples", "tuned", "original", "weight of tuned"]
    percent = _screen.percent
    rows = [
        [label, f"{known.examples:,}", percent(known.tuned), percent(known.original),
         percent(known.weight)]
        for label, known in found.items()
    ]  # fmt: skip
    _screen.show_table(headings, rows, numbers=headings[1:])
    labels = _screen.counted(len(found), "label")
    typer.echo(f"{_screen.counted(count, 'example')} of {labels}")


# The plot


def draw(found: Stats, file: Path) -> None:
    """Draw three horizontal bar charts with common labels."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    shown = dict(list(found.items())[:MOST_BARS])
    height = 1.6 + 0.21 * max(len(shown), 3)
    figure = Figure(figsize=(9, height), layout=ConstrainedLayoutEngine(wspace=0.05))
    left, middle, right = figure.subplots(1, 3, sharey=True, width_ratios=(4, 5, 3))
    places = range(len(shown))
    stats = list(shown.values())

    left.barh(places, [known.examples for known in stats], color=_PALE, height=0.72)
    for place, known in zip(places, stats, strict=True):
        left.annotate(
            f"{known.examples:,}", (known.examples, place), (3, 0), textcoords="offset points",
            va="center", fontsize=7, color=_INK,
        )  # fmt: skip
    left.margins(x=0.18)
    left.set_title("examples", **_TITLE)

    original, tuned = ([known.original for known in stats], [known.tuned for known in stats])
    middle.hlines(places, original, tuned, color=_PALE, linewidth=2.5, zorder=1)
    middle.scatter(
        original, places, s=52, facecolor="white", edgecolor=_GREY, label="original", zorder=2
    )
    middle.scatter(tuned, places, s=26, color=_BLUE, label="tuned", zorder=3)
    middle.set_title("right before learning", **_TITLE)
    figure.legend(
        *middle.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False,
        fontsize=8,
    )  # fmt: skip

    right.barh(places, [known.weight for known in stats], color=_BLUE, height=0.72)
    right.set_title("weight of tuned", **_TITLE)

    left.set_yticks(places, [_short(label) for label in shown], fontsize=8, color=_INK)
    for text in left.get_yticklabels():
        text.set_parse_math(False)  # a label may contain $
    left.set_ylim(max(len(shown), 3) - 0.4, -0.6)  # first label at the top
    for axes in (left, middle, right):
        _plain(axes)
    for axes in (middle, right):
        axes.set_xlim(-0.03, 1.03)
        axes.set_xticks((0, 0.5, 1), ("0 %", "50 %", "100 %"))
    if len(shown) < len(found):
        figure.supxlabel(
            f"the first {len(shown)} of {len(found):,} labels", fontsize=9, color=_GREY
        )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # it is drawn as a box
        figure.savefig(file, dpi=150)


_TITLE: dict[str, Any] = {"fontsize": 9, "color": _INK, "loc": "left"}


def _plain(axes: Axes) -> None:
    """Remove unnecessary decoration."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=8, colors=_INK)
    axes.grid(axis="x", color="#e6e8ec", linewidth=0.8)
    axes.set_axisbelow(True)


def _short(label: str, longest: int = 32) -> str:
    return label if len(label) <= longest else label[: longest - 1] + "…"
