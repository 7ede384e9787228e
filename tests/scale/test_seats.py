"""How leaves are lost, moved and started again, on a cluster that does as it is told."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests import helpers
from tests.scale.fake_ray import ActorUnavailableError, FakeRay, RayActorError

from anytimecl.errors import AnytimeError
from anytimecl.memory import open_memory
from anytimecl.memory.database import FILE
from anytimecl.scale import on_ray, seat
from anytimecl.scale.leaf import LeafLesson
from anytimecl.scale.leaves import Unreachable
from anytimecl.scale.on_ray import OnRay


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(on_ray, "import_ray", lambda: fake)
    monkeypatch.setattr(
        on_ray, "on_node", lambda node: SimpleNamespace(node_id=node), raising=False
    )
    monkeypatch.setattr(seat, "READY", 5.0)
    return fake


@pytest.fixture
def leaves(tmp_path: Path, ray: FakeRay) -> Iterator[OnRay]:
    made = OnRay(tmp_path, helpers.model(), helpers.settings())
    made.start([0])
    yield made
    ray.open.set()
    made.close()


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not true():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)


def lose(leaves: OnRay, ray: FakeRay) -> None:
    """The first actor dies, which a lesson finds out, and the next one does not get ready."""
    ray.open.clear()
    ray.actors[0].error = RayActorError("its node died")
    leaves.teach(0, LeafLesson(b"record", "cat"))
    until(lambda: len(ray.actors) == 2)


def test_a_leaf_that_is_being_started_again_can_be_moved(leaves: OnRay, ray: FakeRay) -> None:
    lose(leaves, ray)
    moving = threading.Thread(target=leaves.migrate, args=(0, "a"))
    moving.start()
    time.sleep(0.1)  # it is waiting for the leaf by now
    ray.open.set()
    moving.join(3)  # sooner than READY
    assert not moving.is_alive()
    (found,) = leaves.health()
    assert (found.node, found.alive) == ("a", True)
    assert [actor.killed for actor in ray.actors][1:] == [True, False]


def test_what_cannot_be_moved_says_why(leaves: OnRay, ray: FakeRay) -> None:
    for node in ("c", "nowhere"):
        with pytest.raises(AnytimeError, match=f"no node {node!r} that is alive.*: a, b"):
            leaves.migrate(0, node)
    with pytest.raises(AnytimeError, match="no leaf 7"):
        leaves.migrate(7, "a")
    assert len(ray.actors) == 1  # nothing was moved


def test_a_leaf_out_of_reach_is_killed_before_another_takes_its_memory(
    leaves: OnRay, ray: FakeRay
) -> None:
    ray.actors[0].error = ActorUnavailableError("the network had a hiccup")
    taught = leaves.teach(0, LeafLesson(b"record", "cat", None, "first"))
    assert taught.result(5) == "first"  # by the second actor
    assert [actor.killed for actor in ray.actors] == [True, False]


def test_health_finds_a_dead_leaf_that_nobody_asked(leaves: OnRay, ray: FakeRay) -> None:
    (found,) = leaves.health()
    assert (found.alive, found.restarts) == (True, 0)
    ray.actors[0].error = RayActorError("its node died")
    assert not leaves.health()[0].alive
    until(lambda: leaves.health()[0].alive)
    assert leaves.health()[0].restarts == 1


def test_a_leaf_that_only_takes_long_is_not_started_again(
    leaves: OnRay, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray, "PULSE", 0.05)
    ray.actors[0].slow = True
    assert not leaves.health()[0].alive
    ray.actors[0].slow = False
    assert leaves.health()[0].alive
    assert len(ray.actors) == 1


def test_a_leaf_that_starts_after_the_end_does_not_stay(leaves: OnRay, ray: FakeRay) -> None:
    lose(leaves, ray)
    leaves.close()
    ray.open.set()
    until(lambda: ray.actors[1].killed)


def test_a_node_that_joins_gets_its_share_of_the_leaves(tmp_path: Path, ray: FakeRay) -> None:
    ray._nodes = itertools.cycle("a")  # the other is not there yet
    leaves = OnRay(tmp_path, helpers.model(), helpers.settings())
    leaves.start(range(5))
    moved = leaves.rebalance()
    assert set(moved.values()) == {"b"}
    assert sorted(each.node for each in leaves.health()) == ["a", "a", "a", "b", "b"]
    assert leaves.rebalance() == {}
    leaves.close()


def test_a_leaf_that_splits_before_it_is_moved_stays_nowhere(
    leaves: OnRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = iter([(7, "b"), (0, "b"), None])  # leaf 7 was there when it was chosen
    monkeypatch.setattr(leaves, "_uneven", lambda: next(steps))
    assert leaves.rebalance() == {0: "b"}


def test_vectors_of_many_labels_are_sent_once(
    leaves: OnRay, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[tuple[tuple[str, ...], object]] = []
    monkeypatch.setattr(ray, "put", lambda what: put.append(what) or f"object {len(put)}", False)
    many, few = tuple(f"thing {n}" for n in range(on_ray.MANY)), ("cat", "dog")
    vectors = torch.randn(on_ray.MANY, 4)
    [number] = {leaves._question(many, vectors)[0] for _ in range(3)}
    assert leaves._question(many, vectors) == (number, ["object 1"])
    assert put[0][0] == many
    assert torch.equal(torch.tensor(put[0][1]), vectors)
    labels, sent = leaves._question(few, vectors[:2])
    assert (labels, len(sent), len(put)) == (few, 2, 1)
    for other in range(on_ray.KEPT):  # those asked about longest ago give way
        leaves._question((*many, f"other {other}"), vectors)
    assert leaves._question(many, vectors)[1] == [f"object {on_ray.KEPT + 2}"]


def test_a_leaf_that_finds_no_room_says_what_it_lacks(
    leaves: OnRay, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seat, "READY", 0.1)
    monkeypatch.setattr(seat, "AGAIN", 0.0)
    monkeypatch.setattr(seat.warnings, "warn", lambda *_, **__: None)  # at each attempt
    lose(leaves, ray)
    until(lambda: len(ray.actors) > 2)
    with pytest.raises(Unreachable, match="Leaf 0 could not be started: does any node have room"):
        leaves.call(0, "known", None)


def test_who_asks_a_leaf_as_it_goes_is_told_so(leaves: OnRay, ray: FakeRay) -> None:
    its = leaves._seats[0]
    leaves.retire(0)
    leaves._seats[0] = its  # as somebody had found it just before
    asked = ThreadPoolExecutor(1).submit(leaves.call, 0, "known", None)
    with pytest.raises(Unreachable, match="no leaf 0 any more"):
        asked.result(5)


def test_a_leaf_of_an_earlier_version_is_no_obstacle(tmp_path: Path) -> None:
    with open_memory(tmp_path, create={}) as memory:
        memory.append("cat", b"record")
    db = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    for table in ("content", "source", "thumbnail"):
        db.execute(f"ALTER TABLE {table} DROP COLUMN crc")
    db.execute("PRAGMA user_version = 5")
    db.close()
    assert on_ray.labels_of(tmp_path) == ["cat"]
