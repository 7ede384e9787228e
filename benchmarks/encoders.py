"""Tuned CLIP, tuned DINOv2 and the pool of all their experts, side by side as examples arrive.

    python -m benchmarks.encoders DATA [--tasks cifar100,pets,resisc12] [--seeds 0,1,2]
                                  [--device cuda] [--validation] [--per-class 5] [--out FILE]

DATA is the folder of data sets, each NAME.zip or NAME/. Every example is scored by all models, then
learned by both tuned ones, in a random order per seed. After 2, 4, 8, 16, 32, 64 and 100 % of them
each column is evaluated on the whole test split or, with --validation, on training images that the
lab holds out. Prints a table per task, mean over seeds; --out appends every figure as a line of
JSON.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anytimecl import backbone as backbones
from anytimecl.backbone import Backbone
from anytimecl.blend import POOL, Opinions, blend
from anytimecl.model import Model
from anytimecl.pool import weigh
from anytimecl.scale.encoder import ENCODER, EncoderStream, LayerRates, join
from anytimecl.settings import Settings
from anytimecl.stream import StreamLearner
from anytimecl.tail import TailInput
from anytimecl_lab.data import Split, open_set
from anytimecl_lab.examples import chunks, resident
from anytimecl_lab.features import features
from anytimecl_lab.recipe import Recipe
from anytimecl_lab.scenarios import data_incremental
from anytimecl_lab.studio import Studio

JOINING = ("tuned", "gaussian")  # experts of DINOv2 in the pool of all
PAIR, THREE = "CLIP, pool", "three, pool"


@dataclass(frozen=True)
class Side:
    """A task encoded by one encoder."""

    model: Backbone
    train: Tensor | TailInput
    asked: Tensor | TailInput


@dataclass(frozen=True)
class Task:
    """A task encoded by both."""

    labels: list[str]  # [example]
    targets: Tensor  # [test image], index into names
    names: list[str]
    vectors: dict[str, Tensor]
    clip: Side
    dino: Side


def parts(
    name: str, data: Path, validation: bool, per_class: int | None
) -> tuple[Split, list[int], Split, list[int]]:
    """Training and test images as in the lab: a split and indices into it, twice."""
    recipe = Recipe(
        "encoders",
        "",
        "data-incremental",
        (name,),
        (),
        per_class=per_class,
        per_class_test=per_class,
    )
    studio = Studio(recipe, data, validation=validation)
    learned, asked = studio.train[name], studio.test[name]
    return learned.split, list(learned.chosen), asked.split, list(asked.chosen)


def prepare(
    name: str, data: Path, clip: Backbone, dino: Backbone, validation: bool, per_class: int | None
) -> Task:
    """A task on the device."""
    split, learned, asked_split, asked = parts(name, data, validation, per_class)
    names = open_set(name, data).names
    vectors = clip.embed_labels(names)

    def side(model: Backbone) -> Side:
        def take(where: Split, chosen: list[int]) -> Tensor | TailInput:
            tokens = features(where, model, chosen)
            return resident([tokens[chosen]], model.spec, str(model.device))

        return Side(model, take(split, learned), take(asked_split, asked))

    targets = [names.index(asked_split.labels[i]) for i in asked]
    return Task(
        labels=[split.labels[i] for i in learned],
        targets=torch.tensor(targets, device=clip.device),
        names=names,
        vectors=dict(zip(names, vectors, strict=True)),
        clip=side(clip),
        dino=side(dino),
    )


@torch.no_grad()
def stages(
    task: Task, seed: int, rates: LayerRates | None = None
) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Learn the stream; after each stage, the scores [image, label] of every reading."""
    settings = Settings(seed=seed)
    clip = StreamLearner(
        task.clip.model.spec,
        task.clip.model.tail,
        settings,
        task.clip.train,
        task.labels,
        task.vectors,
        prior=task.clip.model.prior,
    )
    dino = EncoderStream(
        task.dino.model.spec,
        task.dino.model.tail,
        replace(settings, learner=ENCODER),
        task.dino.train,
        task.labels,
        task.vectors,
        rates=rates,
    )
    vectors = torch.stack([task.vectors[name] for name in task.names])
    for stage in data_incremental(len(task.labels), seed):
        for stream in (clip, dino):
            stream.learn(stage.examples)
        weights = joint_weights(clip.model, dino.model)
        parts: dict[str, list[Tensor]] = defaultdict(list)
        for images in zip(chunks(task.clip.asked), chunks(task.dino.asked), strict=True):
            one, two = (
                stream.opinions(tokens, task.names, vectors)
                for stream, tokens in zip((clip, dino), images, strict=True)
            )
            for name, values in readings(one, two, weights).items():
                parts[name].append(values)
        yield stage.name, {name: torch.cat(values) for name, values in parts.items()}


