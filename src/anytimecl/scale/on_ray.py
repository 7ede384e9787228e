"""Leaves as Ray actors, over the nodes of a cluster.

A leaf's memory is in the tree's folder, which every node can reach. When a node dies, its leaves
are restarted elsewhere from their memories, and unacknowledged examples are sent again: each has an
idempotency key.
"""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from torch import Tensor

from anytimecl.backbone import Backbone
from anytimecl.errors import AnytimeError, StoreError
from anytimecl.memory import open_memory
from anytimecl.memory.database import Durability
from anytimecl.scale.leaf import LeafAnswer, LeafLesson
from anytimecl.scale.leaf_host import (
    KEPT,
    LeafHost,
    Question,
    cause_of,
    connect_ray,
    import_ray,
    plainly,
    write_tail,
)
from anytimecl.scale.leaves import Health, Unreachable, holds_memory, leaf_folder
from anytimecl.scale.seat import Seat
from anytimecl.scale.shortlist import ManyLabels
from anytimecl.scale.told import LabelFile
from anytimecl.settings import Settings
from anytimecl.trainer import Learned

PULSE = 5.0  # timeout in seconds of a health check of all leaves
MANY = 1024  # labels from which on their vectors are put in Ray's object store


class OnRay:
    """Leaves on a Ray cluster; `address` is passed to `ray.init`, None starts a cluster."""

    def __init__(
        self,
        folder: Path,
        backbone: Backbone,
        settings: Settings,
        *,
        address: str | None = None,
        cpus: float = 1.0,  # that each leaf asks of its node
        durability: Durability = "full",  # "process": faster, but a power cut may lose examples
    ) -> None:
        self._ray = import_ray()
        connect_ray(self._ray, address)
        self._folder, self._backbone, self._settings = folder.resolve(), backbone, settings
        self._durability, self._cpus = durability, cpus
        self._told = LabelFile(self._folder)
        self._telling = threading.Lock()
        self._questions: OrderedDict[tuple[str, ...], Question] = OrderedDict()  # in Ray's store
        write_tail(backbone, self._folder)
        self._host = self._ray.remote(
            num_cpus=cpus, concurrency_groups={"learn": 1, "ask": 2}, max_restarts=0
        )(LeafHost)
        self._seats: dict[int, Seat] = {}

    # --------------------------------------------------------------------------- the promise

    def start(
        self, leaves: Iterable[int], *, create: bool = True, within: float | None = None
    ) -> None:
        seats = [Seat(self._ray, leaf, create, self._actor) for leaf in leaves]
        for seat in seats:
            self.introduce(labels_of(leaf_folder(self._folder, seat.leaf)))
            self._seats[seat.leaf] = seat
            seat.begin()
        end = None if within is None else time.monotonic() + within
        for seat in seats:
            seat.wait(None if end is None else max(0.0, end - time.monotonic()))

    def _actor(self, seat: Seat) -> Any:
        """Start the actor of a leaf."""
        strategy = "SPREAD" if seat.wanted is None else on_node(seat.wanted)
        return self._host.options(scheduling_strategy=strategy).remote(
            str(self._folder),
            seat.leaf,
            self._backbone.spec.to_dict(),
            self._settings.to_json(),
            self._durability,
            seat.create,
        )

    def introduce(self, labels: Iterable[str]) -> None:
        for label in labels:
            with self._telling:
                known = label in self._told
            if not known:
                # Alone, as a single classifier would embed it; twice at once does no harm.
                vector = self._backbone.embed_labels([label], self._settings.templates)[0]
                with self._telling:
                    self._told.put({label: vector})

    def teach(self, leaf: int, lesson: LeafLesson) -> Future[Learned]:
        lesson = lesson if lesson.key else lesson._replace(key=uuid.uuid4().hex)
        self.introduce([lesson.label, *(lesson.candidates or ())])
        return self._seat(leaf).teach(lesson)

    def ask(
        self, leaf: int, tokens: Tensor, labels: Sequence[str], vectors: Tensor
    ) -> Future[LeafAnswer]:
        return self._asked(leaf, "ask", tokens, tuple(labels), vectors)

    def shortlist(self, leaf: int, tokens: Tensor, many: ManyLabels) -> Future[list[list[int]]]:
        return self._asked(leaf, "shortlist", tokens, many.labels, many.vectors)

    def _asked(
        self, leaf: int, method: str, tokens: Tensor, labels: tuple[str, ...], vectors: Tensor
    ) -> Future[Any]:
        future: Future[Any] = Future()
        seat = self._seats.get(leaf)
        actor = None if seat is None else seat.actor
        if seat is None or actor is None:
            future.set_exception(Unreachable(f"Leaf {leaf} is being started again."))
            return future
        asked = (
            getattr(actor, method)
            .options(concurrency_group="ask")
            .remote(tokens.cpu().numpy(), self._question(labels, vectors))
        )

        def told(done: Future[Any]) -> None:
            error = done.exception()
            if error is None:
                future.set_result(done.result())
            elif seat.lost_by(actor, error):
                future.set_exception(Unreachable(f"Leaf {leaf} was lost: {error}"))
            else:
                future.set_exception(cause_of(error))

        asked.future().add_done_callback(told)
        return future

    def _question(self, labels: tuple[str, ...], vectors: Tensor) -> Question:
        """Labels and their vectors [label, dim]; a large set is sent to each node once.

        A set that was used before is the same object in Ray's store, with a number by which leaves
        cache it.
        """
        if len(labels) < MANY:
            return labels, vectors.cpu().numpy()
        with self._telling:
            if labels not in self._questions:
                sent = [self._ray.put((labels, vectors.cpu().numpy()))]
                self._questions[labels] = uuid.uuid4().hex, sent
                while len(self._questions) > KEPT:
                    self._questions.popitem(last=False)
            self._questions.move_to_end(labels)
            return self._questions[labels]

    def call(self, leaf: int, method: str, *args: Any) -> Any:
        seat = self._seat(leaf)
        while True:
            actor = seat.wait()
            try:
                learn = actor.call.options(concurrency_group="learn")
                with plainly():
                    return self._ray.get(learn.remote(method, *args))
            except self._ray.exceptions.RayActorError:
                seat.lost(actor)

    def retire(self, leaf: int, *, keep: bool = False) -> None:
        seat = self._seats.pop(leaf, None)
        if seat is not None:
            seat.leave()
        if not keep:
            shutil.rmtree(leaf_folder(self._folder, leaf), ignore_errors=True)

    def health(self) -> list[Health]:
        """State of every leaf; dead ones are restarted."""
        seats = sorted(self._seats.values(), key=lambda seat: seat.leaf)
        actors = [(seat, seat.actor) for seat in seats]
        asked = [(seat, actor, actor.ready.remote()) for seat, actor in actors if actor is not None]
        end = time.monotonic() + PULSE
        alive = {seat.leaf for seat, actor, ref in asked if self._answers(seat, actor, ref, end)}
        return [
            Health(s.leaf, s.leaf in alive, s.node, len(s.pending), max(0, s.restarts))
            for s in seats
        ]

    def _answers(self, seat: Seat, actor: Any, ref: Any, end: float) -> bool:
        try:
            self._ray.get(ref, timeout=max(0.0, end - time.monotonic()))
        except self._ray.exceptions.RayActorError:
            seat.lost(actor)
            return False
        except TimeoutError:  # it may only be busy
            return False
        return True

    def close(self) -> None:
        seats = list(self._seats.values())
        for seat in seats:
            seat.release()
        for seat in seats:
            seat.leave()

    # ------------------------------------------------------------------------------- the rest

    def migrate(self, leaf: int, node: str) -> None:
        """Move a leaf to a node; it is in use again when this returns."""
        alive = [each["NodeID"] for each in self._ray.nodes() if each["Alive"]]
        if node not in alive:
            raise AnytimeError(
                f"There is no node {node!r} that is alive; these are: {', '.join(alive)}."
            )
        seat = self._seats.get(leaf)
        if seat is None:
            raise AnytimeError(f"There is no leaf {leaf}: it may have split.")
        seat.move(node)
        if seat.node != node:
            raise AnytimeError(f"Leaf {leaf} did not start on {node}; it is on {seat.node}.")

    def rebalance(self) -> dict[int, str]:
        """Move leaves to nodes with fewer, such as a new one; returns the moves.

        One leaf at a time, while a node has at least two more than another.
        """
        moved: dict[int, str] = {}
        while (step := self._uneven()) is not None:
            leaf, node = step
            try:
                self.migrate(leaf, node)
            except (AnytimeError, Unreachable):
                if leaf in self._seats:
                    raise
            else:  # it has not split meanwhile
                moved[leaf] = node
        return moved

    def _uneven(self) -> tuple[int, str] | None:
        """A leaf of the fullest node and the emptiest node, if they differ by two or more."""
        on: dict[str, list[int]] = {
            each["NodeID"]: []
            for each in self._ray.nodes()
            if each["Alive"] and each.get("Resources", {}).get("CPU", 0) >= self._cpus
        }
        for seat in list(self._seats.values()):  # leaves split meanwhile
            if seat.actor is not None and seat.node in on:
                on[seat.node].append(seat.leaf)
        if len(on) < 2:
            return None
        full, empty = (choose(on, key=lambda node: len(on[node])) for choose in (max, min))
        return (max(on[full]), empty) if len(on[full]) > len(on[empty]) + 1 else None

    def _seat(self, leaf: int) -> Seat:
        seat = self._seats.get(leaf)
        if seat is None:
            raise Unreachable(f"There is no leaf {leaf} any more.")
        return seat


def labels_of(folder: Path) -> list[str]:
    """Every label in the memory of a folder, if there is one.

    Its leaf has no text encoder and may have to replay its journal, so it needs their embeddings
    first.
    """
    if not holds_memory(folder):
        return []
    try:
        found = open_memory(folder, read_only=True)
    except StoreError:  # of an earlier version, which the leaf would bring up to date as well
        open_memory(folder).close()
        found = open_memory(folder, read_only=True)
    with found as memory, memory.reading() as db:
        sets = [json.loads(one) for (one,) in db.execute("SELECT labels FROM candidates")]
        sets += [act.before for act in memory.history().acts.values()]
        return list(dict.fromkeys([*memory.labels(), *filter(None, itertools.chain(*sets))]))


def on_node(node: str) -> Any:
    """The scheduling strategy that requires a node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def on_ray(**options: Any) -> Any:
    """Leaves on Ray for `TreeClassifier.open(leaves=...)`, with the options of `OnRay`."""

    def make(folder: Path, backbone: Backbone, settings: Settings) -> OnRay:
        return OnRay(folder, backbone, settings, **options)

    return make
