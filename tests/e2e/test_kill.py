"""A server that is killed at any moment: what it acknowledged is there, each exactly once."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest
from tests.backbone import tiny
from tests.e2e.conftest import Serve
from tests.serve.conftest import png
from typer.testing import CliRunner

from anytimecl.cli import app
from anytimecl.client import Client, ServiceError
from anytimecl.memory import open_memory

pytestmark = pytest.mark.e2e
ROUNDS = 3
LEARNERS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.clip(tmp_path_factory.mktemp("model") / "tiny")


class Learner(threading.Thread):
    """Teaches until the server is gone; an unanswered lesson is sent again to the next one."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.url = ""
        self.place = name
        self.number = 0
        self.acknowledged: dict[str, int] = {}  # key -> example
        self.repeated = 0

    def run(self) -> None:
        client = Client(self.url, patience=0)
        while True:
            key = f"{self.place}-{self.number}"
            try:
                # A picture of its own: one that was taught before would be the same example.
                picture = png(int(self.place[-1]) + LEARNERS * self.number)
                lesson = client.learn(picture, ("cat", "dog")[self.number % 2], key=key)
            except ServiceError:
                return  # the same key is tried again
            self.acknowledged[key] = lesson.id
            self.repeated += lesson.repeated
            self.number += 1


def test_every_acknowledged_example_is_there_once(
    serve: Serve, model: Path, tmp_path: Path
) -> None:
    learners = [Learner(f"learner-{place}") for place in range(LEARNERS)]
    for round_number in range(ROUNDS):
        server = serve("--memory", "memory", "--model", model, "--per-second", "100000")
        fresh = []
        for old in learners:
            learner = Learner(old.place)
            learner.__dict__.update(
                url=server.url, number=old.number, acknowledged=old.acknowledged,
                repeated=old.repeated,
            )  # fmt: skip
            fresh.append(learner)
        learners = fresh
        for learner in learners:
            learner.start()
        goal = (round_number + 1) * 20
        while sum(len(learner.acknowledged) for learner in learners) < goal:
            time.sleep(0.01)
        server.end(signal.SIGKILL)
        for learner in learners:
            learner.join(60)
    expected = {k: v for learner in learners for k, v in learner.acknowledged.items()}
    assert len(set(expected.values())) == len(expected)  # no two lessons are one example
    with open_memory(tmp_path / "memory", read_only=True) as memory:
        stored = {key: memory.has_key(key) for key in expected}
        assert stored == expected
        # Besides these, at most what each learner had sent when the last server was killed.
        assert len(expected) <= len(memory) <= len(expected) + LEARNERS
    assert len(expected) >= 20 * ROUNDS


def test_a_backup_while_it_runs_and_a_polite_end(serve: Serve, model: Path, tmp_path: Path) -> None:
    server = serve("--memory", "memory", "--model", model)
    client = Client(server.url)
    client.learn(png(1), "cat")
    words = ["memory", "backup", str(tmp_path / "memory"), str(tmp_path / "copy")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    client.learn(png(2), "dog")
    with open_memory(tmp_path / "copy") as copy:
        assert copy.labels() == {"cat": 1}
    told = server.end(signal.SIGINT)
    assert server.process.returncode == 0, told
    assert "Stopped. Everything that was answered is stored." in told
    assert "Traceback" not in told


def test_one_memory_has_one_server_and_one_port_too(serve: Serve, model: Path) -> None:
    server = serve("--memory", "memory", "--model", model)
    port = server.url.rpartition(":")[2]
    with pytest.raises(AssertionError) as error:
        serve("--memory", "other", "--model", model, "--port", port)
    assert f"127.0.0.1:{port} cannot be listened on" in str(error.value)
    assert "Traceback" not in str(error.value)
    with pytest.raises(AssertionError) as error:
        serve("--memory", "memory", "--model", model)
    assert f"in use by process {server.process.pid}" in str(error.value)
