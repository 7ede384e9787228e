"""Minimum operations and memory traffic of an online step, and how close a card comes to them.

`benchmarks.gpu` measures; this module counts, and draws both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.step import BATCH, LABELS

RANK = 6  # components per example, besides class token and mean


class Size(NamedTuple):
    """Sizes of a model."""

    tokens: int
    width: int
    heads: int
    dim: int


SIZES = {
    "ViT-B/32": Size(50, 768, 12, 512),
    "ViT-B/16": Size(197, 768, 12, 512),
    "ViT-L/14": Size(257, 1024, 16, 768),
    "DINOv2 ViT-S/14": Size(257, 384, 6, 384),
}


class Work(NamedTuple):
    """Work of one step."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes


def work(size: Size, batch: int = BATCH, labels: int = LABELS) -> Work:
    """Count the online step on compressed examples.

    Operations are those of matrix products, two per multiply-add; elementwise work is not counted.
    Bytes are those that no cache can avoid: weights and both moments are read and written; the
    batch, the labels and the projection are read. A step that reads weights more than once or keeps
    copies of them, as this one does, is further below the roof.
    """
    tokens, width, heads, dim = size
    parts = RANK + 2  # eight, a tile of the tensor cores
    weights = 12 * width**2  # query, key, value, output; twice four of them in the MLP
    vectors = 12 * width  # biases, except the key's, which has no gradient, and both norms

    through = 3 * 2 * batch * weights  # forward, gradients of input and weight
    image = parts * width + tokens * parts  # parts, then their coefficients
    # Scores and mixture, both backward, and gradients of the parts, for the norm's affine.
    attention = 2 * batch * heads * (4 * image + 2 * parts * width)
    answers = 2 * 2 * batch * (dim * width + labels * dim)  # projection and labels, and back

    adam = 3 * 2 * 4 * (weights + vectors)  # three tensors, read and written, single precision
    examples = 2 * batch * (width + image)  # half precision
    frozen = 4 * (dim * width + labels * dim)
    return Work(through + attention + answers, adam + examples + frozen)


class Measured(NamedTuple):
    """Measured limits and steps of a card."""

    card: str
    copy: float  # bytes per second
    rate: float  # operations per second
    steps: dict[str, float]  # seconds of an online step, by size


def latest(lines: Sequence[Mapping[str, Any]]) -> Measured:
    """The last run in a file of results."""
    starts = [number for number, line in enumerate(lines) if "limits" in line]
    steps = {
        line["size"]: line["milliseconds"]["online step"] / 1000
        for line in lines[starts[-1] if starts else 0 :]
        if line.get("size") in SIZES
    }
    if not starts or not steps:
        raise SystemExit("The file holds no run of benchmarks.gpu: limits, then a line a size.")
    first = lines[starts[-1]]
    limits = first["limits"]
    about = f"{first['card']}, torch {first['torch']}"
    return Measured(about, 1e12 * limits["copy TB/s"], 1e12 * limits["matrix TFLOP/s"], steps)


def draw(results: Path, picture: Path) -> None:
    """Draw the last run in `results` as a roofline plot."""
    from matplotlib.figure import Figure  # not pyplot, which has global state

    found = latest([json.loads(line) for line in results.read_text().splitlines()])
    ridge = found.rate / found.copy
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.set_yscale("log")
    ends = [ridge / 30, ridge, ridge * 4]
    roof = [min(found.copy * x, found.rate) / 1e12 for x in ends]
    axes.plot(ends, roof, color="black", linewidth=1.2)
    axes.annotate(
        f"copying: {found.copy / 1e12:.2f} TB/s", (ridge / 4, roof[1] / 4), (-6, 4),
        textcoords="offset points", fontsize=8, horizontalalignment="right",
    )  # fmt: skip
    axes.annotate(
        f"multiplying: {found.rate / 1e12:.0f} TFLOP/s", (ridge, roof[1]), (4, 5),
        textcoords="offset points", fontsize=8,
    )  # fmt: skip
    for number, (name, seconds) in enumerate(found.steps.items()):
        counted = work(SIZES[name])
        reached, allowed = counted.flops / seconds, found.copy * counted.intensity
        allowed = min(allowed, found.rate)
        x, colour = counted.intensity, f"C{number}"
        axes.plot([x, x], [reached / 1e12, allowed / 1e12], color=colour, linestyle=":")
        axes.plot(
            x, reached / 1e12, "o", color=colour,
            label=f"{name}: {1000 * seconds:.3f} ms, {reached / allowed:.0%} of the roof",
        )  # fmt: skip
    axes.set_xlabel("operations a byte that must be moved")
    axes.set_ylabel("10¹² operations a second")
    axes.set_title(f"The online step, batch {BATCH} · {found.card}", fontsize=10)
    axes.grid(visible=True, which="both", alpha=0.2)
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(picture, dpi=130)
