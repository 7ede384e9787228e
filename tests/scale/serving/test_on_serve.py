"""Predictions on Ray Serve itself: the client of the single service, and replicas that die."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import helpers
from tests.backbone import tiny
from tests.scale.raylets import processes
from tests.serve.conftest import png
from typer.testing import CliRunner

from anytimecl import Client, cli
from anytimecl.classifier import AnytimeClassifier
from anytimecl.scale.serving.on_serve import stop_serving

# Ray has warnings of its own.
pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("default")]
LABELS = [*helpers.LABELS, "never seen"]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("RAY_worker_niceness", "0")  # or a busy machine would never get to them
    try:
        import ray
        from ray import serve
    except ImportError:
        pytest.skip("NO RAY: pip install -c constraints.txt -e '.[scale]'")
    ray.init(
        address="local",  # not that of somebody else on this machine
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=80_000_000,
        log_to_driver=False,
    )
    yield ray
    serve.shutdown()
    ray.shutdown()


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])


def test_the_client_need_not_know_and_replicas_may_die(tmp_path: Path, ray: Any) -> None:
    model, port = tiny.clip(tmp_path / "model"), free_port()
    settings = helpers.settings()
    with AnytimeClassifier.open(tmp_path / "memory", model=model, settings=settings) as classifier:
        for number in range(12):
            classifier.learn_one(*helpers.lesson(number))
        words = ["--memory", str(tmp_path / "memory"), "--port", str(port), "--every", "0.5"]
        words += ["--answerers", "2", "--encoders", "1:2", "--once"]
        done = CliRunner().invoke(cli.app, ["--debug", "scale", "serve", *words])
        assert f"is served on http://127.0.0.1:{port}" in done.output
        client = Client(f"http://127.0.0.1:{port}")
        images = [png(number) for number in (0, 1, *range(100, 120))]

        def same() -> bool:
            """Whether it answers, and then as the classifier does, bit for bit."""
            try:
                told = client.predict(images, labels=LABELS)
            except OSError:
                return False
            for one, other in zip(told, classifier.predict(images, LABELS), strict=True):
                assert (one.label, one.probability) == (other.label, other.probability)
                assert one.probabilities == other.probabilities
                assert one.none_of_these == other.none_of_these
            return True

        assert same()
        for name in ("Answerer", "Encoder", "Keeper"):
            kind = f"ServeReplica:anytimecl:{name}"
            before = processes(ray, kind)
            os.kill(before[0], signal.SIGKILL)
            end = time.monotonic() + 120
            while not (set(processes(ray, kind)) - set(before) and same()):
                assert time.monotonic() < end
                time.sleep(0.5)
        classifier.learn_one(helpers.picture(100), "a new label")
        end = time.monotonic() + 60
        while client.labels().get("a new label") != 1:
            assert time.monotonic() < end
            time.sleep(0.2)
        stop_serving()
