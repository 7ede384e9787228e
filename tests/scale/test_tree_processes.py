"""A tree whose leaves are processes that start late, stop and die."""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests import helpers
from tests.scale.process_ray import process_ray
from tests.scale.test_tree_faults import abandon, keys, teach

from anytimecl.memory import StoreWarning
from anytimecl.scale import on_ray, seat, splitting
from anytimecl.scale.leaf import image_vectors
from anytimecl.scale.leaves import Unreachable, leaf_folder
from anytimecl.scale.tree import TreeClassifier

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forks")


def opened(folder: Path, **options: Any) -> TreeClassifier:
    options = {"model": helpers.model(), "settings": helpers.settings(), **options}
    return TreeClassifier.open(folder, leaves=on_ray.OnRay, **options)


def test_a_split_without_free_cores_leaves_the_leaf_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splitting, "ROOM", 1.0)
    with process_ray(monkeypatch, cpus=2) as ray:
        tree = opened(tmp_path, capacity=8)
        with pytest.warns(StoreWarning, match="could not be split.*room for it"):
            teach(tree, range(9))
        assert len(ray.alive()) == 1  # neither child waits for room any more, or took it
        teach(tree, range(9, 12))
        assert (tree.routes.leaves(), len(tree)) == ([0], 12)
        assert [place.name for place in tmp_path.glob("*leaf-*")] == ["leaf-000000"]
        ray.cpus = 20
        now = time.monotonic() + 31
        monkeypatch.setattr(time, "monotonic", lambda: now)
        monkeypatch.setattr(splitting, "ROOM", 30.0)
        teach(tree, range(12, 20))
        assert len(tree.routes.leaves()) > 1
        assert keys(tree) == sorted(f"lesson {number}" for number in range(20))
        assert len(ray.alive()) == len(tree.routes.leaves())
        tree.close()


def test_a_leaf_whose_folder_is_lost_is_not_made_anew_when_it_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seat, "READY", 1.0)
    monkeypatch.setattr(seat.warnings, "warn", lambda *_, **__: None)  # at each attempt
    with process_ray(monkeypatch) as ray:
        tree = opened(tmp_path)
        teach(tree, range(4))
        os.rename(leaf_folder(tmp_path, 0), tmp_path / "elsewhere")
        os.kill(ray.alive()[0].pid, 9)
        sent = tree.submit(tree.codec.encode(tree.encode([helpers.picture(9)])[0]), "cat", key="9")
        with pytest.raises(TimeoutError):
            sent.result(2)
        assert not leaf_folder(tmp_path, 0).exists()
        os.rename(tmp_path / "elsewhere", leaf_folder(tmp_path, 0))  # the disk is back
        sent.result(30)
        assert len(tree) == 5
        tree.close()


def by_leaf(tree: TreeClassifier, numbers: range) -> dict[int, list[int]]:
    """Which of these pictures belong to which leaf."""
    found: dict[int, list[int]] = {leaf: [] for leaf in tree.routes.leaves()}
    for number in numbers:
        vector = image_vectors(tree.backbone, tree.encode([helpers.picture(number)]))[0]
        found[tree.routes.leaf_of(vector)].append(number)
    return found


def test_a_stopped_leaf_holds_up_its_own_lessons_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process_ray(monkeypatch):
        tree = opened(tmp_path, capacity=8, patience=1.0, stuck=600.0)
        teach(tree, range(20))
        lessons = by_leaf(tree, range(100, 160))
        leaf = max(lessons, key=lambda leaf: len(lessons[leaf]))
        own = lessons.pop(leaf)
        others = [number for numbers in lessons.values() for number in numbers]
        tree._limit = dict.fromkeys(tree._limit, None)  # splits are not what this is about
        seat = tree.leaves._seats[leaf]  # type: ignore[attr-defined]
        os.kill(seat.actor.pid, signal.SIGSTOP)
        learn = lambda number: tree.learn_one(helpers.picture(number), "cat", key=f"{number}")  # noqa: E731
        with ThreadPoolExecutor(9) as teachers:
            sent = [teachers.submit(learn, number) for number in own[:8]]
            end = time.monotonic() + 60
            while len(tree._pending.of(leaf)) < 8:
                assert time.monotonic() < end
                time.sleep(0.01)
            for number in others:  # all of them, while every lesson of the leaf waits
                teachers.submit(learn, number).result(60)
            assert not any(future.done() for future in sent)
            tree._pending.stuck = 1.0
            for future in sent:
                with pytest.raises(Unreachable, match=f"Leaf {leaf} has 8 lessons"):
                    future.result(60)
        with monkeypatch.context() as patched:
            patched.setattr(tree._pending, "wait", None)  # nobody waits any more
            for number in own:
                with pytest.raises(Unreachable):
                    learn(number)
        # The first who asks waits; the others are answered without it.
        pictures = [helpers.picture(number) for number in (own[0], others[0])]
        assert tree.predict(pictures, helpers.LABELS)[0].missing == (leaf,)
        with monkeypatch.context() as patched:
            asked, ask = [], tree.leaves.ask
            patched.setattr(tree.leaves, "ask", lambda n, *told: asked.append(n) or ask(n, *told))
            found = tree.predict(pictures, helpers.LABELS)
        assert [one.degraded for one in found] == [True, False]
        assert asked
        assert leaf not in asked
        with pytest.raises(Unreachable, match=f"Leaf {leaf} has 8 lessons"):
            len(tree)
        os.kill(seat.actor.pid, signal.SIGCONT)
        end = time.monotonic() + 30
        while tree.predict(pictures, helpers.LABELS)[0].degraded:
            assert time.monotonic() < end
            time.sleep(0.1)
        tree.settle()
        for number in own:  # what was refused is sent again, and teaches once
            learn(number)
        expected = [f"lesson {number}" for number in range(20)]
        assert keys(tree) == sorted([*expected, *map(str, [*own, *others])])
        tree.close()


