"""Whether a GPU learns what a CPU learns, and bfloat16 what float32 does, from the same examples.

    python -m benchmarks.agreement pack DATA FILE [--task cifar100]
    python -m benchmarks.agreement run FILE OUT [--device cpu] [--precision auto] [--seeds 0,1,2]
    python -m benchmarks.agreement show OUT

`pack` encodes and compresses a task, and writes everything needed to learn it into one file (the
tail in half precision), to be copied to a machine with a GPU. `run` learns all examples one by one,
in an order given by the seed, and evaluates on the test split; OUT gets one JSON line per seed.
`show` prints the final accuracy by device and precision of the products, seed by seed, and the
difference of each mean from the first.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import torch
from benchmarks.features import features
from rich.console import Console
from rich.progress import track
from rich.table import Table
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from anytimecl.backbone import Spec, load
from anytimecl.blend import blend
from anytimecl.codec import make_codec
from anytimecl.settings import LearnerConfig, Precision, Settings
from anytimecl.stream import StreamLearner
from anytimecl.tail import TailInput

CODEC = "attention-pca"
BLENDS = (Settings().blend, "tuned")
SPLITS = ("train", "test")
_CHUNK = 256  # examples


class Packed(NamedTuple):
    """Everything needed to learn a task."""

    spec: Spec
    tail: dict[str, Tensor]
    names: list[str]
    vectors: Tensor  # [label, dim]
    examples: dict[str, TailInput]  # by split
    targets: dict[str, list[int]]


def pack(data: Path, file: Path, task: str) -> None:
    """Write a task's records, labels and model."""
    backbone = load("embedded")
    codec = make_codec(CODEC, backbone.spec, backbone.tail)
    tensors = {f"tail.{name}": value.half() for name, value in backbone.tail.items()}
    names: set[str] = set()
    for split in SPLITS:
        found = features(data / f"{task}.zip", split, backbone)
        if names.symmetric_difference(found.names) and names:
            raise SystemExit(f"{task} has other classes to test than to learn.")
        names = set(found.names)
        records = [
            codec.encode(torch.from_numpy(tokens).float())
            for tokens in track(found.tokens, f"compressing {split}")
        ]
        joined = np.frombuffer(b"".join(records), np.uint8).copy()
        tensors[f"{split}.bytes"] = torch.from_numpy(joined)
        tensors[f"{split}.lengths"] = torch.tensor([len(record) for record in records])
        tensors[f"{split}.targets"] = torch.from_numpy(found.targets)
    tensors["vectors"] = backbone.embed_labels(found.names)
    about = {"spec": json.dumps(backbone.spec.to_dict()), "names": json.dumps(found.names)}
    save_file(tensors, file, about)


def unpack(file: Path, device: str) -> Packed:
    """Read a task; examples are decoded, everything is on the device."""
    with safe_open(file, "pt") as opened:
        about = opened.metadata()
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    spec = Spec.from_dict(json.loads(about["spec"]))
    tail = {
        name.removeprefix("tail."): value.float().to(device)
        for name, value in tensors.items()
        if name.startswith("tail.")
    }
    codec = make_codec(CODEC, spec, {name: value.cpu() for name, value in tail.items()})
    examples = {}
    for split in SPLITS:
        whole, ends = tensors[f"{split}.bytes"].numpy(), tensors[f"{split}.lengths"].cumsum(0)
        records = [part.tobytes() for part in np.split(whole, ends[:-1].numpy())]
        found = codec.decode(records, device)
        assert isinstance(found, TailInput)
        examples[split] = found
    return Packed(
        spec,
        tail,
        json.loads(about["names"]),
        tensors["vectors"].to(device),
        examples,
        {split: tensors[f"{split}.targets"].tolist() for split in SPLITS},
    )


@torch.no_grad()
def run(packed: Packed, seed: int, precision: Precision) -> dict[str, float | str]:
    """Accuracy of each blend after the whole stream, and the precision used."""
    vectors, on_gpu = packed.vectors, packed.vectors.is_cuda
    stream = StreamLearner(
        packed.spec,
        packed.tail,
        Settings(seed=seed, learner=LearnerConfig(precision=precision)),
        packed.examples["train"],
        [packed.names[target] for target in packed.targets["train"]],
        dict(zip(packed.names, vectors, strict=True)),
        compiled=on_gpu,
    )
    order = np.random.default_rng(seed).permutation(len(packed.targets["train"]))
    stream.learn(order.tolist())
    test, right = packed.examples["test"], dict.fromkeys(BLENDS, 0)
    targets = torch.tensor(packed.targets["test"], device=vectors.device)
    for start in range(0, len(targets), _CHUNK):
        part = slice(start, start + _CHUNK)
        opinions = stream.opinions(test.pick(part), packed.names, vectors)
        for name in BLENDS:
            right[name] += int((blend(name, opinions).argmax(1) == targets[part]).sum())
    accuracies = {name: 100 * count / len(targets) for name, count in right.items()}
    return {
        "precision": "bfloat16" if getattr(stream.learner, "copies", None) else "float32"
    } | accuracies


def show(out: Path) -> None:
    """Print all results, seed by seed."""
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    found = {((line["device"], line["precision"]), line["seed"]): line for line in lines}
    ways = sorted({way for way, _ in found}, key=lambda way: (way[0], way[1] == "bfloat16"))
    seeds = sorted({seed for _, seed in found})
    table = Table("seed", *(f"{name}\n{', '.join(way)}" for name in BLENDS for way in ways))
    for seed in seeds:
        lines = [found.get((way, seed), {}) for way in ways]
        values = [line.get(name) for name in BLENDS for line in lines]
        table.add_row(str(seed), *("" if value is None else f"{value:.2f}" for value in values))
    Console(width=120).print(table)
    for name in BLENDS:
        for way in ways[1:]:
            both = [seed for seed in seeds if (way, seed) in found and (ways[0], seed) in found]
            if both:
                gaps = [found[way, seed][name] - found[ways[0], seed][name] for seed in both]
                print(
                    f"{name}: {', '.join(way)} against {', '.join(ways[0])}: "
                    f"{np.mean(gaps):+.2f}, mean of {len(both)} seeds"
                )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts = parser.add_subparsers(dest="part", required=True)
    packing = parts.add_parser("pack")
    packing.add_argument("data", type=Path)
    packing.add_argument("file", type=Path)
    packing.add_argument("--task", default="cifar100")
    running = parts.add_parser("run")
    running.add_argument("file", type=Path)
    running.add_argument("out", type=Path)
    running.add_argument("--device", default="cpu")
    running.add_argument("--precision", default="auto", choices=get_args(Precision))
    running.add_argument("--seeds", default="0,1,2")
    showing = parts.add_parser("show")
    showing.add_argument("out", type=Path)
    given = parser.parse_args(words)
    if given.part == "pack":
        pack(given.data, given.file, given.task)
    elif given.part == "show":
        show(given.out)
    else:
        packed = unpack(given.file, given.device)
        on_gpu = given.device.startswith("cuda")
        about = {
            "device": "cuda" if on_gpu else "cpu",
            "machine": torch.cuda.get_device_name() if on_gpu else platform.machine(),
        }
        for seed in map(int, given.seeds.split(",")):
            began = time.perf_counter()
            line = about | {"seed": seed} | run(packed, seed, given.precision)
            line["seconds"] = round(time.perf_counter() - began, 1)
            print(json.dumps(line), flush=True)
            with given.out.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
