"""Encoders, keeper and answering replicas, put together as Ray Serve would, without Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Receive, Scope, Send
from tests import helpers
from tests.backbone import tiny
from tests.serve.conftest import READ, bearer, text

from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import AnytimeError, StoreError
from anytimecl.scale.serving.hosts import (
    AnswerHost,
    EncoderHost,
    Encoders,
    KeeperHost,
    ServedMemory,
)
from anytimecl.scale.serving.on_serve import planned
from anytimecl.serve.app import create_app
from anytimecl.serve.engine import Engine
from anytimecl.serve.memories import Memories
from anytimecl.serve.options import Options
from anytimecl.serve.tokens import AccessTokens

LABELS = [*helpers.LABELS, "never seen"]
OFTEN = 0.05


class Full(Exception):
    """What Ray Serve raises where too many wait."""


class Handle:
    """As Ray Serve's: `await handle.method.remote(...)`."""

    def __init__(self, host: Any) -> None:
        self.host = host

    def __getattr__(self, name: str) -> Any:
        async def remote(*args: Any) -> Any:
            found = getattr(self.host, name)(*args)
            return await found if asyncio.iscoroutine(found) else found

        return type("Method", (), {"remote": staticmethod(remote)})


class OneEncoder(EncoderHost):
    """Without batches; what goes wrong is up to the test."""

    fails: Exception | None = None

    async def encode(self, pixels: Any) -> Any:
        if self.fails is not None:
            raise self.fails
        return (await self.encode_batch([pixels]))[0]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[AnytimeClassifier]:
    """Of a model that can be found by its folder."""
    model = tiny.clip(tmp_path / "model")
    folder = tmp_path / "memory"
    with AnytimeClassifier.open(folder, model=model, settings=helpers.settings()) as classifier:
        for number in range(12):
            classifier.learn_one(*helpers.lesson(number))
        yield classifier


class Late:
    """An app that begins on the loop it is served on, as a replica does."""

    def __init__(self, host: AnswerHost) -> None:
        self._host = host
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._app is None:

            async def fetch(shared: Any) -> Any:
                return shared

            await self._host.begin(fetch)
            self._app = self._host.app()
        await self._app(scope, receive, send)


@contextmanager
def replica(folder: Path, encoder: Any = None, **options: Any) -> Iterator[TestClient]:
    served = ServedMemory(str(folder), every=OFTEN, **options)
    encoder = encoder or OneEncoder(served)
    keeper = KeeperHost(served, share=lambda state: state)
    host = AnswerHost(served, Encoders(Handle(encoder), busy=(Full,)), Handle(keeper))
    with TestClient(Late(host), base_url="http://127.0.0.1") as client:
        yield client
        host.check_health()
        assert client.portal is not None
        client.portal.call(host.end)
    with pytest.raises(AnytimeError):
        host.check_health()


@contextmanager
def single(classifier: AnytimeClassifier) -> Iterator[TestClient]:
    """The service as it always was."""
    assert classifier.memory.path is not None
    alone = AnytimeClassifier.open(classifier.memory.path.parent, read_only=True)
    app = create_app(Memories(Engine(alone, Options())), AccessTokens({}))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def question(*numbers: int, **options: Any) -> dict[str, Any]:
    return {"images": [text(number) for number in numbers], "labels": LABELS, **options}


QUESTIONS = [
    question(0, 1, 100, 101, 102),
    question(100, labels=None),
    question(3, labels=["never seen", "nor this"], top_k=1),
    question(100, threshold=0.01),
    {"images": [text(0), "bm8gaW1hZ2U="], "labels": LABELS},
    {"images": [], "labels": LABELS},
    question(0, labels=[""]),
]


