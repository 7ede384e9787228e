"""What learning one image costs beside encoding it, and whether a large memory slows it down.

    python -m benchmarks.learn [--examples 1000000] [--images 30]

1. `learn_one` on the embedded model against encoding the same image, in turns.
2. A step of the method (draw, read, decode, update) with a thousand stored examples and with a
   million, in turns, both on disk; ViT-B/32 sizes.
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
from anytimecl.lock import TurnLock
from anytimecl.memory import Row, open_memory
from anytimecl.settings import Settings
from anytimecl.student import Student

LABELS = 1000


def pictures(count: int) -> list[Image.Image]:
    """Photo-sized noise; the trunk's cost does not depend on what is in a picture."""
    random = np.random.default_rng(0)
    small = random.integers(0, 256, (count, 12, 16, 3), dtype=np.uint8)
    return [Image.fromarray(pixels).resize((640, 480)) for pixels in small]


def learn_against_encode(count: int = 30) -> None:
    """Medians, and the ratio."""
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


class _Noise:
    """A text side for timing: any label gets some unit vector."""

    def __call__(self, texts: Sequence[str]) -> Tensor:
        return F.normalize(torch.randn(len(texts), DIM), dim=-1)


def filled(folder: Path, backbone: Backbone, record: bytes, count: int) -> Student:
    """A student with `count` stored examples, as it is after opening such a memory."""
    memory = open_memory(folder, create={}, cache_bytes=1 << 28)
    for start in track(range(0, count, 10_000), f"storing {count:,} examples"):
        rows = [
            Row(f"label {i % LABELS}", record) for i in range(start, min(start + 10_000, count))
        ]
        memory.append_many(rows)
    codec = make_codec("attention-pca", backbone.spec, backbone.tail)
    student = Student(backbone, codec, memory, Settings(), TurnLock())
    for i in range(LABELS):
        student._register(f"label {i}")
    for example, label in memory.ids():
        student._remember(example, label)
        student.event = example
    return student


def large_against_small(count: int, rounds: int = 40) -> None:
    """A step with `count` examples against one with a thousand."""
    torch.manual_seed(0)
    spec = make_spec(50)
    tail = make_tail(spec)
    backbone = Backbone(spec=spec, trunk=lambda pixels: pixels, tail=tail, text=_Noise())
    record = make_codec("attention-pca", spec, tail).encode(torch.randn(50, 768))
    with tempfile.TemporaryDirectory() as folder:
        sizes = {1000: [], count: []}  # type: dict[int, list[float]]
        students = {n: filled(Path(folder) / str(n), backbone, record, n) for n in sizes}
        for number in range(rounds + 3):
            for size, student in students.items():
                began = time.perf_counter()
                example = student.memory.append("label 1", record)
                student.teach(example, "label 1", record, None)
                if number >= 3:
                    sizes[size].append(1000 * (time.perf_counter() - began))
        for student in students.values():
            student.memory.close()
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
    given = parser.parse_args(words)
    learn_against_encode(given.images)
    large_against_small(given.examples)


if __name__ == "__main__":
    main()
