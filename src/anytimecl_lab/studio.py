"""The encoded data of a recipe on a device, for its methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from anytimecl import backbone as backbones
from anytimecl.backbone import Backbone
from anytimecl.errors import ImageError
from anytimecl.registry import Named
from anytimecl.scale.encoder import join
from anytimecl_lab import scenarios
from anytimecl_lab._clock import Clock
from anytimecl_lab.data import DataSet, Split, by_code, open_set
from anytimecl_lab.examples import Examples, bytes_of, resident, streamed, whole_size
from anytimecl_lab.features import features, original_vectors
from anytimecl_lab.label_vectors import LabelVectors, known_only, read_vectors
from anytimecl_lab.methods import METHODS, OnEmbeddings
from anytimecl_lab.recipe import PER_TASK, Contestant, Recipe
from anytimecl_lab.records import Coded, coded, end_processes
from anytimecl_lab.scenarios import Question, Stage
from anytimecl_lab.world import Second, World

CAP_SEED = 0  # sampled and validation examples are the same in every run
HELD_OUT = 5  # 1 / HELD_OUT of each class's training examples is for validation
HELD_OUT_MOST = 15  # per class


@dataclass(frozen=True)
class Part:
    """A subset of a split."""

    split: Split
    chosen: tuple[int, ...]

    @property
    def labels(self) -> list[str]:
        """[image]."""
        return [self.split.labels[i] for i in self.chosen]


T = TypeVar("T")


Key = tuple[str, object]  # kind and key of an object


class Shelf:
    """A cache shared by the studios of a process: the latest object of each kind.

    `shared` has objects loaded by another process.
    """

    def __init__(self, shared: Mapping[Key, Any] | None = None) -> None:
        self._kept: dict[str, tuple[object, Any]] = {}
        self._shared = {} if shared is None else shared

    def get(self, kind: str, key: object, make: Callable[[], T]) -> T:
        """The object of that kind and key, made if necessary."""
        found: T
        if (kind, key) in self._shared:
            found = self._shared[kind, key]
            return found
        if kind not in self._kept or self._kept[kind][0] != key:
            self._kept.pop(kind, None)  # first, so that not two are in memory at once
            self._kept[kind] = key, make()
        found = self._kept[kind][1]
        return found

    def __contains__(self, key: Key) -> bool:
        """Whether an object is shared between processes."""
        return key in self._shared

    @property
    def bytes(self) -> int:
        """Bytes on the device of examples that are not shared."""
        return sum(bytes_of(value) for _, value in self._kept.values())


@dataclass(eq=False)
class Studio:
    """A recipe's data on a device, loaded lazily."""

    recipe: Recipe
    data: Path | None
    device: str = "cpu"
    validation: bool = False  # evaluate on held-out training images, not on the test set
    shelf: Shelf = field(default_factory=Shelf)
    room: float = float("inf")  # bytes for examples on the device; more are streamed

    @property
    def backbone(self) -> Backbone:
        """The model."""
        name = self.recipe.backbone
        return self.shelf.get("model", name, lambda: backbones.load(name, device=self.device))

    @cached_property
    def named(self) -> dict[str, DataSet]:
        """Targets, then novel tasks, with labels by name."""
        names = (*self.recipe.tasks, *self.recipe.novel)
        cuts, given = self.recipe.cuts, self.label_vectors
        sets = {
            name: open_set(name, self.data, cuts, published=self.recipe.published)
            for name in dict.fromkeys(names)
        }
        if given is not None:
            sets = {name: known_only(own, given) for name, own in sets.items()}
        for task in self.recipe.tasks:
            if sets[task].train is None:
                raise ImageError(f"The data set {task!r} has no training images to learn from.")
        return sets

    @cached_property
    def label_vectors(self) -> LabelVectors | None:
        """Label embeddings from a file, if the recipe has one."""
        recipe = self.recipe
        if not recipe.label_vectors:
            return None
        file = (self.data or Path()) / recipe.label_vectors
        return read_vectors(file, self.backbone.spec.dim, recipe.label_sources)

    @cached_property
    def sets(self) -> dict[str, DataSet]:
        """The same, with the targets' labels by name or code, as in the recipe."""
        coded = self.recipe.tasks if self.recipe.labels == ("code",) else ()
        return {task: by_code(own) if task in coded else own for task, own in self.named.items()}

    @cached_property
    def train(self) -> dict[str, Part]:
        """Training examples of each target task.

        Sorted by name, not in order of learning, so that recipes with the same tasks share the
        examples.
        """
        parts = {task: self._parts(task)[0] for task in sorted(self.recipe.tasks)}
        return {task: part for task, part in parts.items() if part is not None}

    @cached_property
    def test(self) -> dict[str, Part]:
        """Test images of each task."""
        return {task: self._parts(task)[1] for task in self.sets}

    def _parts(self, task: str) -> tuple[Part | None, Part]:
        own, most = self.sets[task], self.recipe.per_class
        train, test = own.train, own.test
        if self.validation and train is not None:
            there = own.kept(train)
            labels = [train.labels[i] for i in there]
            parts = scenarios.held_out(labels, HELD_OUT, HELD_OUT_MOST, CAP_SEED)
            kept, held = (_capped(train, [there[k] for k in part], most) for part in parts)
            return kept, held
        some = None if train is None else _capped(train, own.kept(train), most)
        return some, _capped(test, own.kept(test), self.recipe.per_class_test)

    # ----------------------------------------------------------------------------- on the device

    def prepare(self, contestants: Sequence[Contestant], clock: Clock | None = None) -> None:
        """Encode everything these methods need, before processes are started."""
        every = (*self.train.values(), *self.test.values())
        for part in every:
            features(part.split, self.backbone, part.chosen, clock)
            original_vectors(part.split, self.backbone, part.chosen)
        for encoder in {each.encoder for each in contestants if each.encoder}:
            for part in every:
                features(part.split, self.encoder(encoder), part.chosen, clock)
        for each in contestants:
            if each.codec is not None:
                if clock is not None:
                    clock.check()
                self.records(each.codec, each.components)
        end_processes()

    def encoder(self, name: str) -> Backbone:
        """Another model's encoder, in the label space of this one."""

        def make() -> Backbone:
            return join(backbones.load(name, device=self.device), self.backbone)

        return self.shelf.get("encoder", (name, self.recipe.backbone), make)

    def _second(self, name: str) -> Second:
        model, parts = self.encoder(name), tuple(self.train.values())
        examples = self._placed("second", (name, self._key(*parts)), parts, model)
        return Second(name, model.spec, model.tail, examples)

    @property
    def examples(self) -> Examples:
        """All training examples, ordered by task."""
        parts = tuple(self.train.values())
        return self._placed("examples", self._key(*parts), parts, self.backbone)

    def to_share(self, room: float) -> dict[Key, Examples]:
        """Examples and test images for several processes to read, as far as they fit."""
        train = tuple(self.train.values())
        wanted = {("examples", self._key(*train)): train}
        wanted |= {(_test_kind(task), self._key(part)): (part,) for task, part in self.test.items()}
        found: dict[Key, Examples] = {}
        for key, parts in wanted.items():
            taken = whole_size(sum(len(part.chosen) for part in parts), self.backbone.spec)
            if key in self.shelf or taken > room:
                continue
            found[key] = self._resident(parts, self.backbone)
            room -= taken
        return found

    def _placed(self, kind: str, key: object, parts: Sequence[Part], model: Backbone) -> Examples:
        """Tokens on the device, or streamed from disk if they do not fit."""

        def make() -> Examples:
            count = sum(len(part.chosen) for part in parts)
            if self.shelf.bytes + whole_size(count, model.spec) <= self.room:
                return self._resident(parts, model)
            every = [(features(part.split, model, part.chosen), part.chosen) for part in parts]
            return streamed(every, model.spec, self.device)

        return self.shelf.get(kind, key, make)

    def _resident(self, parts: Sequence[Part], model: Backbone) -> Examples:
        every = [(features(part.split, model, part.chosen), part.chosen) for part in parts]
        whole = [
            array if chosen == tuple(range(len(array))) else array[list(chosen)]
            for array, chosen in every
        ]
        return resident(whole, model.spec, self.device)

    def _key(self, *parts: Part) -> object:
        return self.recipe.backbone, tuple((part.split.key, part.chosen) for part in parts)

    @cached_property
    def labels(self) -> list[str]:
        """[example]."""
        return [label for part in self.train.values() for label in part.labels]

    @cached_property
    def places(self) -> dict[str, range]:
        """Indices of each task's examples."""
        found, start = {}, 0
        for task, part in self.train.items():
            found[task] = range(start, start + len(part.chosen))
            start += len(part.chosen)
        return {task: found[task] for task in self.recipe.tasks}

    def original_vectors(self) -> Tensor:
        """Unit embeddings [example, dim] of all training examples by the original model."""
        return self._vectors("vectors", *self.train.values())

    def asked_vectors(self, task: str) -> Tensor:
        """The same for the test images of a task."""
        return self._vectors(f"test vectors {task}", self.test[task])

    def _vectors(self, kind: str, *parts: Part) -> Tensor:
        def make() -> Tensor:
            found = [
                original_vectors(part.split, self.backbone, part.chosen)[list(part.chosen)]
                for part in parts
            ]
            return torch.from_numpy(np.concatenate(found)).to(self.device)

        return self.shelf.get(kind, self._key(*parts), make)

    def asked(self, task: str, encoder: str | None = None) -> Examples:
        """Encoded test images of a task, by the model or another encoder."""
        part = self.test[task]
        model = self.backbone if encoder is None else self.encoder(encoder)
        return self._placed(_test_kind(task, encoder), self._key(part), (part,), model)

    @cached_property
    def vectors(self) -> dict[str, Tensor]:
        """Unit embedding of each label; with the first task's prompts if several have it."""
        from anytimecl_lab.methods.zscl import WORDS

        found: dict[str, Tensor] = {}
        if self.label_vectors is not None:
            every = dict.fromkeys(name for task in self.sets.values() for name in task.names)
            every |= dict.fromkeys(word for word in WORDS if word in self.label_vectors)
            vectors = self.label_vectors.of(list(every)).to(self.device)
            return dict(zip(every, vectors, strict=True))
        for task in self.sets.values():
            new = [name for name in task.names if name not in found]
            if new:
                vectors = self.backbone.embed_labels(new, task.templates)
                found |= dict(zip(new, vectors, strict=True))
        new = [name for name in WORDS if name not in found]
        found |= dict(zip(new, self.backbone.embed_labels(new), strict=True))
        return found

    def world(self, stages: Sequence[Stage], seed: int, chosen: Contestant) -> World:
        """The input of a method; without tokens if it uses embeddings only."""
        frozen = issubclass(METHODS[chosen.method], OnEmbeddings)
        if chosen.codec is not None:
            kept = self._decoded(chosen.codec, chosen.components)
        else:
            kept = torch.empty(0, device=self.device) if frozen else self.examples
        return World(
            spec=self.backbone.spec,
            tail=self.backbone.tail,
            examples=kept,
            labels=self.labels,
            vectors=self.vectors,
            seed=seed,
            arriving=[i for stage in stages for i in stage.examples],
            prior=self.backbone.prior,
            second=self._second(chosen.encoder) if chosen.encoder else None,
            known=self.original_vectors if chosen.codec is None else None,
        )

    def _decoded(self, codec: str | Named, components: int | None) -> Examples:
        key = (codec, components, self._key(*self.train.values()))
        records = self.records(codec, components)

        def make() -> Examples:
            return records.examples(self.room - self.shelf.bytes)

        return self.shelf.get("examples", key, make)

    def records(self, codec: str | Named, components: int | None) -> Coded:
        def make() -> Coded:
            parts = [(part.split.key, part.chosen) for part in self.train.values()]
            tokens = [features(p.split, self.backbone, p.chosen) for p in self.train.values()]
            return coded(self.backbone, codec, components, parts, tokens)

        return self.shelf.get("records", (codec, components, self._key(*self.train.values())), make)

    # ------------------------------------------------------------------ streams and questions

    def streams(self, subject: str, seed: int) -> list[list[Stage]]:
        """The stages of each stream of a run; a new model is trained for each stream."""
        recipe, places = self.recipe, self.places
        shares: dict[str, Any] = {} if recipe.stages is None else {"shares": recipe.stages}
        if recipe.scenario == "task-incremental":
            return [scenarios.task_incremental(places, seed, **shares)]
        if recipe.scenario == "mtil":
            return [scenarios.mtil(places, seed)]
        every = places[subject] if recipe.scenario in PER_TASK else range(len(self.labels))
        own = list(every) * recipe.repeats
        labels = [self.labels[i] for i in own]
        if recipe.scenario == "few-shot":
            streams = [[stage] for stage in scenarios.few_shot(labels, seed, recipe.shots)]
        elif recipe.scenario == "class-incremental":
            streams = [scenarios.class_incremental(labels, seed)]
        else:
            streams = [scenarios.data_incremental(len(own), seed, **shares)]
        return [
            [replace(stage, examples=tuple(own[i] for i in stage.examples)) for stage in stages]
            for stages in streams
        ]

    def questions(self, subject: str) -> list[Question]:
        """Questions after every stage."""
        tasks = (subject,) if self.recipe.scenario in PER_TASK else self.recipe.tasks
        if self.recipe.scenario == "union-data-incremental":
            union = tuple(sorted({y for task in tasks for y in self.sets[task].names}))
            return [scenarios.whole_task(task, self.test[task].labels, union) for task in tasks]
        return [
            scenarios.whole_task(task, self.test[task].labels, self.sets[task].names)
            for task in tasks
        ]

    def final_questions(self, seed: int) -> list[Question]:
        """Questions after the last stage: flexible inference, with novel tasks."""
        if not self.recipe.novel:
            return []
        targets: Mapping[str, Sequence[str]] = {
            task: self.test[task].labels for task in self.recipe.tasks
        }
        novel = {task: self.test[task].labels for task in self.recipe.novel}
        return scenarios.flexible(targets, novel, seed)


def _capped(split: Split, indices: Sequence[int], most: int | None) -> Part:
    kept = scenarios.capped([split.labels[i] for i in indices], most, CAP_SEED)
    return Part(split, tuple(indices[k] for k in kept))


def _test_kind(task: str, encoder: str | None = None) -> str:
    return f"test {task} {encoder or ''}"
