"""Where methods work: the data of a recipe, encoded, on one device, ready to be learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from anytimecl import backbone as backbones
from anytimecl.backbone import Backbone
from anytimecl.bench import scenarios
from anytimecl.bench.data import DataSet, Split, open_set
from anytimecl.bench.features import features
from anytimecl.bench.recipe import PER_TASK, Contestant, Recipe
from anytimecl.bench.records import Coded, coded, end_processes
from anytimecl.bench.scenarios import Question, Stage
from anytimecl.bench.world import World, resident
from anytimecl.errors import ImageError
from anytimecl.tail import Seen

CAP_SEED = 0  # which examples a cap keeps, and which are for validation, is the same in every run
HELD_OUT = 5  # one in so many training examples, for validation


@dataclass(frozen=True)
class Part:
    """Some images of a split."""

    split: Split
    chosen: tuple[int, ...]

    @property
    def labels(self) -> list[str]:
        """[image]."""
        return [self.split.labels[i] for i in self.chosen]


T = TypeVar("T")


class Shelf:
    """What studios of one process share: loaded once, the latest of each kind kept."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[object, Any]] = {}

    def get(self, kind: str, key: object, make: Callable[[], T]) -> T:
        """The thing of that kind and key."""
        if kind not in self._kept or self._kept[kind][0] != key:
            self._kept.pop(kind, None)  # first, or two would be in memory at once
            self._kept[kind] = key, make()
        found: T = self._kept[kind][1]
        return found


