"""What a codec costs: bytes an example, and milliseconds a batch of 32 from disk to new weights.

    python -m anytimecl_lab.costs recipes/paper/codecs.toml --data DIR --out FILE [--device cuda]

Adds a line for every codec of the recipe, and one for images, to the lines of results. Accuracy
comes from running the recipe; `anytimecl bench codecs` does both and makes the table.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean, median

import torch

from anytimecl.acceleration import OnlineLearner
from anytimecl.codec import Codec, ImageBytes
from anytimecl.errors import AnytimeError
from anytimecl.images import load_image
from anytimecl.memory import Row, Store, open_memory
from anytimecl.settings import LearnerConfig
from anytimecl.step import Batch
from anytimecl_lab._progress import tell
from anytimecl_lab.ask import about
from anytimecl_lab.codecs import CODECS, FittedCodec
from anytimecl_lab.examples import check_device
from anytimecl_lab.features import features
from anytimecl_lab.recipe import Cell, Contestant, Recipe, read_recipe
from anytimecl_lab.records import component_codec
from anytimecl_lab.results import Line, add_line
from anytimecl_lab.studio import Part, Studio

STORED = 512  # examples in the memory from which batches are drawn
BATCH = 32
ROUNDS = 30
WARM_UP = 5
IMAGE = Contestant("image", "online", codec="image")
TOKENS = "tokens-fp16"  # the codec of methods without one


def contestants(recipe: Recipe) -> list[Contestant]:
    """Images first, then the recipe's codecs."""
    return [
        IMAGE,
        *(each if each.codec else replace(each, codec=TOKENS) for each in recipe.methods),
    ]


@torch.no_grad()
def time_codec(studio: Studio, chosen: Contestant, rounds: int = ROUNDS) -> Line:
    """Median and mean time to read, decode and learn a batch, from a memory on disk."""
    part = next(iter(studio.train.values()))
    part = Part(part.split, part.chosen[:: max(1, len(part.chosen) // STORED)][:STORED])
    codec, records = _encoded(studio, chosen, part)
    labels = sorted(set(part.labels))
    vectors = torch.stack([studio.vectors[label] for label in labels])
    learner = OnlineLearner(studio.backbone.spec, studio.backbone.tail, LearnerConfig())
    rows = torch.arange(len(labels), device=studio.device)
    spent: list[list[float]] = []
    with tempfile.TemporaryDirectory() as folder:
        # No cache in RAM, since the paper includes loading.
        memory = open_memory(Path(folder), create={}, cache_bytes=0)
        ids = memory.append_many([Row(y, r) for y, r in zip(part.labels, records, strict=True)])
        target_of = {i: labels.index(y) for i, y in zip(ids, part.labels, strict=True)}
        for number in range(WARM_UP + rounds):
            drawn = Random(number).sample(ids, min(BATCH, len(ids)))
            target = torch.tensor([target_of[i] for i in drawn], device=studio.device)
            spent.append(_step(studio, memory, codec, learner, drawn, target, vectors, rows))
        memory.close()
    load, decode, step = (1000 * median(each) for each in zip(*spent[WARM_UP:], strict=True))
    cell = Cell(studio.recipe.name, studio.recipe.group, part.split.key, chosen, 0)
    known = chosen if chosen in studio.recipe.methods else studio.recipe.methods[0]
    line = about(studio, replace(cell, contestant=known))
    return line | {
        "name": chosen.name,
        "codec": CODECS.named(chosen.codec or TOKENS).plain(),
        "bytes": sum(map(len, records)) / len(records),
        "ms": load + decode + step,
        "ms_mean": 1000 * fmean(map(sum, spent[WARM_UP:])),  # as in the paper, of 100
        "rounds": rounds,
        "ms_load": load,
        "ms_decode": decode,
        "ms_step": step,
    }


def _encoded(studio: Studio, chosen: Contestant, part: Part) -> tuple[Codec, list[bytes]]:
    """The codec, ready to decode, and records of some images."""
    if chosen.codec == "image":
        images = ImageBytes()
        images.attach(lambda files: studio.backbone.encode([load_image(file) for file in files]))
        return images, [images.encode_image(part.split.file(i)) for i in part.chosen]
    tail = {name: value.cpu() for name, value in studio.backbone.tail.items()}
    codec = component_codec(chosen.codec or TOKENS, studio.backbone.spec, tail, chosen.components)
    array = features(part.split, studio.backbone, part.chosen)
    tokens = [torch.from_numpy(array[i]).float() for i in part.chosen]
    if isinstance(codec, FittedCodec):
        codec.fit(tokens)
    return codec, [codec.encode(each) for each in tokens]


def _step(
    studio: Studio,
    memory: Store,
    codec: Codec,
    learner: OnlineLearner,
    drawn: Sequence[int],
    target: torch.Tensor,
    vectors: torch.Tensor,
    rows: torch.Tensor,
) -> list[float]:
    """Seconds to load, decode, and learn."""
    if isinstance(codec, ImageBytes):
        codec.clear()  # its RAM cache, in which images of a large memory would not be found
    began = time.perf_counter()
    records = memory.read(drawn)
    loaded = time.perf_counter()
    tokens = codec.decode(records, studio.device)
    _wait(studio.device)
    decoded = time.perf_counter()
    learner.apply(learner.look_ahead(Batch(tokens, target, vectors, rows)))
    _wait(studio.device)
    return [loaded - began, decoded - loaded, time.perf_counter() - decoded]


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def time_all(
    recipe: Recipe,
    data: Path | None,
    out: Path,
    device: str,
    say: Callable[[str], None] = tell,
    *,
    rounds: int = ROUNDS,
) -> None:
    """Append a line for every codec to `out`."""
    check_device(device)
    studio = Studio(recipe, data, device)
    for chosen in contestants(recipe):
        line = time_codec(studio, chosen, rounds)
        add_line(out, line)
        say(f"{chosen.name}: {line['bytes'] / 1000:.1f} KB, {line['ms']:.1f} ms a batch")


def main(words: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/codecs.jsonl"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--group")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="batches; the paper has 100")
    given = parser.parse_args(words)
    try:
        recipe = read_recipe(given.recipe, given.group)
        time_all(recipe, given.data, given.out, given.device, rounds=given.rounds)
    except AnytimeError as error:
        tell(str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
