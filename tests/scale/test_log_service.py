"""A second copy in a log service: brokers of librdkafka's own test cluster, over sockets."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import helpers
from tests.scale.test_tree import grown, keys, opened

from anytimecl.errors import StoreError
from anytimecl.scale import log_service
from anytimecl.scale.log_service import LogService
from anytimecl.scale.second_copy import lessons_in
from anytimecl.scale.snapshots import verify_tree
from anytimecl.scale.tree import TreeClassifier

kafka = pytest.importorskip("confluent_kafka", reason="pip install -c constraints.txt '.[kafka]'")
COUNT = 14
# These brokers do not say how long they keep what.
pytestmark = pytest.mark.filterwarnings("ignore:kafka.* does not say what it keeps")


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """Three brokers that speak Kafka's protocol, in this process."""
    cluster = kafka.Producer({"test.mock.num.brokers": 3, "log_level": 0})
    found = cluster.list_topics(timeout=10).brokers.values()
    yield ",".join(f"{each.host}:{each.port}" for each in found)
    del cluster


@pytest.fixture
def place(brokers: str) -> str:
    return f"kafka://{brokers}/tree-{uuid.uuid4().hex}"


def taught(address: str) -> list[tuple[str | None, str]]:
    return [(lesson.key, lesson.label) for lesson in lessons_in(address)]


def test_files_are_written_piece_by_piece(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_service, "PIECE", 10)
    log = LogService(place)
    assert not log.has("copy.json")
    assert log.names() == []
    assert log.append("lessons-a", b"one\n") == 4
    assert log.append("lessons-a", b"two\nthree\nfour\n") == 19
    log.append("lessons-b", b"five\n")
    log.write("copy.json", b"{}")
    log.write("copy.json", b"[]")
    for each in (log, LogService(place)):  # whoever opens it next reads the same
        assert each.names() == ["lessons-a", "lessons-b"]
        assert each.read("lessons-a") == b"one\ntwo\nthree\nfour\n"
        assert each.read("copy.json") == b"[]"
    with pytest.raises(StoreError, match="has no lessons-c"):
        log.read("lessons-c")


@pytest.mark.parametrize("cut", range(3))
def test_a_rewriting_that_is_cut_short_loses_no_line_that_is_to_stay(
    place: str, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr(log_service, "PIECE", 10)
    lines = [b"line %d\n" % number for number in range(8)]
    log = LogService(place)
    for line in lines:
        log.append("lessons-a", line)
    whole, written = LogService._produce, []

    def some(self: LogService, pieces: dict[int, Any], name: str) -> None:
        for number, piece in pieces.items():
            written.append(number)
            if len(written) > cut:
                raise KeyboardInterrupt
            whole(self, {number: piece}, name)

    with monkeypatch.context() as patched:
        patched.setattr(LogService, "_produce", some)
        with pytest.raises(KeyboardInterrupt):
            log.write("lessons-a", b"".join(lines[::2]))
    assert set(lines[::2]) <= set(log.read("lessons-a").splitlines(keepends=True))
    log.write("lessons-a", b"".join(lines[::2]))
    assert log.read("lessons-a") == b"".join(lines[::2])


def test_a_lost_disk_is_learned_again_from_the_log(place: str, tmp_path: Path) -> None:
    with grown(tmp_path / "tree", COUNT, capacity=6, copy_to=place) as tree:
        before = keys(tree)
    with opened(tmp_path / "tree") as tree:  # it knows its log
        tree.learn_one(*helpers.lesson(20), key="after")
        assert tree.verify().ok
    assert verify_tree(tmp_path / "tree").ok
    shutil.rmtree(tmp_path / "tree")
    with opened(tmp_path / "new", capacity=6) as tree:
        for _ in range(2):
            for lesson in lessons_in(place):
                tree.learn_lesson(lesson)
        assert keys(tree) == sorted([*before, "after"])


def test_forgetting_reaches_the_log(place: str, tmp_path: Path) -> None:
    with grown(tmp_path / "tree", COUNT, copy_to=place) as tree:
        gone = tree.forget(label="cat")
        assert gone
        left = taught(place)
        assert len(left) == COUNT - gone
        assert "cat" not in [label for _, label in left]
        tree.learn_one(*helpers.lesson(30), key="after")
        assert "after" in [key for key, _ in taught(place)]


class Silent:
    """A producer whom nobody answers."""

    def produce(self, *_: Any, **__: Any) -> None:
        pass

    def flush(self, _: float) -> int:
        return 1


def held(tree: TreeClassifier) -> Any:
    assert tree._copy is not None
    return tree._copy._place


def test_what_no_broker_takes_is_not_acknowledged(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "tree", copy_to=place) as tree:
        with monkeypatch.context() as patched:
            patched.setattr(held(tree), "_producer", Silent())
            with pytest.raises(StoreError, match=r"not in the second copy.*no broker.*same key"):
                tree.learn_one(*helpers.lesson(0), key="a")
        tree.learn_one(*helpers.lesson(0), key="a")
        assert len(tree) == 1
    assert [key for key, _ in taught(place)] == ["a"]


def test_brokers_that_are_not_there_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_service, "PATIENCE", 1.0)
    with pytest.raises(StoreError, match="cannot be read"):
        opened(tmp_path / "tree", copy_to="kafka://127.0.0.1:9/topic")
    with pytest.raises(StoreError, match="has the form"):
        LogService("kafka://127.0.0.1:9")


def test_a_topic_that_drops_what_is_old_is_refused(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told:
        def __init__(self, policy: str) -> None:
            self.policy = policy

        def describe_configs(self, asked: list[Any]) -> dict[Any, Any]:
            entry = type("", (), {"value": self.policy})
            return {asked[0]: type("", (), {"result": lambda *_: {"cleanup.policy": entry}})()}

    for policy in ("compact", "delete"):
        monkeypatch.setattr("confluent_kafka.admin.AdminClient", lambda _, p=policy: Told(p))
        if policy == "compact":
            LogService(place)
            continue
        with pytest.raises(StoreError, match="set it to compact"):
            LogService(place)


def test_properties_of_the_client_are_in_a_file(place: str, tmp_path: Path) -> None:
    file = tmp_path / "kafka.properties"
    file.write_text("# ours\nclient.id = a tree\n\nsecurity.protocol=PLAINTEXT\n")
    found = log_service._properties(f"config={file}")
    assert found == {"client.id": "a tree", "security.protocol": "PLAINTEXT"}
    LogService(f"{place}?config={file}").append("lessons-a", b"one\n")
    with pytest.raises(StoreError, match="cannot be read"):
        LogService(f"{place}?config={tmp_path / 'none'}")