def test_every_answer_is_that_of_the_single_service(memory: AnytimeClassifier) -> None:
    assert memory.memory.path is not None
    with single(memory) as one, replica(memory.memory.path.parent) as other:
        for asked in QUESTIONS:
            told, expected = (each.post("/v1/predict", json=asked) for each in (other, one))
            assert (told.status_code, told.content) == (expected.status_code, expected.content)
        for path in ("/v1/labels", "/healthz", "/readyz", "/openapi.json"):
            told, expected = (each.get(path) for each in (other, one))
            assert (told.status_code, told.json()) == (expected.status_code, expected.json())
        stats, expected_stats = (each.get("/v1/stats").json() for each in (other, one))
        assert stats == expected_stats
        taught = other.post("/v1/learn", json={"image": text(0), "label": "cat"})
        refused = one.post("/v1/learn", json={"image": text(0), "label": "cat"})
        assert (taught.status_code, taught.content) == (refused.status_code, refused.content)
        assert "anytimecl_request_seconds" in other.get("/metrics").text
        told = other.get("/v1/examples")
        assert told.status_code == 409
        assert "ask the service that owns the memory" in told.json()["detail"]


def test_what_is_learned_meanwhile_counts_soon(memory: AnytimeClassifier) -> None:
    assert memory.memory.path is not None
    with replica(memory.memory.path.parent) as client:
        memory.learn_one(helpers.picture(100), "a new label")
        end, told = time.monotonic() + 30, {}
        while told.get("label") != "a new label":
            assert time.monotonic() < end
            asked = {"images": [text(100)]}
            told = client.post("/v1/predict", json=asked).json()["predictions"][0]
        assert (told["probability"], told["spoke"]) == (1.0, "instance")


def test_a_busy_or_lost_encoder_is_told_as_such(memory: AnytimeClassifier) -> None:
    assert memory.memory.path is not None
    folder = memory.memory.path.parent
    encoder = OneEncoder(ServedMemory(str(folder)))
    with replica(folder, encoder) as client:
        for error, status in ((Full(), 429), (ConnectionError(), 503)):
            encoder.fails = error
            told = client.post("/v1/predict", json=question(0))
            assert (told.status_code, "retry-after" in told.headers) == (status, True)
        encoder.fails = None
        assert client.post("/v1/predict", json=question(0)).status_code == 200


def test_tokens_are_asked_for_where_they_are_set(memory: AnytimeClassifier, tmp_path: Path) -> None:
    assert memory.memory.path is not None
    folder = memory.memory.path.parent
    (tmp_path / "tokens").write_text(f"read {READ.replace(' ', '-')}\n")
    (tmp_path / "tokens").chmod(0o600)
    options = {"tokens": str(tmp_path / "tokens"), "guarded": True}
    with replica(folder, **options) as client:
        assert client.post("/v1/predict", json=question(0)).status_code == 401
        header = bearer(READ.replace(" ", "-"))
        assert client.post("/v1/predict", json=question(0), headers=header).status_code == 200
    host = AnswerHost(ServedMemory(str(folder), guarded=True), Encoders(None), None)
    host._memories = object()  # type: ignore[assignment]
    with pytest.raises(AnytimeError, match="on every node"):
        host.app()


def test_a_batch_is_encoded_as_each_image_alone(memory: AnytimeClassifier) -> None:
    assert memory.memory.path is not None
    encoder = EncoderHost(ServedMemory(str(memory.memory.path.parent)))
    pixels = list(memory.backbone.pixels([helpers.picture(n) for n in range(3)]).numpy())
    together = asyncio.run(encoder.encode_batch(pixels))
    for one, found in zip(pixels, together, strict=True):
        alone = asyncio.run(encoder.encode_batch([one]))[0]
        torch.testing.assert_close(torch.tensor(found), torch.tensor(alone))
    vectors = asyncio.run(encoder.embedded(["cat", "dog"], None))
    assert np.array_equal(vectors, memory.backbone.embed_labels(["cat", "dog"]).numpy())


def test_what_cannot_be_served_says_why(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no memory in"):
        EncoderHost(ServedMemory(str(tmp_path)))
    with pytest.raises(AnytimeError, match=r"1:8 for one to eight: '8:1'"):
        planned({"memory": str(tmp_path), "encoders": "8:1"})
    with pytest.raises(AnytimeError, match=r"'memory' is missing.*there are memory, encoders"):
        planned({})
    with pytest.raises(AnytimeError, match="not known"):
        planned({"memory": str(tmp_path), "colour": "red"})
    with pytest.raises(AnytimeError, match=r"Cores and GPUs are numbers: .*'two'"):
        planned({"memory": str(tmp_path), "encoder_cpus": "two"})