@dataclass(eq=False)
class Studio:
    """One recipe's data on one device. Making one is cheap; its properties do the work, once."""

    recipe: Recipe
    data: Path | None
    device: str = "cpu"
    validation: bool = False  # ask about training images that are held out, not about the test
    shelf: Shelf = field(default_factory=Shelf)

    @property
    def backbone(self) -> Backbone:
        """The model."""
        name = self.recipe.backbone
        return self.shelf.get("model", name, lambda: backbones.load(name, device=self.device))

    @cached_property
    def sets(self) -> dict[str, DataSet]:
        """Targets, then novel tasks."""
        names = (*self.recipe.tasks, *self.recipe.novel)
        sets = {name: open_set(name, self.data) for name in dict.fromkeys(names)}
        for task in self.recipe.tasks:
            if sets[task].train is None:
                raise ImageError(f"The data set {task!r} has no training images to learn from.")
        return sets

    @cached_property
    def train(self) -> dict[str, Part]:
        """What each target task brings.

        By name, not in the order of learning: recipes with the same tasks share the examples.
        """
        parts = {task: self._parts(task)[0] for task in sorted(self.recipe.tasks)}
        return {task: part for task, part in parts.items() if part is not None}

    @cached_property
    def test(self) -> dict[str, Part]:
        """What is asked about each task."""
        return {task: self._parts(task)[1] for task in self.sets}

    def _parts(self, task: str) -> tuple[Part | None, Part]:
        train, test = self.sets[task].train, self.sets[task].test
        if self.validation and train is not None:
            order = np.random.default_rng(CAP_SEED).permutation(len(train)).tolist()
            held = len(order) // HELD_OUT
            return self._part(train, sorted(order[held:])), self._part(train, sorted(order[:held]))
        some = None if train is None else self._part(train, range(len(train)))
        return some, self._part(test, range(len(test)), self.recipe.per_class_test)

    def _part(self, split: Split, indices: Sequence[int], most: int | None = -1) -> Part:
        most = self.recipe.per_class if most == -1 else most
        kept = scenarios.capped([split.labels[i] for i in indices], most, CAP_SEED)
        return Part(split, tuple(indices[k] for k in kept))

    # ----------------------------------------------------------------------------- on the device

    def prepare(self, contestants: Sequence[Contestant]) -> None:
        """Encode whatever is not on disk yet and these will ask for."""
        for part in (*self.train.values(), *self.test.values()):
            features(part.split, self.backbone, part.chosen)
        for each in contestants:
            if each.codec is not None:
                self.records(each.codec, each.components)
        end_processes()

    def _tokens(self, part: Part) -> NDArray[np.float16]:
        tokens = features(part.split, self.backbone, part.chosen)
        every = part.chosen == tuple(range(len(part.split)))
        return tokens if every else tokens[list(part.chosen)]

    @property
    def examples(self) -> Tensor | Seen:
        """All training examples, task after task."""

        def make() -> Tensor | Seen:
            parts = [self._tokens(part) for part in self.train.values()]
            return resident(parts, self.backbone.spec, self.device)

        return self.shelf.get("examples", self._key(*self.train.values()), make)

    def _key(self, *parts: Part) -> object:
        return self.recipe.backbone, tuple((part.split.key, part.chosen) for part in parts)

    @cached_property
    def labels(self) -> list[str]:
        """[example]."""
        return [label for part in self.train.values() for label in part.labels]

    @cached_property
    def places(self) -> dict[str, range]:
        """Where the examples of each task are among all."""
        found, start = {}, 0
        for task, part in self.train.items():
            found[task] = range(start, start + len(part.chosen))
            start += len(part.chosen)
        return {task: found[task] for task in self.recipe.tasks}

    def asked(self, task: str) -> Tensor | Seen:
        """Test images of a task."""
        part = self.test[task]
        return self.shelf.get(
            f"test {task}",
            self._key(part),
            lambda: resident([self._tokens(part)], self.backbone.spec, self.device),
        )

    @cached_property
    def vectors(self) -> dict[str, Tensor]:
        """Label -> unit vector; a label of several tasks has the prompts of the first."""
        from anytimecl.bench.methods.zscl import WORDS

        found: dict[str, Tensor] = {}
        for task in self.sets.values():
            new = [name for name in task.names if name not in found]
            if new:
                vectors = self.backbone.embed_labels(new, task.templates)
                found |= dict(zip(new, vectors, strict=True))
        new = [name for name in WORDS if name not in found]
        found |= dict(zip(new, self.backbone.embed_labels(new), strict=True))
        return found

    def world(
        self, stages: Sequence[Stage], seed: int, codec: str | None, components: int | None
    ) -> World:
        """What a method is given."""
        kept = self.examples if codec is None else self._decoded(codec, components)
        return World(
            spec=self.backbone.spec,
            tail=self.backbone.tail,
            examples=kept,
            labels=self.labels,
            vectors=self.vectors,
            seed=seed,
            arriving=[i for stage in stages for i in stage.examples],
        )

    def _decoded(self, codec: str, components: int | None) -> Tensor | Seen:
        key = (codec, components, self._key(*self.train.values()))
        make = self.records(codec, components).resident
        return self.shelf.get("examples", key, make)

    def records(self, codec: str, components: int | None) -> Coded:
        def make() -> Coded:
            parts = [(part.split.key, part.chosen) for part in self.train.values()]
            tokens = [features(p.split, self.backbone, p.chosen) for p in self.train.values()]
            return coded(self.backbone, codec, components, parts, tokens)

        return self.shelf.get("records", (codec, components, self._key(*self.train.values())), make)

    # ----------------------------------------------------------- what arrives, what is asked

    def stream(self, subject: str, seed: int) -> list[Stage]:
        """The stages of a run."""
        recipe, places = self.recipe, self.places
        shares: dict[str, Any] = {} if recipe.stages is None else {"shares": recipe.stages}
        if recipe.scenario == "task-incremental":
            return scenarios.task_incremental(places, seed, **shares)
        if recipe.scenario == "mtil":
            return scenarios.mtil(places, seed)
        own = places[subject] if recipe.scenario in PER_TASK else range(len(self.labels))
        if recipe.scenario == "class-incremental":
            stages = scenarios.class_incremental([self.labels[i] for i in own], seed)
        else:
            stages = scenarios.data_incremental(len(own), seed, **shares)
        return [
            Stage(stage.name, tuple(own[i] for i in stage.examples), stage.whole)
            for stage in stages
        ]

    def questions(self, subject: str) -> list[Question]:
        """What is asked after every stage."""
        tasks = (subject,) if self.recipe.scenario in PER_TASK else self.recipe.tasks
        if self.recipe.scenario == "union-data-incremental":
            union = tuple(sorted({y for task in tasks for y in self.sets[task].names}))
            return [scenarios.whole_task(task, self.test[task].labels, union) for task in tasks]
        return [
            scenarios.whole_task(task, self.test[task].labels, self.sets[task].names)
            for task in tasks
        ]

    def final_questions(self, seed: int) -> list[Question]:
        """What else is asked after the last stage: flexible inference, with novel tasks."""
        if not self.recipe.novel:
            return []
        targets: Mapping[str, Sequence[str]] = {
            task: self.test[task].labels for task in self.recipe.tasks
        }
        novel = {task: self.test[task].labels for task in self.recipe.novel}
        return scenarios.flexible(targets, novel, seed)
