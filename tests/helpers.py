"""What the tests of learning share: tiny models, small pictures, and what a classifier knows."""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import PIL.Image
import torch
from tests.backbone import tiny
from torch import Tensor

from anytimecl import backbone
from anytimecl.backbone import Backbone
from anytimecl.backbone.prior import VIEWS, measure
from anytimecl.backbone.text import LabelCache
from anytimecl.classifier import AnytimeClassifier
from anytimecl.settings import LearnerConfig, Settings
from anytimecl.tail import images_of

torch.set_num_threads(1)  # matrices this small only lose by sharing

LABELS = ("cat", "dog", "tabby cat", "great white shark")
FAST = LearnerConfig(batch=6, lr=1e-3, offline_batch=8)  # a few steps change a tiny model visibly
TEXTS = dataclasses.replace(FAST, imprint=0.0)  # label vectors that images do not move
SCALE = 20.0  # a random model's own logit scale is about 1, at which every answer is a tie


@functools.cache
def model(kind: str = "clip", *, blocks: int = 1, seed: int = 0, **options: Any) -> Backbone:
    """A tiny random model whose last `blocks` blocks are the tail. Nobody changes it."""
    with tempfile.TemporaryDirectory() as folder:
        saved = getattr(tiny, kind)(Path(folder), seed=seed, **options)
        loaded = backbone.load(saved, tail_blocks=blocks)
    spec = dataclasses.replace(loaded.spec, name=f"tiny {kind} {seed}", logit_scale=SCALE)
    return dataclasses.replace(loaded, spec=spec, label_cache=LabelCache())


@functools.cache
def measured() -> Backbone:
    """The tiny model with a prior, of pictures that the lessons do not show."""
    plain = model()
    pictures = [picture(number) for number in range(1000, 1024)]

    def images(some: list[PIL.Image.Image]) -> Tensor:
        return images_of(plain.tail, plain.spec.tail, plain.encode(some))

    with torch.no_grad():
        views = [images([view(each) for each in pictures]) for view in VIEWS]
        prior = measure(images(pictures), [number // 2 for number in range(24)], views)
    return dataclasses.replace(plain, prior=prior)


def settings(**changes: Any) -> Settings:
    """Settings under which a tiny model learns visibly in a few steps."""
    return Settings(**{"codec": "tokens-fp32", "learner": FAST, **changes})


def picture(number: int) -> PIL.Image.Image:
    """The picture of that number, the same every time."""
    noise = torch.Generator().manual_seed(number)
    pixels = torch.randint(0, 256, (36, 34, 3), generator=noise, dtype=torch.uint8)
    return PIL.Image.fromarray(pixels.numpy(), "RGB")


def lesson(number: int) -> tuple[PIL.Image.Image, str]:
    """Picture and label number so-and-so of an endless stream; labels come unevenly."""
    return picture(number), LABELS[(number * number + number // 5) % len(LABELS)]


def lessons(count: int, start: int = 0) -> list[tuple[PIL.Image.Image, str]]:
    """Some of the stream."""
    return [lesson(number) for number in range(start, start + count)]


def taught(numbers: Iterable[int], **options: Any) -> AnytimeClassifier:
    """A classifier in RAM that has learned these lessons one by one."""
    options = {"model": model(), "settings": settings(), **options}
    classifier = AnytimeClassifier.open(**options)
    for number in numbers:
        classifier.learn_one(*lesson(number))
    return classifier


def knowledge(classifier: AnytimeClassifier) -> dict[str, Any]:
    """Everything that learning changes, copied."""
    trainer = classifier._trainer
    return {
        "tensors": {name: value.clone() for name, value in trainer.model.tensors().items()},
        "model": json.loads(json.dumps(trainer.model.plain())),
        "sampler": trainer.sampler.state(),
        "ids": list(classifier.memory.ids()),
        "event": trainer.event,
    }


def differing(one: dict[str, Any], two: dict[str, Any]) -> list[str]:
    """Where two such copies are not the same bit for bit; empty if they are."""
    names = [name for name in one if name != "tensors" and one[name] != two[name]]
    return names + changed(one["tensors"], two["tensors"])


def changed(one: dict[str, Tensor], two: dict[str, Tensor]) -> list[str]:
    """Names of the tensors that are not the same bit for bit, or only on one side."""
    both = one.keys() & two.keys()
    alone = sorted(one.keys() ^ two.keys())
    return alone + sorted(name for name in both if not torch.equal(one[name], two[name]))
