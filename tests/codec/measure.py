"""Bytes, milliseconds and errors of every codec on real images, as a Markdown table.

    python -m tests.codec.measure DATA [--sets pets cifar100 ...] [--images 32] [--constants]

DATA is the folder of zipped image folders. Errors are of the tail's output, not of tokens: cosine
distances to the embedding of uncompressed tokens, with the frozen weights and with weights moved at
random by a tenth of their spread; and of the gradient that a batch gives. `--constants` shows
instead our codec under smaller budgets, and with each of its constants halved and doubled.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import PIL.Image
import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone import Backbone, load
from anytimecl.codec import Codec, _lowrank, attention_pca
from anytimecl.tail import TailInput, embed
from anytimecl_lab.codecs import CODECS, make_codec

Params = dict[str, Tensor]
_CONSTANTS = [
    (attention_pca, name) for name in ("_CLS_STEP", "_MEAN_STEP", "_COEFFICIENT_STEP", "_KEEP")
] + [(_lowrank, name) for name in ("_FLOOR", "_SCORES", "_MIXES", "_ROUNDS")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "--sets", nargs="+", default="pets cifar100 food101 flowers102 resisc12".split()
    )
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--constants", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    backbone = load("embedded")
    # Twice as many: codecs that are fitted must not be measured on what they were fitted to.
    tokens = {name: _tokens(backbone, given.data, name, 2 * given.images) for name in given.sets}
    fitting = [images[given.images :] for images in tokens.values()]
    measured = [images[: given.images] for images in tokens.values()]
    bench = Bench(backbone, measured)
    _line("codec", "bytes, mean", "most", "encode ms", "decode 32 ms", *HEADINGS)
    _line(*["---"] * (5 + len(HEADINGS)))
    if given.constants:
        _vary(backbone, bench)
        return
    for name in CODECS:
        codec = make_codec(name, backbone.spec, backbone.tail)
        if codec.needs_image:
            continue
        if hasattr(codec, "fit"):
            codec.fit(fitting)
        _line(name, *bench.measure(codec))


HEADINGS = ("frozen x1000", "moved x1000", "gradient x1000")


class Bench:
    """What uncompressed tokens give, to compare with."""

    def __init__(self, backbone: Backbone, tokens: list[Tensor]) -> None:
        self.spec, self.tail = backbone.spec.tail, backbone.tail
        self.tokens = tokens
        generator = torch.Generator().manual_seed(0)
        self.moved = {
            name: value + 0.1 * value.std() * torch.randn(value.shape, generator=generator)
            for name, value in self.tail.items()
        }
        # A task for the gradient: tell each image from the others of its set.
        self.full = [self._outputs(images, None) for images in tokens]

    def measure(self, codec: Codec) -> list[str]:
        """A row of the table."""
        sizes, encoding, decoding, errors = [], [], [], []
        for images, full in zip(self.tokens, self.full, strict=True):
            records = [_timed(encoding, codec.encode, image) for image in images]
            sizes += [len(record) for record in records]
            for start in range(0, len(records), 32):
                batch = records[start : start + 32]
                for _ in range(5):
                    _timed(decoding, codec.decode, batch)
            got = self._outputs(codec.decode(records), full[0])
            errors.append(
                [
                    float(1 - F.cosine_similarity(a, b, dim=-1).mean())
                    for a, b in zip(got, full, strict=True)
                ]
            )
        means = (1000 * statistics.mean(column) for column in zip(*errors, strict=True))
        times = (1000 * statistics.median(each) for each in (encoding, decoding))
        return [
            f"{statistics.mean(sizes):,.0f}",
            f"{max(sizes):,}",
            *(f"{each:.1f}" for each in times),
            *(f"{each:.2f}" for each in means),
        ]

    def _outputs(self, tokens: Tensor | TailInput, labels: Tensor | None) -> list[Tensor]:
        """Embeddings with frozen and with moved weights, and the gradient of the block."""
        params = {name: value.clone().requires_grad_() for name, value in self.tail.items()}
        frozen = embed(params, self.spec, tokens)
        labels = F.normalize((frozen if labels is None else labels).detach(), dim=-1)
        logits = 30 * F.normalize(frozen, dim=-1) @ labels.T
        F.cross_entropy(logits, torch.arange(len(logits))).backward()
        block = [params[name].grad for name in sorted(params) if name.startswith("layers.")]
        gradient = torch.cat([grad.flatten().double() for grad in block if grad is not None])
        with torch.no_grad():
            moved = embed(self.moved, self.spec, tokens)
        return [frozen.detach(), moved, gradient]


def _vary(backbone: Backbone, bench: Bench) -> None:
    for budget, step in ((4500, 0.046), (3000, 0.06), (2000, 0.085)):
        config = attention_pca.AttentionPcaConfig(budget, step)
        codec = attention_pca.AttentionPca(backbone.spec, backbone.tail, config)
        _line(f"budget {budget}, step {step}", *bench.measure(codec))
    for module, name in _CONSTANTS:
        before = getattr(module, name)
        for factor in (0.5, 2):
            setattr(module, name, type(before)(before * factor))
            codec = make_codec("attention-pca", backbone.spec, backbone.tail)
            _line(f"{name} {getattr(module, name):g}", *bench.measure(codec))
        setattr(module, name, before)


def _tokens(backbone: Backbone, data: Path, name: str, count: int) -> Tensor:
    """Tokens [image, token, width] of images drawn evenly from a train split."""
    with zipfile.ZipFile(data / f"{name}.zip") as file:
        names = sorted(n for n in file.namelist() if n.startswith("train/") and n[-1] != "/")
        # An odd step through all classes, so that no class is met twice before all are met once.
        chosen = [names[i * 7919 % len(names)] for i in range(count)]
        images = [PIL.Image.open(BytesIO(file.read(n))).convert("RGB") for n in chosen]
    return backbone.encode(images)


def _timed(times: list[float], call: Callable[[Any], Any], given: Any) -> Any:
    """Time on the processor, which is the same on a busy machine: all runs in one thread."""
    start = time.thread_time()
    result = call(given)
    times.append(time.thread_time() - start)
    return result


def _line(*cells: str) -> None:
    sys.stdout.write("| " + " | ".join(cells) + " |\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
