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
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
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
    died_of,
    import_ray,
    plainly,
    write_tail,
)
from anytimecl.scale.leaves import Health, Unreachable, holds_memory, leaf_folder
from anytimecl.scale.shortlist import ManyLabels
from anytimecl.scale.told import LabelFile
from anytimecl.settings import Settings
from anytimecl.trainer import Learned

READY = 300.0  # timeout in seconds for a leaf to open its memory
PULSE = 5.0  # timeout in seconds of a health check of all leaves
MANY = 1024  # labels from which on their vectors are put in Ray's object store
AGAIN = 1.0  # seconds between two attempts to start a leaf


@dataclass
class _Seat:
    """The router's state of a leaf."""

    leaf: int
    create: bool = False  # its memory, where there is none
    actor: Any = None  # None while it is being started
    coming: Any = None  # the actor that is being started
    node: str = ""
    wanted: str | None = None  # the node to run on
    restarts: int = -1  # the first start is none
    pending: dict[int, tuple[LeafLesson, Future[Learned]]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    up: threading.Event = field(default_factory=threading.Event)
    gone: bool = False
    why: str = "does any node have room for it?"  # it did not start


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
        self._seats: dict[int, _Seat] = {}
        self._numbers = itertools.count()
        self._closed = threading.Event()

    # --------------------------------------------------------------------------- the promise

    def start(
        self, leaves: Iterable[int], *, create: bool = True, within: float | None = None
    ) -> None:
        seats = [_Seat(leaf, create) for leaf in leaves]
        for seat in seats:
            self.introduce(labels_of(leaf_folder(self._folder, seat.leaf)))
            self._seats[seat.leaf] = seat
            self._begin(seat)
        end = None if within is None else time.monotonic() + within
        for seat in seats:
            self._wait(seat, READY if end is None else max(0.0, end - time.monotonic()))

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
        seat, future = self._seat(leaf), Future[Learned]()
        with seat.lock:
            number = next(self._numbers)
            seat.pending[number] = lesson, future
            if seat.actor is not None:
                self._send(seat, number)
        return future

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
            elif self._is_death(error):
                self._lost(seat, actor)
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
            actor = self._wait(seat)
            try:
                learn = actor.call.options(concurrency_group="learn")
                with plainly():
                    return self._ray.get(learn.remote(method, *args))
            except self._ray.exceptions.RayActorError:
                self._lost(seat, actor)

    def retire(self, leaf: int, *, keep: bool = False) -> None:
        seat = self._seats.pop(leaf, None)
        if seat is not None:
            self._leave(seat)
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

    def _answers(self, seat: _Seat, actor: Any, ref: Any, end: float) -> bool:
        try:
            self._ray.get(ref, timeout=max(0.0, end - time.monotonic()))
        except self._ray.exceptions.RayActorError:
            self._lost(seat, actor)
            return False
        except TimeoutError:  # it may only be busy
            return False
        return True

    def close(self) -> None:
        self._closed.set()
        for seat in self._seats.values():
            self._leave(seat)

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
        actor = self._taken(seat, node)
        self._end(actor)  # after earlier requests; later ones go to the new actor
        self._begin(seat)
        self._wait(seat)
        if seat.node != node:
            raise AnytimeError(f"Leaf {leaf} did not start on {node}; it is on {seat.node}.")

    def rebalance(self) -> dict[int, str]:
        """Move leaves to nodes with fewer, such as a new one; returns the moves.

        One leaf at a time, while a node has at least two more than another.
        """
        moved: dict[int, str] = {}
        while (step := self._uneven()) is not None:
            leaf, node = step
            self.migrate(leaf, node)
            moved[leaf] = node
        return moved

    def _uneven(self) -> tuple[int, str] | None:
        """A leaf of the fullest node and the emptiest node, if they differ by two or more."""
        on: dict[str, list[int]] = {
            each["NodeID"]: []
            for each in self._ray.nodes()
            if each["Alive"] and each.get("Resources", {}).get("CPU", 0) >= self._cpus
        }
        for seat in self._seats.values():
            if seat.actor is not None and seat.node in on:
                on[seat.node].append(seat.leaf)
        if len(on) < 2:
            return None
        full, empty = (choose(on, key=lambda node: len(on[node])) for choose in (max, min))
        return (max(on[full]), empty) if len(on[full]) > len(on[empty]) + 1 else None

    def _seat(self, leaf: int) -> _Seat:
        seat = self._seats.get(leaf)
        if seat is None:
            raise Unreachable(f"There is no leaf {leaf} any more.")
        return seat

    def _taken(self, seat: _Seat, node: str) -> Any:
        """Take the actor out of use; the leaf's next one runs on that node."""
        while True:
            actor = self._wait(seat)  # without the lock, which starting the leaf needs
            with seat.lock:
                if seat.actor is actor:
                    seat.actor, seat.wanted = None, node
                    seat.up.clear()
                    return actor

    def _send(self, seat: _Seat, number: int) -> None:
        actor = seat.actor
        lesson, future = seat.pending[number]

        def taught(done: Future[Any]) -> None:
            error = done.exception()
            if error is not None and self._is_death(error):
                self._lost(seat, actor)  # it stays pending, and is sent again
                return
            with seat.lock:
                if seat.pending.pop(number, None) is None:
                    return
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(cause_of(error))

        sent = actor.teach.options(concurrency_group="learn").remote(lesson)
        sent.future().add_done_callback(taught)

    def _is_death(self, error: BaseException) -> bool:
        return isinstance(error, self._ray.exceptions.RayActorError)

    def _lost(self, seat: _Seat, actor: Any) -> None:
        """The actor is dead or unreachable: restart the leaf, once."""
        with seat.lock:
            if seat.actor is not actor or seat.gone or self._closed.is_set():
                return
            seat.actor, seat.wanted = None, None
            seat.up.clear()
        self._begin(seat, actor)

    def _begin(self, seat: _Seat, lost: Any = None) -> None:
        threading.Thread(target=self._started, args=(seat, lost), daemon=True).start()

    def _started(self, seat: _Seat, lost: Any) -> None:
        """Start the leaf, retrying until it runs, and send what waits for it."""
        if lost is not None:  # one that is only out of reach still has the memory's lock
            self._ray.kill(lost)
        while not seat.gone and not self._closed.is_set():
            actor = self._host.options(scheduling_strategy=self._strategy(seat)).remote(
                str(self._folder),
                seat.leaf,
                self._backbone.spec.to_dict(),
                self._settings.to_json(),
                self._durability,
                seat.create,
            )
            seat.coming = actor
            try:
                node = self._ray.get(actor.ready.remote(), timeout=READY)
            except Exception as error:
                self._ray.kill(actor)
                if seat.gone:
                    return
                seat.wanted = None
                if not isinstance(error, TimeoutError):  # which does not say why
                    seat.why = died_of(error)
                warnings.warn(f"Leaf {seat.leaf} did not start: {seat.why}", stacklevel=2)
                time.sleep(AGAIN)
                continue
            with seat.lock:
                if seat.gone:  # nothing else would end it
                    self._ray.kill(actor)
                    return
                seat.actor, seat.node, seat.coming = actor, node, None
                seat.create = False  # it is there: should it ever be missing, it is lost
                seat.restarts += 1
                for number in list(seat.pending):
                    self._send(seat, number)
                seat.up.set()
            return

    def _strategy(self, seat: _Seat) -> Any:
        return "SPREAD" if seat.wanted is None else on_node(seat.wanted)

    def _wait(self, seat: _Seat, within: float | None = None) -> Any:
        """The actor, once there is one."""
        within = READY if within is None else within
        while not seat.gone:
            if not seat.up.wait(within):
                raise Unreachable(f"Leaf {seat.leaf} could not be started: {seat.why}")
            actor = seat.actor
            if actor is not None and not seat.gone:
                return actor
        raise Unreachable(f"There is no leaf {seat.leaf} any more.")

    def _leave(self, seat: _Seat) -> None:
        """End a leaf."""
        with seat.lock:
            seat.gone = True
            seat.up.set()  # release waiting callers
            actor, coming = seat.actor, seat.coming
        if actor is not None:
            self._end(actor)
        elif coming is not None:
            self._ray.kill(coming)  # or it would wait for room that others could use

    def _end(self, actor: Any) -> None:
        """Let the actor write its checkpoint and exit; it may be dead already."""
        try:
            learn = actor.call.options(concurrency_group="learn")
            self._ray.get(learn.remote("close"), timeout=READY)
        except (self._ray.exceptions.RayError, TimeoutError):
            pass
        self._ray.kill(actor)


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