@pytest.mark.slow
def test_a_split_of_ten_thousand_holds_up_no_other_leaf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process_ray(monkeypatch):
        tree = opened(tmp_path, capacity=14)
        teach(tree, range(15))
        leaf, other = tree.routes.leaves()
        tree._limit = dict.fromkeys(tree._limit, None)
        numbers = by_leaf(tree, range(100, 400))
        records = {
            number: tree.codec.encode(tree.encode([helpers.picture(number)])[0])
            for number in (*numbers[leaf], *numbers[other])
        }

        def lesson(leaf: int, count: int) -> float:
            number = numbers[leaf][count % len(numbers[leaf])]
            began = time.monotonic()
            tree.learn_record(records[number], "cat", key=f"{leaf} {count}")
            return time.monotonic() - began

        sent = [
            tree.submit(records[numbers[leaf][n % len(numbers[leaf])]], "cat", key=f"many {n}")
            for n in range(10_000)
        ]
        for future in sent:
            future.result()
        before = [lesson(other, count) for count in range(200)]
        tree._limit[leaf] = 10_000
        lesson(leaf, 0)
        process = tree.leaves._seats[leaf].actor.pid  # type: ignore[attr-defined]
        os.kill(process, signal.SIGSTOP)  # however long it takes to divide
        meanwhile = [lesson(other, 200 + count) for count in range(50)]
        assert leaf in tree._splitting
        os.kill(process, signal.SIGCONT)
        while leaf in tree._splitting:
            meanwhile.append(lesson(other, 200 + len(meanwhile)))
        assert leaf not in tree.routes.leaves()
        longest = f"{max(meanwhile):.3f} s in {len(meanwhile)} lessons, {max(before):.3f} s before"
        sys.stderr.write(f"longest lesson of another leaf: {longest}\n")
        assert len(tree) == 15 + 10_001 + 200 + len(meanwhile)
        tree.close()


def test_a_tree_with_a_stopped_leaf_can_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seat, "READY", 2.0)
    with process_ray(monkeypatch) as ray:
        tree = opened(tmp_path, stuck=0.5)
        teach(tree, range(4))
        os.kill(ray.alive()[0].pid, signal.SIGSTOP)
        with pytest.raises(Unreachable, match="Leaf 0 has 1 lessons"):
            tree.learn_one(helpers.picture(4), "cat", key="4")
        with pytest.warns(StoreWarning, match="Closed with lessons on their way"):
            tree.close()
        again = opened(tmp_path)
        again.learn_one(helpers.picture(4), "cat", key="4")
        assert len(again) == 5
        again.close()


def test_a_tree_that_died_in_one_process_goes_on_with_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = TreeClassifier.open(tmp_path, model=helpers.model(), settings=helpers.settings())
    for number in range(6):
        tree.learn_one(*helpers.lesson(number), candidates=[*helpers.LABELS, "never taught"])
    tree.learn_one(helpers.picture(6), "a mistake")
    tree.learn_one(helpers.picture(6), "cat")
    abandon(tree)  # there is no checkpoint, and nobody has told leaves of any label
    monkeypatch.setattr(seat, "READY", 20.0)
    with process_ray(monkeypatch):
        again = opened(tmp_path)
        assert len(again) == 7
        again.learn_one(*helpers.lesson(7))
        again.close()
