"""What each kind of model costs on a CPU, beside CLIP ViT-B/16 in the same run: a table.

    python -m benchmarks.models [--rounds 5] [--models "SigLIP B/16; DINOv2 S/14"]

Real sizes with random weights: nothing is downloaded, and times do not depend on weights. "encode"
is the trunk for one preprocessed image, in float; "lesson" is `learn_tokens` with a memory on disk
and its default codec; "from an image" is `learn_one`, which is both. Each alternates with CLIP
ViT-B/16; the ratio of the medians is in brackets. Times are CPU time, which other load on the
machine does not affect. "stored" is the size of an image in the memory.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import PIL.Image
import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl import AnytimeClassifier
from anytimecl.backbone import Backbone
from anytimecl.backbone.spec import Preprocess, Rotary, Spec, TailSpec
from anytimecl.backbone.trunk import TorchTrunk

TIMED = ("encode", "lesson", "from an image")
WARM_UP, LABELS, STORED = 2, 10, 40  # STORED: examples before timing, for full batches


@dataclass(frozen=True)
class Kind:
    """Sizes of a model's image encoder."""

    patch: int
    width: int = 768
    blocks: int = 12
    side: int = 224
    before: int = 1  # prefix tokens: class token and registers
    pool: str = "cls"
    dim: int | None = 512  # of the projection; None: no projection
    text: bool = True

    @property
    def tokens(self) -> int:
        return (self.side // self.patch) ** 2 + self.before


REFERENCE = "CLIP B/16"
KINDS = {
    REFERENCE: Kind(16),  # also Chinese CLIP's and open_clip's
    "CLIP B/32": Kind(32),
    "CLIP L/14": Kind(14, width=1024, blocks=24, dim=768),
    "MetaCLIP 2 H/14": Kind(14, width=1280, blocks=32, dim=1024),
    "SigLIP B/16": Kind(16, before=0, pool="map", dim=None),
    "SigLIP L/16, 256 pixels": Kind(
        16, width=1024, blocks=24, side=256, before=0, pool="map", dim=None
    ),
    "DINOv2 S/14": Kind(14, width=384, dim=None, text=False),
    "DINOv2 B/14": Kind(14, dim=None, text=False),
    "DINOv3 S/16": Kind(16, width=384, before=5, pool="cls-rotary", dim=None, text=False),
    "DINOv3 B/16": Kind(16, before=5, pool="cls-rotary", dim=None, text=False),
    "ViT B/16": Kind(16, dim=None, text=False),
}


def made(name: str, kind: Kind) -> Backbone:
    """Such a model with random weights and its default tail."""
    random = torch.Generator().manual_seed(0)
    width, grid = kind.width, kind.side // kind.patch

    def linear(at: str, rows: int, columns: int) -> dict[str, Tensor]:
        weight = torch.randn(rows, columns, generator=random) * 0.02
        return {f"{at}.weight": weight, f"{at}.bias": torch.zeros(rows)}

    def norm(at: str) -> dict[str, Tensor]:
        return {f"{at}.weight": torch.ones(width), f"{at}.bias": torch.zeros(width)}

    def attention(at: str) -> dict[str, Tensor]:
        parts = [linear(f"{at}.{part}_proj", width, width) for part in ("q", "k", "v", "out")]
        return dict(itertools.chain(*(part.items() for part in parts)))

    def mlp(at: str) -> dict[str, Tensor]:
        return linear(f"{at}.fc1", 4 * width, width) | linear(f"{at}.fc2", width, 4 * width)

    def block(at: str) -> dict[str, Tensor]:
        norms = norm(f"{at}.layer_norm1") | norm(f"{at}.layer_norm2")
        return attention(f"{at}.self_attn") | mlp(f"{at}.mlp") | norms

    pooled = kind.pool == "map"
    spec: Any = TailSpec(
        first=kind.blocks - (0 if pooled else 1),
        blocks=0 if pooled else 1,
        width=width,
        heads=width // 64,
        activation="gelu_tanh" if pooled else "quick_gelu",
        norm_eps=1e-6,
        pool=kind.pool,  # type: ignore[arg-type]
        rotary=Rotary(100.0, grid, grid) if kind.pool == "cls-rotary" else None,
    )
    trunk = {"patch_embedding.weight": torch.randn(width, 3, kind.patch, kind.patch) * 0.02}
    if kind.before:
        trunk["prefix"] = torch.zeros(1, kind.before, width)
    if spec.rotary is None:
        trunk["positions"] = torch.randn(grid * grid, width) * 0.02
    for index in range(spec.first):
        trunk |= block(f"layers.{index}")
    tail = norm("post_layernorm")
    if pooled:
        tail |= {"head.probe": torch.randn(1, width)} | attention("head.attention")
        tail |= mlp("head.mlp") | norm("head.layernorm")
    else:
        tail |= block(f"layers.{spec.last}")
    if kind.dim is not None:
        tail["visual_projection.weight"] = torch.randn(kind.dim, width) * 0.02
    half = (0.5, 0.5, 0.5)
    prep = Preprocess(kind.side, kind.side, "exact", (kind.side,) * 2, "bicubic", half, half)
    dim = kind.dim or width
    told = Spec(name, "clip", prep, spec, kind.tokens, dim, 100.0, 0.0, name)
    text = _noise(dim) if kind.text else None
    return Backbone(spec=told, trunk=TorchTrunk(trunk, spec), tail=tail, text=text)


def _noise(dim: int) -> Any:
    """A text encoder for timing, with random unit vectors."""
    return lambda texts: F.normalize(torch.randn(len(texts), dim), dim=-1)


class Side:
    """A model and a memory with it."""

    def __init__(self, name: str, kind: Kind, stack: ExitStack) -> None:
        self.model = made(name, kind)
        self.pixels = torch.randn(1, 3, kind.side, kind.side)
        self.tokens = self.model.trunk(self.pixels)[0]
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        opened = AnytimeClassifier.open(folder, model=self.model)
        self.classifier = stack.enter_context(opened)
        self._numbers = itertools.count()  # unique images: a repeated one is not a new example
        for _ in range(STORED):
            self._lesson()
        self.times: dict[str, list[float]] = {}

    def turn(self, *, counts: bool) -> None:
        """Encode once, learn once from tokens, and once from an image."""
        image, label = self._image()
        for kind, act in (
            ("encode", lambda: self.model.trunk(self.pixels)),
            ("lesson", self._lesson),
            ("from an image", lambda: self.classifier.learn_one(image, label)),
        ):
            began = time.process_time()
            act()
            if counts:
                took = 1000 * (time.process_time() - began)
                self.times.setdefault(kind, []).append(took)

    def _lesson(self) -> None:
        number = next(self._numbers)
        noise = torch.randn(self.tokens.shape, generator=torch.Generator().manual_seed(number))
        self.classifier.learn_tokens(self.tokens + 0.3 * noise, f"label {number % LABELS}")

    def _image(self) -> tuple[PIL.Image.Image, str]:
        number = next(self._numbers)
        noise = np.random.default_rng(number).integers(0, 256, (256, 320, 3), dtype=np.uint8)
        return PIL.Image.fromarray(noise), f"label {number % LABELS}"

    @property
    def megabytes(self) -> float:
        """Size of the image encoder, in float."""
        trunk = self.model.trunk
        assert isinstance(trunk, TorchTrunk)
        weights = itertools.chain(trunk.params.values(), self.model.tail.values())
        return sum(weight.nbytes for weight in weights) / 1e6

    @property
    def stored(self) -> float:
        """Kilobytes per image."""
        memory = self.classifier.memory
        records = memory.stored([example for example, _ in memory.ids()])
        return median(len(each.record) for each in records) / 1e3


def measure(name: str, rounds: int, beside: Side) -> list[str]:
    """A row of the table."""
    with ExitStack() as stack:
        own = Side(name, KINDS[name], stack)
        beside.times = {}
        for number in range(WARM_UP + rounds):
            for side in (own, beside) if number % 2 else (beside, own):
                side.turn(counts=number >= WARM_UP)
        timed = [(median(own.times[kind]), median(beside.times[kind])) for kind in TIMED]
        return [
            name,
            f"{own.model.spec.tokens}",
            f"{own.megabytes:,.0f} MB",
            f"{own.stored:.1f} kB",
            *(f"{ours:,.0f} ms ({ours / its:.2f})" for ours, its in timed),
        ]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.models", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default=";".join(KINDS), help="names, with ; between them")
    given = parser.parse_args(words)
    _line("model", "tokens", "image side", "stored", *TIMED)
    _line(*["---"] * (4 + len(TIMED)))
    with ExitStack() as stack:
        beside = Side(REFERENCE, KINDS[REFERENCE], stack)
        for name in given.models.split(";"):
            _line(*measure(name.strip(), given.rounds, beside))


def _line(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
