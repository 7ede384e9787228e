"""POST /v1/records: compressed features, a batch at a time."""

from __future__ import annotations

import base64
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests import helpers
from tests.serve.conftest import READ, TOKENS, WRITE, Service, bearer, opened, running

from anytimecl import Client
from anytimecl.classifier import AnytimeClassifier
from anytimecl.client import Record, Recorded, ServiceError
from anytimecl.codec import make_codec
from anytimecl.errors import StoreError
from anytimecl.serve.app import create_app
from anytimecl.serve.engine import Engine
from anytimecl.serve.memories import Memories
from anytimecl.serve.options import Options
from anytimecl.serve.problems import Busy
from anytimecl.serve.records import RECORDS
from anytimecl.serve.tokens import AccessTokens

MODEL = helpers.model()
CODEC = make_codec("tokens-fp32", MODEL.spec, MODEL.tail)
OURS = {"fingerprint": MODEL.spec.fingerprint, "codec": CODEC.name}


def record(number: int) -> bytes:
    return CODEC.encode(MODEL.encode([helpers.picture(number)])[0])


def example(number: int, **changes: Any) -> dict[str, Any]:
    sent = base64.b64encode(record(number)).decode()
    return {"key": f"k{number}", "label": helpers.lesson(number)[1], "record": sent, **changes}


def batch(*examples: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**OURS, "examples": list(examples), **changes}


def states(response: Any) -> list[str]:
    assert response.status_code == 200, response.text
    return [one["state"] for one in response.json()["examples"]]


def test_records_teach_what_their_images_would(service: Service) -> None:
    asked = batch(*(example(number) for number in range(10)))
    told = service.client.post("/v1/records", json=asked)
    assert told.json()["examples"] == [
        {"key": f"k{number}", "state": "learned", "id": number + 1, "detail": None}
        for number in range(10)
    ]
    mine = helpers.knowledge(service.engine.classifier)
    assert helpers.differing(mine, helpers.knowledge(helpers.taught(range(10)))) == []


def test_candidates_count_as_in_a_lesson(service: Service) -> None:
    sent = example(0, label="cat", candidates=["dog", "lynx"])
    assert states(service.client.post("/v1/records", json=batch(sent))) == ["learned"]
    alone = helpers.taught([])
    alone.learn_one(helpers.picture(0), "cat", candidates=["cat", "dog", "lynx"])
    mine = helpers.knowledge(service.engine.classifier)
    assert helpers.differing(mine, helpers.knowledge(alone)) == []


def test_a_key_teaches_once_also_after_a_restart(tmp_path: Path) -> None:
    asked = batch(example(0), example(1), example(0))
    with opened(tmp_path, AccessTokens({})) as service:
        told = service.client.post("/v1/records", json=asked)
        assert states(told) == ["learned", "learned", "repeated"]
    with opened(tmp_path, AccessTokens({})) as service:
        told = service.client.post("/v1/records", json=batch(example(1), example(2)))
        assert states(told) == ["repeated", "learned"]
        assert [one["id"] for one in told.json()["examples"]] == [2, 3]
        assert len(service.engine.classifier) == 3


def test_a_key_is_the_same_for_images_and_records(service: Service) -> None:
    service.client.post("/v1/records", json=batch(example(0, label="cat")))
    # Not even an image: it is not looked at, since its key has taught something else.
    asked = {"image": "AAAA", "label": "cat"}
    told = service.client.post("/v1/learn", json=asked, headers={"Idempotency-Key": "k0"})
    assert told.status_code == 409
    assert "with other content, for example 1" in told.json()["detail"]


def test_what_is_refused_is_told_and_does_not_stop_the_others(service: Service) -> None:
    damaged = base64.b64encode(record(1)[:-1]).decode()
    foreign = make_codec("tokens-fp16", MODEL.spec, MODEL.tail)
    other = base64.b64encode(foreign.encode(MODEL.encode([helpers.picture(2)])[0])).decode()
    asked = batch(
        example(0, label="cat"),
        example(1, record=damaged),
        example(2, record=other),
        example(3, key="k0", label="dog"),
        example(4, label="\u200b \x01"),
        example(5),
    )
    told = service.client.post("/v1/records", json=asked)
    assert states(told) == ["learned", "refused", "refused", "refused", "refused", "learned"]
    words = [one["detail"] for one in told.json()["examples"]]
    expected = [None, "checksum", "tokens-fp16", "which is 'cat'", "control characters", None]
    for said, part in zip(words, expected, strict=True):
        assert (said is None) if part is None else (part in said)
    assert len(service.engine.classifier) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fingerprint": helpers.model(seed=1).spec.fingerprint}, "encode the images again with"),
        ({"codec": "attention-pca"}, "compress the images again with that one"),
        ({"codec": "image"}, "compress the images again with that one"),
    ],
)
def test_another_model_or_codec_is_409_with_the_way_out(
    service: Service, change: dict[str, str], words: str
) -> None:
    told = service.client.post("/v1/records", json=batch(example(0), **change))
    assert told.status_code == 409
    assert told.headers["content-type"] == "application/problem+json"
    assert words in told.json()["detail"]
    named = service.client.get("/v1/stats").json()
    assert named["fingerprint"] in told.json()["detail"] or named["codec"] in told.json()["detail"]
    assert {name: named[name] for name in OURS} == OURS
    assert not len(service.engine.classifier)


