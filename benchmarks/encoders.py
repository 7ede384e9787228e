"""Tuned CLIP, tuned DINOv2 and the blend of three models, side by side as examples arrive.

    python -m benchmarks.encoders DATA [--tasks cifar100,pets,resisc12] [--seeds 0,1,2]
                                  [--device cuda] [--validation] [--per-class 5] [--out FILE]

DATA is the folder of data sets, each NAME.zip or NAME/. Every example is scored by all three
models, then learned by both tuned ones, in one random order a seed. After 2, 4, 8, 16, 32, 64 and
100 % of them each column answers the whole test split or, with --validation, a fifth of the
training split that nobody learned from. Prints a table a task, mean over seeds; --out keeps every
figure as a line of JSON.
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
from anytimecl.bench.data import Split, open_set
from anytimecl.bench.features import features
from anytimecl.bench.scenarios import capped, data_incremental
from anytimecl.bench.world import chunks, resident
from anytimecl.blend import Estimates as PairEstimates
from anytimecl.learner import Learner
from anytimecl.scale.blend import BLENDS, Estimates, Panel, blend, softness
from anytimecl.scale.encoder import ENCODER, EncoderStream, LayerRates, join
from anytimecl.settings import Settings
from anytimecl.stream import StreamLearner
from anytimecl.tail import Seen

MODELS = ("original", "tuned CLIP", "tuned DINOv2")
HELD_OUT = 5  # one training image in so many, for validation
HELD_SEED = 0


@dataclass(frozen=True)
class Side:
    """One encoder's view of a task."""

    model: Backbone
    train: Tensor | Seen
    asked: Tensor | Seen


@dataclass(frozen=True)
class Task:
    """A task, encoded by both."""

    labels: list[str]  # [example]
    targets: Tensor  # [asked image], index into names
    names: list[str]
    vectors: dict[str, Tensor]
    clip: Side
    dino: Side


class Scored(PairEstimates):
    """Estimates that keep what they were told, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[bool, bool]] = []  # tuned, original

    def add(self, label: str, *, tuned: bool, original: bool) -> None:
        super().add(label, tuned=tuned, original=original)
        self.told.append((tuned, original))


def parts(
    name: str, data: Path, validation: bool, per_class: int | None
) -> tuple[Split, list[int], Split, list[int]]:
    """What is learned and what is asked: a split and the images of it, twice."""
    task = open_set(name, data)
    assert task.train is not None, f"{name} has no training images"
    if not validation:
        learned = capped(task.train.labels, per_class, HELD_SEED)
        return task.train, learned, task.test, capped(task.test.labels, per_class, HELD_SEED)
    order = np.random.default_rng(HELD_SEED).permutation(len(task.train)).tolist()
    held = len(order) // HELD_OUT
    learned = sorted(order[held:])
    kept = capped([task.train.labels[i] for i in learned], per_class, HELD_SEED)
    asked = sorted(order[:held])
    some = capped([task.train.labels[i] for i in asked], per_class, HELD_SEED)
    return task.train, [learned[k] for k in kept], task.train, [asked[k] for k in some]


def prepare(
    name: str, data: Path, clip: Backbone, dino: Backbone, validation: bool, per_class: int | None
) -> Task:
    """The task on the device."""
    split, learned, asked_split, asked = parts(name, data, validation, per_class)
    names = open_set(name, data).names
    vectors = clip.embed_labels(names)

    def side(model: Backbone) -> Side:
        def take(where: Split, chosen: list[int]) -> Tensor | Seen:
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
def said(learner: Learner, asked: Tensor | Seen, vectors: Tensor, original: bool) -> Tensor:
    """Probabilities [image, label]."""
    rows = torch.full((len(vectors),), -1, device=vectors.device)
    found = [
        learner.original_logits(part, vectors)
        if original
        else learner.tuned_logits(part, vectors, rows)
        for part in chunks(asked)
    ]
    return torch.cat(found).softmax(1)


def stages(task: Task, seed: int, rates: LayerRates | None = None) -> Iterator[tuple[str, Panel]]:
    """Learn the stream; after each stage, what all three models say."""
    settings = Settings(seed=seed)
    streams: list[StreamLearner] = [
        StreamLearner(
            task.clip.model.spec,
            task.clip.model.tail,
            settings,
            task.clip.train,
            task.labels,
            task.vectors,
        ),
        EncoderStream(
            task.dino.model.spec,
            task.dino.model.tail,
            replace(settings, learner=ENCODER),
            task.dino.train,
            task.labels,
            task.vectors,
            rates,
        ),
    ]
    estimates = Estimates(MODELS)
    vectors = torch.stack([task.vectors[name] for name in task.names])
    for stage in data_incremental(len(task.labels), seed):
        told = []
        for stream in streams:
            stream.estimates = Scored()
            stream.learn(stage.examples)
            told.append(stream.estimates.told)
        for example, (tuned, original), (dino, _) in zip(stage.examples, *told, strict=True):
            flags = (original, tuned, dino)
            estimates.add(task.labels[example], dict(zip(MODELS, flags, strict=True)))
        clip, dino_learner = (stream.learner for stream in streams)
        found = [
            said(clip, task.clip.asked, vectors, original=True),
            said(clip, task.clip.asked, vectors, original=False),
            said(dino_learner, task.dino.asked, vectors, original=False),
        ]
        marks = [estimates.of(name) for name in task.names]
        soft = softness(task.clip.model.spec.logit_scale, settings.learner.scale)
        yield stage.name, Panel(found, marks, estimates.overall, soft)


def readings(panel: Panel) -> dict[str, Tensor]:
    """Every column: each model alone, blends of two, blends of three."""
    found = dict(zip(MODELS, panel.probabilities, strict=True))
    for name, others in (("CLIP", (0, 1)), ("DINOv2", (0, 2))):
        found[f"original + {name}"] = blend("gated", only(panel, others))
    return found | {f"three, {name}": blend(name, panel) for name in BLENDS}


def only(panel: Panel, chosen: Sequence[int]) -> Panel:
    """The panel without the others; what divided all of them may not have divided these."""
    return Panel(
        [panel.probabilities[i] for i in chosen],
        [[marks[i] for i in chosen] for marks in panel.marks],
        [panel.overall[i] for i in chosen],
        panel.softness,
    )


def accuracy(values: Tensor, targets: Tensor) -> float:
    """In per cent."""
    return 100 * float((values.argmax(1) == targets).float().mean())


def show(task: str, rows: dict[str, dict[str, list[float]]]) -> None:
    """A table: a row a stage, a column a reading, mean over seeds."""
    columns = list(next(iter(rows.values())))
    print(f"\n### {task}\n\n| seen | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for stage, values in rows.items():
        print(f"| {stage} | " + " | ".join(f"{np.mean(values[c]):.1f}" for c in columns) + " |")
    final = {c: float(np.mean(v)) for c, v in list(rows.values())[-1].items()}
    best = max(final[name] for name in MODELS)
    three = final["three, gated"]
    print(f"\nthree models, default blend: {three:.1f}; best single model: {best:.1f}", flush=True)


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
            for stage, panel in stages(task, seed, rates):
                for column, values in readings(panel).items():
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
