"""RAM that each further memory of a service takes.

    python -m benchmarks.tenth [--memories 10] [--open 4]

One process with the embedded model: memories are created one after another and learn 12 images
each, as in a service, with a limited number open at once besides the first. Prints the RAM of the
process after each, and the increase by the last one.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import tempfile
import time
from pathlib import Path

import torch
from benchmarks.learn import pictures

from anytimecl import AnytimeClassifier, backbone
from anytimecl.serve.engine import Engine
from anytimecl.serve.memories import Memories
from anytimecl.serve.metrics import resident_bytes
from anytimecl.serve.options import Options

LESSONS = 12


def teach(classifier: AnytimeClassifier, tokens: torch.Tensor) -> None:
    for number, one in enumerate(tokens):
        classifier.learn_tokens(one, f"label {number % 4}")
    classifier.predict_tokens(tokens[:1])


async def work(given: argparse.Namespace, folder: Path) -> None:
    model = backbone.load("embedded")
    tokens = torch.cat([model.encode([picture]) for picture in pictures(LESSONS)])

    def opened(place: Path) -> AnytimeClassifier:
        return AnytimeClassifier.open(place, model=model)

    options = dataclasses.replace(Options(), open_memories=given.open)
    before = resident_bytes()
    memories = Memories(Engine(opened(folder / "default"), options), folder, opened)
    teach(memories.default.classifier, tokens)
    held = [resident_bytes()]
    print(f"model alone {before >> 20} MiB; with the first memory {held[0] >> 20}", flush=True)
    for number in range(2, given.memories + 1):
        began = time.monotonic()
        await memories.create(f"m{number}")
        seconds = time.monotonic() - began
        async with memories.use(f"m{number}") as engine:
            await asyncio.to_thread(teach, engine.classifier, tokens)
        held.append(resident_bytes())
        print(
            f"memory {number}: {held[-1] >> 20} MiB, {(held[-1] - held[-2]) / 2**20:+.0f}; "
            f"{len(memories.opened())} open; opened in {seconds:.2f} s",
            flush=True,
        )
    await memories.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--memories", type=int, default=10)
    parser.add_argument("--open", type=int, default=4)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(work(given, Path(folder)))


if __name__ == "__main__":
    main()