def test_a_memory_of_images_takes_none() -> None:
    chosen = helpers.settings(codec="image")
    engine = Engine(AnytimeClassifier.open(model=MODEL, settings=chosen), Options())
    with TestClient(
        create_app(Memories(engine), AccessTokens({})), base_url="http://localhost"
    ) as client:
        told = client.post("/v1/records", json=batch(example(0), codec="image"))
        assert told.status_code == 409
        assert "send images to /v1/learn" in told.json()["detail"]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        batch(),
        batch(*[example(0)] * (RECORDS + 1)),
        batch(example(0, record="not base64!")),
        batch(example(0, record="")),
        batch(example(0, key="")),
        batch(example(0, key="a" * 201)),
        batch(example(0, image="AAAA")),
        batch(example(0, candidates=[])),
        {"examples": [example(0)]},
    ],
)
def test_requests_that_make_no_sense(service: Service, asked: dict[str, Any]) -> None:
    told = service.client.post("/v1/records", json=asked)
    assert told.status_code == 422, told.text
    assert told.headers["content-type"] == "application/problem+json"
    assert not len(service.engine.classifier)


def test_json_alone(service: Service) -> None:
    told = service.client.post("/v1/records", files={"record": b"x"}, data={"label": "cat"})
    assert told.status_code == 415


def test_it_writes(closed: Service) -> None:
    for headers, status in (({}, 401), (bearer(READ), 403), (bearer(WRITE), 200)):
        told = closed.client.post("/v1/records", json=batch(example(0)), headers=headers)
        assert told.status_code == status


def test_a_request_has_its_bytes() -> None:
    with opened(None, AccessTokens({}), upload_bytes=1000) as service:
        assert service.client.post("/v1/records", json=batch(example(0))).status_code == 413


def test_no_room_is_429_and_nothing_is_taken_on() -> None:
    go = threading.Event()
    with opened(None, AccessTokens({}), learn_waiting=1) as service:
        turns = service.engine.turns
        turns.submit(lambda: go.wait(60))
        while len(turns):
            time.sleep(0.001)
        turns.submit(lambda: None)  # the one that may wait
        told = service.client.post("/v1/records", json=batch(example(0), example(1)))
        assert told.status_code == 429
        assert int(told.headers["retry-after"]) >= 1
        go.set()
        assert not len(service.engine.classifier)


def test_whoever_waits_too_long_takes_it_all_back() -> None:
    go = threading.Event()
    with opened(None, AccessTokens({}), learn_seconds=0.1) as service:
        service.engine.turns.submit(lambda: go.wait(60))
        told = service.client.post("/v1/records", json=batch(example(0)))
        assert told.status_code == 429
        go.set()
    assert told.json()["status"] == 429


def test_what_comes_too_late_is_left_for_later(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a batch the queue is full: what is learned counts, the rest comes again."""
    keep, calls = service.engine.turns.submit, iter(range(100))

    def full(work: Any) -> Any:
        if next(calls) == 2:
            raise Busy("Too many wait.", 1)
        return keep(work)

    monkeypatch.setattr(service.engine.turns, "submit", full)
    asked = batch(*(example(number) for number in range(4)))
    told = service.client.post("/v1/records", json=asked)
    assert states(told) == ["learned", "learned", "later", "later"]
    again = service.client.post("/v1/records", json=asked)
    assert states(again) == ["repeated", "repeated", "learned", "learned"]
    mine = helpers.knowledge(service.engine.classifier)
    assert helpers.differing(mine, helpers.knowledge(helpers.taught(range(4)))) == []


def test_a_batch_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = AnytimeClassifier.learn_compressed

    def slowly(self: AnytimeClassifier, *args: Any, **options: Any) -> Any:
        time.sleep(0.3)
        return keep(self, *args, **options)

    monkeypatch.setattr(AnytimeClassifier, "learn_compressed", slowly)
    with opened(None, AccessTokens({}), learn_seconds=0.2) as service:
        told = service.client.post("/v1/records", json=batch(example(0), example(1)))
        assert states(told) == ["learned", "later"]


def test_a_failing_disk_refuses_no_record(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edge would give up what is refused: this is for later."""

    def full(*args: object, **options: object) -> None:
        raise StoreError("The disk of /srv/memory is full.")

    monkeypatch.setattr(service.engine.classifier.memory, "append_row", full)
    told = service.client.post("/v1/records", json=batch(example(0)))
    assert told.status_code == 503
    assert "/srv" not in told.text


def test_the_client(tmp_path: Path) -> None:
    with running(None, TOKENS) as server:
        client = Client(server.url, token=WRITE)
        named = {name: client.stats()[name] for name in OURS}
        sent = [Record("a", "cat", record(0)), Record("b", "dog", record(1), ["dog", "lynx"])]
        assert client.learn_records(sent, **named) == [
            Recorded("a", "learned", 1, None),
            Recorded("b", "learned", 2, None),
        ]
        assert [one.state for one in client.learn_records(sent, **named)] == ["repeated"] * 2
        with pytest.raises(ServiceError, match="encode the images again") as error:
            client.learn_records(sent, fingerprint="another", codec=CODEC.name)
        assert error.value.status == 409