def joint_weights(clip: Model, dino: Model) -> dict[str, float]:
    """Weights of all experts in one pool; both models saw the same examples in the same order."""
    scores, target, _ = clip.evidence_scores()
    others, _, _ = dino.evidence_scores()
    return weigh(scores | {f"DINOv2 {name}": others[name] for name in JOINING}, target)


def readings(clip: Opinions, dino: Opinions, weights: dict[str, float]) -> dict[str, Tensor]:
    """Every column: each model alone, the pool of CLIP's experts, the pool of all experts."""
    said = dino.everyone()
    joined = dict(clip.scores) | {f"DINOv2 {name}": said[name] for name in JOINING if name in said}
    found = {"original": clip.original, "CLIP": clip.tuned, "DINOv2": dino.tuned}
    for name, opinions in (("CLIP", clip), ("DINOv2", dino)):
        found[f"{name} Gaussian"] = opinions.scores["gaussian"]
    found[PAIR] = blend(POOL, clip)
    found[THREE] = blend(POOL, replace(clip, scores=joined, weights=weights))
    return found


def accuracy(values: Tensor, targets: Tensor) -> float:
    """Accuracy in per cent."""
    return 100 * float((values.argmax(1) == targets).float().mean())


def show(task: str, rows: dict[str, dict[str, list[float]]]) -> None:
    """Print a table: a row per stage, a column per reading, mean over seeds."""
    columns = list(next(iter(rows.values())))
    print(f"\n### {task}\n\n| seen | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for stage, values in rows.items():
        print(f"| {stage} | " + " | ".join(f"{np.mean(values[c]):.1f}" for c in columns) + " |")
    final = {c: float(np.mean(v)) for c, v in list(rows.values())[-1].items()}
    best = max(value for name, value in final.items() if name != THREE)
    print(f"\nthree models: {final[THREE]:.1f}; best of the others: {best:.1f}", flush=True)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--tasks", default="cifar100,pets,resisc12")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="embedded", help="the original model")
    parser.add_argument("--encoder", default="dinov2-small", help="name, hub name or folder")
    parser.add_argument("--layer-rate", type=float, default=LayerRates.first)
    parser.add_argument("--layer-half", type=float, default=LayerRates.half)
    parser.add_argument("--validation", action="store_true", help="never look at test images")
    parser.add_argument("--per-class", type=int, help="examples of each class, at most")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(words)
    clip = backbones.load(given.model, device=given.device)
    encoder = backbones.load(given.encoder, device=given.device)
    dino, rates = join(encoder, clip), LayerRates(given.layer_rate, given.layer_half)
    for name in given.tasks.split(","):
        task = prepare(name, given.data, clip, dino, given.validation, given.per_class)
        rows: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for seed in map(int, given.seeds.split(",")):
            for stage, found in stages(task, seed, rates):
                for column, values in found.items():
                    figure = accuracy(values, task.targets)
                    rows[stage][column].append(figure)
                    if given.out:
                        line = {"task": name, "seed": seed, "stage": stage, "reading": column}
                        line |= {"validation": given.validation, "accuracy": figure}
                        with given.out.open("a") as file:
                            file.write(json.dumps(line) + "\n")
        show(name, rows)


if __name__ == "__main__":
    main()
