"""A tree over several raylets: nothing acknowledged is lost, whatever dies."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import helpers
from tests.backbone import tiny
from typer.testing import CliRunner

from anytimecl import cli
from anytimecl.errors import AnytimeError
from anytimecl.scale import router
from anytimecl.scale.leaf import image_vectors
from anytimecl.scale.on_ray import OnRay, on_ray
from anytimecl.scale.router import connect
from anytimecl.scale.tree import TreeClassifier

# A leaf that is to start on a dying node warns and tries again; Ray has warnings of its own.
pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("default")]

LEAVES, NODES = 8, 3
COUNT = 160
ASKED = [helpers.picture(number) for number in range(1000, 1060)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that runs no leaf, and three nodes that do."""
    monkeypatch.setenv("RAY_worker_niceness", "0")  # or a busy machine would never get to them
    try:
        import ray
        from ray.cluster_utils import Cluster
    except ImportError:
        pytest.skip("NO RAY: pip install -c constraints.txt -e '.[scale]'")
    made = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "object_store_memory": 100_000_000,
            "include_dashboard": False,
            "_system_config": {"health_check_period_ms": 1000, "health_check_failure_threshold": 3},
        },
    )
    for _ in range(NODES):
        made.add_node(num_cpus=8, object_store_memory=80_000_000)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def records(tree: TreeClassifier, numbers: range) -> list[tuple[bytes, str, str]]:
    """Lessons as an edge would send them."""
    found = []
    for number in numbers:
        image, label = helpers.lesson(number)
        record = tree.codec.encode(tree.encode([image])[0])
        found.append((record, label, f"lesson {number}"))
    return found


def grow(tree: TreeClassifier, lessons: list[tuple[bytes, str, str]]) -> None:
    for record, label, key in lessons:
        tree.learn_record(record, label, key=key)


def told(tree: TreeClassifier) -> torch.Tensor:
    """[image, label]."""
    found = tree.predict(ASKED, helpers.LABELS)
    return torch.tensor([list(one.probabilities.values()) for one in found])


def right(tree: TreeClassifier) -> float:
    """Per cent of what it was taught that it says."""
    images = [image for image, _ in helpers.lessons(COUNT)]
    found = tree.predict(images, helpers.LABELS)
    hits = [one.label == helpers.lesson(n)[1] for n, one in enumerate(found)]
    return 100 * sum(hits) / COUNT


def test_a_node_dies_in_the_middle(tmp_path: Path, cluster: Any) -> None:
    options: dict[str, Any] = {"model": helpers.model(), "settings": helpers.settings()}
    with TreeClassifier.open(tmp_path / "there", capacity=12, **options) as young:
        lessons = records(young, range(COUNT))
        while len(young.routes.leaves()) < LEAVES:
            grow(young, [lessons.pop(0)])
    shutil.copytree(tmp_path / "there", tmp_path / "here")
    with TreeClassifier.open(tmp_path / "here", **options) as single:
        grow(single, lessons)
        expected, own = told(single), right(single)

    tree = TreeClassifier.open(tmp_path / "there", patience=5.0, leaves=on_ray(cpus=0.5), **options)
    assert isinstance(tree.leaves, OnRay)
    assert len(tree.health()) == LEAVES
    assert len({each.node for each in tree.health()}) == NODES  # spread over all of them
    grow(tree, lessons[:20])

    # A burst is on its way when the node goes.
    sent = [tree.submit(record, label, key=key) for record, label, key in lessons[20:]]
    dying = next(node for node in cluster.worker_nodes if node.node_id == tree.health()[0].node)
    lost = {each.leaf for each in tree.health() if each.node == dying.node_id}
    cluster.remove_node(dying, allow_graceful=False)

    vectors = image_vectors(tree.backbone, tree.encode(ASKED))
    own_leaves = [(tree.routes.leaf_of(vector),) for vector in vectors]
    degraded, began = 0, time.monotonic()
    while time.monotonic() - began < 120:
        found = tree.predict(ASKED, helpers.LABELS)  # goes on, whatever is gone
        missing = {leaf for one in found for leaf in one.missing}
        degraded += bool(missing)
        assert missing <= lost
        # Each image was a matter for its own leaf, and for no other.
        assert [one.leaves + one.missing for one in found] == own_leaves
        if degraded and not missing and all(each.alive for each in tree.health()):
            break
        time.sleep(0.2)
    assert degraded  # some answers were given without the lost leaves, and said so
    for future in sent:
        future.result(timeout=60)

    assert {each.leaf for each in tree.health() if each.restarts} == lost
    assert dying.node_id not in {each.node for each in tree.health()}
    assert len(tree) == COUNT  # every acknowledged example, once
    assert not any(one.degraded for one in tree.predict(ASKED, helpers.LABELS))
    # The same lessons in the same leaves, each taught once: the single process says the same.
    torch.testing.assert_close(told(tree), expected, atol=2e-3, rtol=0)
    assert abs(right(tree) - own) <= 0.5
    tree.close()


