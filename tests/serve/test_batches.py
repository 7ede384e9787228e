"""Several at a time: one bad one stops nothing. Jobs that are listed and called off."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests import helpers
from tests.serve.conftest import Service, opened, png, running, text

from anytimecl.classifier import AnytimeClassifier
from anytimecl.client import Client, ServiceError
from anytimecl.errors import StoreError
from anytimecl.serve.tokens import AccessTokens

OPEN = AccessTokens({})


def batch(service: Service, examples: list[dict[str, Any]]) -> Any:
    return service.client.post("/v1/learn/batch", json={"examples": examples})


def test_a_bad_image_of_many_has_its_own_error(service: Service) -> None:
    asked = {"images": [text(1), "bm8gaW1hZ2U=", text(2), "!"], "labels": ["cat", "dog"]}
    told = service.client.post("/v1/predict", json=asked).json()
    assert [one is None for one in told["predictions"]] == [False, True, False, True]
    assert [one["index"] for one in told["errors"]] == [1, 3]
    assert "cannot read image" in told["errors"][0]["detail"]
    assert "not base64" in told["errors"][1]["detail"]
    for place, number in ((0, 1), (2, 2)):
        alone = {"images": [text(number)], "labels": ["cat", "dog"]}
        [expected] = service.client.post("/v1/predict", json=alone).json()["predictions"]
        found = told["predictions"][place]
        assert found["label"] == expected["label"]
        assert found["probability"] == pytest.approx(expected["probability"], abs=1e-5)


def test_where_no_image_is_good_the_request_is_refused(service: Service) -> None:
    asked = {"images": ["bm8=", "!"], "labels": ["cat", "dog"]}
    answer = service.client.post("/v1/predict", json=asked)
    assert answer.status_code == 422
    assert [one["index"] for one in answer.json()["errors"]] == [0, 1]


def test_a_batch_teaches_what_single_lessons_would(service: Service) -> None:
    lessons = [(number, ("cat", "dog")[number % 2]) for number in range(6)]
    told = batch(service, [{"image": text(n), "label": label} for n, label in lessons]).json()
    assert [one["state"] for one in told["examples"]] == ["learned"] * 6
    assert [one["id"] for one in told["examples"]] == [1, 2, 3, 4, 5, 6]
    expected = helpers.taught([])
    for number, label in lessons:
        expected.learn_one(helpers.picture(number), label)
    mine = helpers.knowledge(service.engine.classifier)
    assert helpers.differing(mine, helpers.knowledge(expected)) == []


def test_each_of_a_batch_has_its_own_fate(service: Service) -> None:
    service.client.post(
        "/v1/learn", json={"image": text(1), "label": "cat"}, headers={"Idempotency-Key": "k1"}
    )
    told = batch(
        service,
        [
            {"image": text(1), "label": "cat", "key": "k1"},
            {"image": text(1), "label": "dog", "key": "k1"},
            {"image": "bm8=", "label": "cat"},
            {"image": text(2), "label": "\x07"},
            {"image": text(2), "label": "dog", "key": "k2"},
            {"image": text(2), "label": "dog", "key": "k2"},
        ],
    ).json()["examples"]
    states = [one["state"] for one in told]
    assert states == ["repeated", "refused", "refused", "refused", "learned", "repeated"]
    assert [one["status"] for one in told] == [None, 409, 422, 422, None, None]
    assert [one["index"] for one in told] == [0, 1, 2, 3, 4, 5]
    assert len(service.engine.classifier) == 2


def test_what_a_full_disk_stops_is_left_for_later(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = AnytimeClassifier.learn_tokens

    def full(self: AnytimeClassifier, tokens: Any, label: str, **options: Any) -> Any:
        if len(self):
            raise StoreError("No space left on device")
        return keep(self, tokens, label, **options)

    monkeypatch.setattr(AnytimeClassifier, "learn_tokens", full)
    lessons = [{"image": text(n), "label": "cat"} for n in range(3)]
    told = batch(service, lessons).json()["examples"]
    assert [one["state"] for one in told] == ["learned", "later", "later"]
    again = batch(service, lessons)
    assert again.status_code == 503
    assert "retry-after" in again.headers


def test_a_batch_that_finds_no_room_is_refused_whole() -> None:
    with opened(None, OPEN, learn_waiting=0) as service:
        answer = batch(service, [{"image": text(1), "label": "cat"}])
        assert answer.status_code == 429


def test_jobs_are_listed_and_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    began, keep = threading.Event(), AnytimeClassifier.consolidate

    def slowly(self: AnytimeClassifier, epochs: int, progress: Any) -> None:
        def step(done: int, steps: int) -> None:
            began.set()
            time.sleep(0.01)
            progress(done, steps)

        keep(self, epochs, progress=step)

    with running(None, OPEN) as server:
        client = Client(server.url)
        for number in range(6):
            client.learn(png(number), ("cat", "dog")[number % 2])
        assert client.jobs() == []
        before = helpers.knowledge(server.engine.classifier)
        monkeypatch.setattr(AnytimeClassifier, "consolidate", slowly)
        job = client.consolidate(epochs=100, wait=False)
        assert began.wait(60)
        client.cancel(job.id)
        while not client.job(job.id).over:
            time.sleep(0.01)
        assert [(one.id, one.state) for one in client.jobs()] == [(job.id, "cancelled")]
        assert helpers.differing(before, helpers.knowledge(server.engine.classifier)) == []
        with pytest.raises(ServiceError, match="is over") as error:
            client.cancel(job.id)
        assert error.value.status == 409
        with pytest.raises(ServiceError, match="no such job"):
            client.cancel("unknown")
        monkeypatch.undo()
        assert client.consolidate(pause=0.01).state == "done"  # the next is free to begin


def test_a_job_that_waits_for_its_turn_is_cancelled_before_it_begins() -> None:
    with running(None, OPEN) as server:
        client, go = Client(server.url), threading.Event()
        client.learn(png(1), "cat")
        server.engine.turns.submit(lambda: go.wait(60))
        job = client.consolidate(wait=False)
        client.cancel(job.id)
        go.set()
        while not (found := client.job(job.id)).over:
            time.sleep(0.01)
        assert (found.state, found.done) == ("cancelled", 0)


def test_the_client_gives_each_image_its_answer_or_error() -> None:
    with running(None, OPEN) as server:
        client = Client(server.url)
        good, bad = client.predict([png(1), b"no image"], ["cat", "dog"])
        assert not isinstance(good, ServiceError)
        assert good.label in ("cat", "dog")
        assert isinstance(bad, ServiceError)
        assert "cannot read image" in str(bad)
        learned, refused = client.learn_many([(png(1), "cat", "k1"), (b"no image", "cat", "k2")])
        assert (learned.state, learned.id) == ("learned", 1)
        assert (refused.state, refused.id) == ("refused", None)
        [again] = client.learn_many([(png(1), "cat", "k1")])
        assert (again.state, again.id) == ("repeated", 1)


def keyed(service: Service, number: int, label: str, key: str, **more: Any) -> Any:
    asked = {"image": text(number), "label": label, **more}
    return service.client.post("/v1/learn", json=asked, headers={"Idempotency-Key": key})


def test_a_key_teaches_once_for_ever(service: Service) -> None:
    first = keyed(service, 1, "cat", "k").json()
    assert service.client.delete(f"/v1/examples/{first['id']}").status_code == 200
    again = keyed(service, 1, "cat", "k").json()
    assert (again["id"], again["repeated"]) == (first["id"], True)
    assert len(service.engine.classifier) == 0


@pytest.mark.parametrize("since", ["examples/1/label", "labels/rename", "undo"])
def test_a_retry_is_known_whatever_became_of_its_example(service: Service, since: str) -> None:
    first = keyed(service, 1, "cat", "k").json()
    asked = {"examples/1/label": {"label": "dog"}, "labels/rename": {"old": "cat", "new": "dog"}}
    changed = service.client.post(f"/v1/{since}", json=asked.get(since, {}))
    assert changed.status_code == 200, changed.text
    again = keyed(service, 1, "cat", "k").json()
    assert (again["id"], again["repeated"]) == (first["id"], True)
    assert keyed(service, 1, "dog", "k").status_code == 409


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_key_with_other_content_is_a_conflict(service: Service, forgotten: bool) -> None:
    first = keyed(service, 1, "cat", "k").json()
    if forgotten:
        service.client.delete(f"/v1/examples/{first['id']}")
    for other in (keyed(service, 2, "cat", "k"), keyed(service, 1, "cat", "k", candidates=["dog"])):
        assert other.status_code == 409
        assert "used before, with other content" in other.json()["detail"]
    assert keyed(service, 1, "dog", "k").status_code == 409
    assert keyed(service, 1, "cat", "k").json()["repeated"]


def test_a_key_outlives_the_process(tmp_path: Path) -> None:
    with opened(tmp_path / "memory", OPEN) as service:
        service.client.delete(f"/v1/examples/{keyed(service, 1, 'cat', 'k').json()['id']}")
    with opened(tmp_path / "memory", OPEN) as service:
        assert keyed(service, 1, "cat", "k").json()["repeated"]
        assert keyed(service, 2, "cat", "k").status_code == 409
