"""What learning one image costs beside encoding it, and whether a large memory slows it down.

    python -m benchmarks.learn [--examples 1000000] [--images 30] [--files 300]

1. `learn_one` with the embedded model, relative to encoding the same image; alternating.
2. `learn_many` from JPEG files, as in `anytimecl learn`, relative to reading and encoding them
   only: 30 files at a time, alternating.
3. A step of the method (sample, read, decode, update) with a thousand stored examples and with a
   million, alternating, both on disk; ViT-B/32 sizes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.nn.functional as F
from benchmarks.step import DIM, make_spec, make_tail
from PIL import Image
from rich.progress import track
from torch import Tensor

from anytimecl import AnytimeClassifier
from anytimecl.backbone import Backbone, load
from anytimecl.codec import make_codec
from anytimecl.images import load_image
from anytimecl.journaled import JournaledTrainer
from anytimecl.lock import TurnLock
from anytimecl.memory import Row, open_memory
from anytimecl.settings import Settings

LABELS = 1000
AT_ONCE = 30  # files


def pictures(count: int) -> list[Image.Image]:
    """Photo-sized noise; the trunk's cost does not depend on the content."""
    random = np.random.default_rng(0)
    small = random.integers(0, 256, (count, 12, 16, 3), dtype=np.uint8)
    return [Image.fromarray(pixels).resize((640, 480)) for pixels in small]


def learn_against_encode(count: int = 30) -> None:
    """Print medians and their ratio."""
    backbone = load("embedded")
    images = pictures(count)
    encode, learn = [], []
    with (
        tempfile.TemporaryDirectory() as folder,
        AnytimeClassifier.open(folder, model=backbone) as clf,
    ):
        for i, image in enumerate(images[:10]):
            clf.learn_one(image, f"label {i}")
        for i, image in enumerate(images):
            began = time.perf_counter()
            backbone.encode([image])
            middle = time.perf_counter()
            clf.learn_one(image, f"label {i % 10}")
            encode.append(middle - began)
            learn.append(time.perf_counter() - middle)
    a, b = 1000 * median(encode), 1000 * median(learn)
    print(f"encode {a:.1f} ms, learn_one {b:.1f} ms: {b / a:.2f} x", flush=True)


def folder_against_encode(count: int = 300) -> None:
    """Print files per second, and the ratio of the rates."""
    backbone = load("embedded")
    encode = learn = 0.0
    with (
        tempfile.TemporaryDirectory() as photos,
        tempfile.TemporaryDirectory() as memory,
        AnytimeClassifier.open(memory, model=backbone) as clf,
    ):
        files = [Path(photos) / f"{number}.jpg" for number in range(count)]
        for file, image in zip(files, pictures(count), strict=True):
            image.save(file)
        for start in range(0, count, AT_ONCE):
            some = files[start : start + AT_ONCE]
            began = time.perf_counter()
            for file in some:
                backbone.encode([load_image(file)])
            middle = time.perf_counter()
            clf.learn_many([(file, f"label {i % 10}") for i, file in enumerate(some)])
            if start:  # the first portion is the warm-up
                encode += middle - began
                learn += time.perf_counter() - middle
    done = count - AT_ONCE
    print(
        f"{count} files: encode {done / encode:.2f} a second, learn {done / learn:.2f} a second: "
        f"{encode / learn:.2f} x the rate",
        flush=True,
    )


class _Noise:
    """A text encoder for timing, with random unit vectors."""

    def __call__(self, texts: Sequence[str]) -> Tensor:
        return F.normalize(torch.randn(len(texts), DIM), dim=-1)


def plain_backbone() -> Backbone:
    """ViT-B/32 sizes, random weights, no trunk."""
    torch.manual_seed(0)
    spec = make_spec(50)
    tail = make_tail(spec)
    return Backbone(spec=spec, trunk=lambda pixels: pixels, tail=tail, text=_Noise())


def filled(folder: Path, backbone: Backbone, record: bytes, count: int) -> JournaledTrainer:
    """A trainer with `count` stored examples, as after opening such a memory."""
    memory = open_memory(folder, create={}, cache_bytes=1 << 28)
    for start in track(range(0, count, 10_000), f"storing {count:,} examples"):
        rows = [
            Row(f"label {i % LABELS}", record) for i in range(start, min(start + 10_000, count))
        ]
        memory.append_many(rows)
    codec = make_codec("attention-pca", backbone.spec, backbone.tail)
    trainer = JournaledTrainer(backbone, codec, memory, Settings(), TurnLock())
    for i in range(LABELS):
        trainer.enter(f"label {i}")
    for example, label in memory.ids():
        trainer.examples.add(example, label)
        trainer.event = example
    return trainer


def large_against_small(count: int, rounds: int = 40) -> None:
    """Time of a step with `count` examples relative to one with a thousand."""
    backbone = plain_backbone()
    record = make_codec("attention-pca", backbone.spec, backbone.tail).encode(torch.randn(50, 768))
    with tempfile.TemporaryDirectory() as folder:
        sizes = {1000: [], count: []}  # type: dict[int, list[float]]
        trainers = {n: filled(Path(folder) / str(n), backbone, record, n) for n in sizes}
        for number in range(rounds + 3):
            for size, trainer in trainers.items():
                began = time.perf_counter()
                example = trainer.memory.append("label 1", record)
                trainer.teach(example, "label 1", record, None)
                if number >= 3:
                    sizes[size].append(1000 * (time.perf_counter() - began))
        for trainer in trainers.values():
            trainer.memory.close()
    small, large = (median(values) for values in sizes.values())
    print(
        f"step with 1,000 stored {small:.2f} ms, with {count:,} stored {large:.2f} ms: "
        f"{large / small:.2f} x",
        flush=True,
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.learn", description=__doc__.split("\n")[0])
    parser.add_argument("--examples", type=int, default=1_000_000)
    parser.add_argument("--images", type=int, default=30)
    parser.add_argument("--files", type=int, default=300)
    given = parser.parse_args(words)
    learn_against_encode(given.images)
    folder_against_encode(given.files)
    large_against_small(given.examples)


if __name__ == "__main__":
    main()