def test_a_leaf_moves_and_a_tree_comes_home(tmp_path: Path, cluster: Any) -> None:
    options: dict[str, Any] = {"model": helpers.model(), "settings": helpers.settings()}
    tree = TreeClassifier.open(tmp_path, capacity=20, leaves=on_ray(cpus=0.5), **options)
    assert isinstance(tree.leaves, OnRay)
    grow(tree, records(tree, range(24)))  # it splits once
    assert len(tree.health()) == 2
    before = told(tree)
    leaf = tree.health()[0]
    other = next(n.node_id for n in cluster.worker_nodes if n.node_id != leaf.node)
    tree.leaves.migrate(leaf.leaf, other)
    assert tree.health()[0].node == other
    torch.testing.assert_close(told(tree), before)
    tree.close()
    with TreeClassifier.open(tmp_path, **options) as home:  # no cluster at all
        assert len(home) == 24
        torch.testing.assert_close(told(home), before)


def test_a_tree_from_the_command_line(tmp_path: Path, cluster: Any) -> None:
    model = str(tiny.clip(tmp_path / "model"))
    where = ["--address", cluster.address]
    with pytest.raises(AnytimeError, match=r"did not start: .*no model 'nosuch'") as told_of:
        router.up(tmp_path / "other", model="nosuch", cpus=0.5)
    assert "Traceback" not in str(told_of.value)
    up = ["up", "--memory", str(tmp_path / "tree"), "--model", model, *where]
    told = run([*up, "--cpus", "0.5", "--once"])
    assert "0 examples of 0 labels" in told
    assert "leaf 0: up on" in told
    tree = connect()
    learned = tree.learn_one(helpers.picture(0), "cat", key="first")
    assert tree.learn_one(helpers.picture(0), "cat", key="first").id == learned.id
    found = tree.predict([helpers.picture(0)], ["cat", "dog"])
    assert found[0].probabilities.keys() == {"cat", "dog"}
    assert not found[0].degraded
    more = [(helpers.picture(n), "dog", str(n)) for n in range(1, 4)]
    assert tree.learn_many([*more, (helpers.picture(4), "cat")]) == 4
    # One is refused by the router, one by the leaf.
    for wrong in ({"label": " "}, {"label": "bird", "key": "first"}):
        with pytest.raises(AnytimeError) as told_of:
            tree.learn_one(helpers.picture(0), **wrong)
        assert "Traceback" not in str(told_of.value)
    tree.consolidate(epochs=1)
    assert {label: known.examples for label, known in tree.stats().items()} == {"cat": 2, "dog": 3}
    assert tree.forget(label="dog") == 3
    assert "2 examples of 1 labels" in run(["status", *where])
    assert "2 examples in 1 leaves checked" in run(["verify", *where])
    assert "Copied 1 leaf" in run(["snapshot", *where, "--to", str(tmp_path / "copy")])
    with TreeClassifier.open(tmp_path / "copy", model=model) as copy:
        assert len(copy) == 2
    with pytest.raises(AnytimeError, match="already"):
        router.up(tmp_path / "other", model=model)
    assert "Stopped" in run(["down", *where])
    with pytest.raises(AnytimeError, match="anytimecl scale up"):
        connect()


def run(words: list[str]) -> str:
    done = CliRunner().invoke(cli.app, ["--debug", "scale", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output
