"""The router's actor: whom it lets wait for whom, and who encodes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests import helpers
from tests.backbone import tiny
from tests.scale.raylets import processes

from anytimecl.errors import StoreError
from anytimecl.scale import router
from anytimecl.scale.tree import TreeClassifier

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("default")]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("RAY_worker_niceness", "0")
    try:
        import ray
    except ImportError:
        pytest.skip("NO RAY: pip install -c constraints.txt -e '.[scale]'")
    ray.init(
        address="local",  # not that of somebody else on this machine
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=80_000_000,
        log_to_driver=False,
        namespace=router.NAMESPACE,
    )
    yield ray
    ray.shutdown()


def test_who_waits_for_a_stopped_leaf_holds_up_nobody_else(tmp_path: Path, ray: Any) -> None:
    model = str(tiny.clip(tmp_path / "model"))
    with TreeClassifier.open(tmp_path / "tree", model=model, capacity=8) as young:
        while len(young.routes.leaves()) < 3:
            young.learn_one(*helpers.lesson(len(young)), key=f"lesson {len(young)}")
            young.settle()
        taught = len(young)
    tree = router.up(tmp_path / "tree", model=model, cpus=0.5, encoders=1)
    stopped = processes(ray, "ray::LeafHost")[0]
    os.kill(stopped, signal.SIGSTOP)
    numbers = range(100, 140)
    told = tree.predict([helpers.picture(number) for number in numbers], helpers.LABELS)
    [leaf] = {leaf for one in told for leaf in one.missing}
    own = [n for n, one in zip(numbers, told, strict=True) if one.missing]
    others = [n for n, one in zip(numbers, told, strict=True) if not one.missing]
    assert len(own) > 2
    assert len(others) > 2
    assert leaf not in {leaf for one in told for leaf in one.leaves}

    def learn(number: int, again: int = 0) -> int:
        image = helpers.picture(number)
        return tree.learn_one(image, "cat", key=f"{number} {again}").id

    with ThreadPoolExecutor(24) as teachers:  # three times as many as the router once could take
        waiting = [teachers.submit(learn, own[n % len(own)], n) for n in range(20)]
        time.sleep(1.0)
        began = time.monotonic()
        for number in others:
            learn(number)
            tree.predict(helpers.picture(number), helpers.LABELS)
        assert time.monotonic() - began < 30.0
        assert not any(future.done() for future in waiting)
        os.kill(stopped, signal.SIGCONT)
        for future in waiting:
            future.result(60)
    assert len(tree) == taught + len(own) + len(others)  # an image counts once
    tree.down()


def test_encoders_make_the_records_that_the_tree_itself_would(tmp_path: Path, ray: Any) -> None:
    model = str(tiny.clip(tmp_path / "model"))
    lessons = [(*helpers.lesson(n), f"lesson {n}") for n in range(6)]
    with TreeClassifier.open(tmp_path / "alone", model=model) as alone:
        alone.learn_many(lessons)
        asked = [helpers.picture(n) for n in (0, 100, 101)]
        expected = [one.probabilities for one in alone.predict(asked, helpers.LABELS)]
    tree = router.up(tmp_path / "tree", model=model, cpus=0.5, encoders=2)
    end = time.monotonic() + 60
    while len(tree._call("ask", "encoders")) < 2:
        assert time.monotonic() < end
        time.sleep(0.1)
    tree.learn_many(lessons[:4])
    for dying in processes(ray, "ray::RecordHost"):
        os.kill(dying, signal.SIGKILL)
    tree.learn_many(lessons[4:])  # they are started again, or the router does it
    assert [one.probabilities for one in tree.predict(asked, helpers.LABELS)] == expected
    with pytest.raises(StoreError):
        tree.learn_record(b"nothing of the kind", "cat")
    assert len(tree) == 6
    tree.down()
