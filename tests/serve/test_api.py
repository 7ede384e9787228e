"""What each route does."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests import helpers
from tests.serve.conftest import Service, opened, png, text

from anytimecl.classifier import AnytimeClassifier
from anytimecl.consolidation import OfflineTrainer
from anytimecl.labels import NONE_OF_THESE
from anytimecl.serve.app import create_app
from anytimecl.serve.assets import ASSETS
from anytimecl.serve.engine import Engine
from anytimecl.serve.fair import Ticket
from anytimecl.serve.memories import Memories
from anytimecl.serve.options import Options
from anytimecl.serve.tokens import AccessTokens


def test_predicts_as_the_classifier_does(service: Service) -> None:
    service.learn(1, "cat")
    service.learn(2, "dog")
    labels = ["dog", "great white shark", "cat"]
    asked = {"images": [text(1), text(7)], "labels": labels, "top_k": 3}
    told = service.client.post("/v1/predict", json=asked).json()["predictions"]
    for one, number in zip(told, (1, 7), strict=True):
        expected = service.engine.classifier.predict(helpers.picture(number), labels)
        assert one["label"] == expected.label
        assert one["probability"] == pytest.approx(expected.probability, rel=1e-4)
        assert one["none_of_these"] == pytest.approx(expected.none_of_these, rel=1e-4)
        assert [score["label"] for score in one["scores"]] == [name for name, _ in expected.top(3)]
        for score in one["scores"]:
            name = score["label"]
            assert score["blended"] == pytest.approx(expected.probabilities[name], rel=1e-4)
            assert score["tuned"] == pytest.approx(expected.tuned[name], rel=1e-4)
            assert score["original"] == pytest.approx(expected.original[name], rel=1e-4)


def test_a_form_asks_the_same_as_json(service: Service) -> None:
    service.learn(1, "cat")
    as_json = service.client.post(
        "/v1/predict", json={"images": [text(3)], "labels": ["a", "b", "c"], "top_k": 2}
    )
    as_form = service.client.post(
        "/v1/predict",
        files=[("images", ("x.png", png(3)))],
        data={"labels": ["a", "b", "c"], "top_k": "2"},
    )
    assert as_json.status_code == as_form.status_code == 200
    assert as_json.json() == as_form.json()
    assert len(as_form.json()["predictions"][0]["scores"]) == 2


def test_without_labels_it_chooses_among_all_learned(service: Service) -> None:
    nothing = service.client.post("/v1/predict", json={"images": [text(1)]})
    assert nothing.status_code == 409
    assert "Nothing is learned yet" in nothing.json()["detail"]
    service.learn(1, "cat")
    service.learn(2, "dog")
    told = service.client.post("/v1/predict", json={"images": [text(1)]}).json()
    assert {score["label"] for score in told["predictions"][0]["scores"]} == {"cat", "dog"}


def test_none_of_these_is_an_answer(service: Service) -> None:
    service.learn(1, "cat")
    # Another picture: one that was taught is known again, whatever the threshold.
    asked = {"images": [text(2)], "labels": ["cat", "dog"], "threshold": 0}
    assert service.client.post("/v1/predict", json=asked).json()["predictions"][0]["label"] == (
        NONE_OF_THESE
    )


def test_learning_is_durable_when_it_answers(service: Service, tmp_path: Path) -> None:
    told = service.learn(1, "  tabby   cat ")
    assert told["label"] == "tabby cat"
    # Beside the running service, as another process would: nothing was closed or flushed for it.
    with AnytimeClassifier.open(
        tmp_path / "memory", model=helpers.model(), read_only=True
    ) as reader:
        assert reader.memory.example(told["id"]).label == "tabby cat"


def test_learns_what_the_classifier_would(service: Service) -> None:
    alone = helpers.taught([])
    for number in range(6):
        image, label = helpers.lesson(number)
        alone.learn_one(image, label)
        service.learn(number, label)
    mine = helpers.knowledge(service.engine.classifier)
    assert helpers.differing(mine, helpers.knowledge(alone)) == []


def test_a_retried_lesson_is_learned_once(service: Service) -> None:
    asked = {"image": text(1), "label": "cat"}
    first, second = (
        service.client.post("/v1/learn", json=asked, headers={"Idempotency-Key": "upload 17!"[:6]})
        for _ in range(2)
    )
    assert not first.json()["repeated"]
    told = {"repeated": True, "event": None, "before": None}
    assert second.json() == {**first.json(), **told}
    assert len(service.engine.classifier) == 1
    other = service.client.post(
        "/v1/learn", json={**asked, "label": "dog"}, headers={"Idempotency-Key": "upload"}
    )
    assert other.status_code == 409
    assert "belongs to example 1, which is 'cat'" in other.json()["detail"]


def test_retries_at_the_same_moment_teach_once(service: Service) -> None:
    """Both have missed the first look for the key before either learns."""
    asked, answers = {"image": text(1), "label": "cat"}, []

    def send() -> None:
        headers = {"Idempotency-Key": "k"}
        answers.append(service.client.post("/v1/learn", json=asked, headers=headers).json())

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer["repeated"] for answer in answers) == [False] + [True] * 5
    assert {answer["id"] for answer in answers} == {1}
    assert len(service.engine.classifier) == 1


def test_candidates_go_with_the_lesson(service: Service) -> None:
    for number, label in enumerate(("cat", "dog")):
        asked = {"image": text(number), "label": label, "candidates": ["lynx", "cat"]}
        told = service.client.post("/v1/learn", json=asked).json()
        kept = service.engine.classifier.memory.example(told["id"]).candidates
        assert kept is not None
        assert set(kept) == {label, "lynx", "cat"}  # the label itself is among them


def test_a_misspelt_parameter_is_told(service: Service) -> None:
    response = service.client.get("/v1/examples?limt=3")
    assert response.status_code == 422
    assert "'limt'" in response.json()["detail"]


def test_forgets_an_example(service: Service) -> None:
    first, second = service.learn(1, "cat"), service.learn(2, "dog")
    assert service.client.delete(f"/v1/examples/{first['id']}").json() == {"forgotten": 1}
    assert service.engine.classifier.labels == ["dog"]
    assert service.client.delete(f"/v1/examples/{first['id']}").status_code == 404
    assert service.client.get(f"/v1/examples/{first['id']}/thumbnail").status_code == 404
    shown = service.client.get("/v1/examples").json()["examples"]
    assert [item["id"] for item in shown] == [second["id"]]


def test_forgets_a_label_even_with_a_slash(service: Service) -> None:
    for number, label in ((1, "on/off"), (2, "on/off"), (3, "dog")):
        service.learn(number, label)
    assert service.client.delete("/v1/labels/on%2Foff").json() == {"forgotten": 2}
    assert service.client.delete("/v1/labels/on%2Foff").status_code == 404
    assert [item["label"] for item in service.client.get("/v1/labels").json()["labels"]] == ["dog"]


def test_pictures_that_no_memory_keeps_live_as_long_as_the_process(tmp_path: Path) -> None:
    with opened(tmp_path, AccessTokens({})) as first:
        told = first.learn(1, "cat")
        picture = first.client.get(f"/v1/examples/{told['id']}/thumbnail")
        assert picture.headers["content-type"] == "image/webp"
        assert picture.content[8:12] == b"WEBP"
        assert first.client.get("/v1/examples").json()["examples"][0]["thumbnail"] is True
    with opened(tmp_path, AccessTokens({})) as second:
        [shown] = second.client.get("/v1/examples").json()["examples"]
        assert (shown["id"], shown["label"], shown["thumbnail"]) == (told["id"], "cat", False)


def test_pictures_in_ram_are_bounded() -> None:
    with opened(None, AccessTokens({}), thumbnails=3) as service:
        for number in range(5):
            service.learn(number, "cat")
        shown = service.client.get("/v1/examples").json()["examples"]
        assert [item["thumbnail"] for item in shown] == [True, True, True, False, False]


def test_stats_tell_outcomes_and_survive_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path, AccessTokens({})) as first:
        befores = [first.learn(number, label)["before"] for number, label in
                   ((1, "cat"), (2, "dog"), (3, "cat"))]  # fmt: skip
        told = first.client.get("/v1/stats").json()
    assert [one[1:] for one in told["outcomes"]] == [
        [int(before[model]) for model in ("blended", "tuned", "original")] for before in befores
    ]
    assert told["accuracy"]["tuned"] == pytest.approx(sum(b["tuned"] for b in befores) / 3)
    assert {item["label"]: item["examples"] for item in told["labels"]} == {"cat": 2, "dog": 1}
    with opened(tmp_path, AccessTokens({})) as second:
        again = second.client.get("/v1/stats").json()
    assert again == told


def test_consolidates_beside_requests(service: Service) -> None:
    assert service.client.post("/v1/consolidate").status_code == 409
    for number in range(10):
        service.learn(number, ("cat", "dog")[number % 2])
    job = service.client.post("/v1/consolidate", json={"epochs": 2})
    assert job.status_code == 202
    with service.client.stream("GET", f"/v1/jobs/{job.json()['id']}/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in stream.iter_lines() if line.startswith("data: ")]
    last = json.loads(lines[-1].removeprefix("data: "))
    assert (last["state"], last["done"]) == ("done", last["steps"])
    assert last["steps"] == 4  # ten examples, batches of eight, two epochs
    assert service.client.get(f"/v1/jobs/{last['id']}").json() == last
    assert service.client.get("/v1/stats").json()["job"] == last


def test_lessons_wait_for_a_consolidation_and_predictions_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    let_go, entered = threading.Event(), threading.Event()
    keep = OfflineTrainer.consolidate

    def slowly(self: OfflineTrainer, *args: object) -> None:
        entered.set()
        assert let_go.wait(60)
        keep(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(OfflineTrainer, "consolidate", slowly)
    with opened(None, AccessTokens({}), learn_seconds=0.3) as service:
        service.learn(1, "cat")
        job = service.client.post("/v1/consolidate").json()["id"]
        assert entered.wait(60)
        try:
            again = service.client.post("/v1/consolidate")
            assert again.status_code == 409
            assert service.client.post("/v1/predict", json={"images": [text(2)]}).status_code == 200
            refused = service.client.post("/v1/learn", json={"image": text(2), "label": "dog"})
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert "nothing was changed" in refused.json()["detail"]
        finally:
            let_go.set()
        while service.client.get(f"/v1/jobs/{job}").json()["state"] != "done":
            time.sleep(0.01)
        assert service.engine.classifier.labels == ["cat"]  # the refused lesson was taken back
        service.learn(2, "dog")


def test_too_many_changes_are_refused_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, entered = threading.Event(), threading.Event()
    keep = AnytimeClassifier.learn_tokens

    def slowly(self: AnytimeClassifier, *args: object, **options: object) -> object:
        entered.set()
        assert let_go.wait(60)
        return keep(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(AnytimeClassifier, "learn_tokens", slowly)
    statuses: list[int] = []
    with opened(None, AccessTokens({}), learn_waiting=2) as service:

        def send(number: int) -> None:
            asked = {"image": text(number), "label": "cat"}
            statuses.append(service.client.post("/v1/learn", json=asked).status_code)

        first = threading.Thread(target=send, args=(0,))
        first.start()
        assert entered.wait(60)
        others = [threading.Thread(target=send, args=(number,)) for number in range(1, 6)]
        for thread in others:
            thread.start()
        while len(statuses) < 3:  # one at work and two waiting: the other three are refused
            time.sleep(0.01)
        let_go.set()
        for thread in (first, *others):
            thread.join()
        assert sorted(statuses) == [200] * 3 + [429] * 3
        assert len(service.engine.classifier) == 3


def test_too_many_images_are_refused() -> None:
    with opened(None, AccessTokens({}), encode_waiting=2) as service:
        asked = {"images": [text(1)] * 3, "labels": ["a"]}
        refused = service.client.post("/v1/predict", json=asked)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"


def test_new_labels_hold_up_nobody_who_asks_about_known_ones() -> None:
    with opened(None, AccessTokens({}), name_waiting=2) as service:
        known = {"images": [text(1)], "labels": ["cat", "dog"]}
        assert service.client.post("/v1/predict", json=known).status_code == 200
        let_go = threading.Event()
        long = [(32, lambda: let_go.wait(60))]  # somebody's list of many
        service.engine.intake.names.submit(Ticket("somebody"), long)
        new = {"images": [text(1)], "labels": ["cat", "lynx"]}
        answers: list[int] = []

        def ask() -> None:
            answers.append(service.client.post("/v1/predict", json=new).status_code)

        waiting = threading.Thread(target=ask)
        waiting.start()
        while not len(service.engine.intake.names):
            time.sleep(0.01)
        assert service.client.post("/v1/predict", json=known).status_code == 200
        assert answers == []
        let_go.set()
        waiting.join(60)
        assert answers == [200]


def test_health_readiness_and_metrics(service: Service) -> None:
    service.learn(1, "cat")
    service.client.post("/v1/predict", json={"images": [text(1)]})
    assert service.client.get("/healthz").json() == {"status": "ok"}
    assert service.client.get("/readyz").json() == {"status": "ok"}
    told = service.client.get("/metrics").text
    for line in (
        "anytimecl_steps_total 1.0",
        'anytimecl_examples{memory="default"} 1.0',
        'anytimecl_queue{of="images"} 0.0',
        'anytimecl_request_seconds_count{method="POST",route="/v1/learn",status="200"} 1.0',
        'anytimecl_accuracy_before_update{memory="default",model="tuned"} 1.0',
        "anytimecl_encode_batch_images_count 2.0",
    ):
        assert line in told.splitlines()
    service.engine.stop_soon()
    assert service.client.get("/readyz").status_code == 503
    assert service.client.get("/healthz").status_code == 200


def test_the_page_loads_nothing_from_elsewhere(service: Service) -> None:
    page = service.client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    for name in ("page.css", "page.js", "icon.svg"):
        assert name in page.text
    for path in ASSETS:
        found = service.client.get(path)
        assert found.status_code == 200
        hosts = found.text.replace("http://www.w3.org/", "")
        assert "http://" not in hosts
        assert "https://" not in hosts
    assert "<script>" not in page.text
    assert "style=" not in page.text


def test_the_description_has_examples(service: Service) -> None:
    told = service.client.get("/openapi.json").json()
    learn = told["paths"]["/v1/learn"]["post"]
    example = learn["requestBody"]["content"]["application/json"]["example"]
    assert service.client.post("/v1/learn", json=example).status_code == 200
    predict = told["paths"]["/v1/predict"]["post"]
    example = predict["requestBody"]["content"]["application/json"]["example"]
    assert service.client.post("/v1/predict", json=example).status_code == 200
    assert learn["security"] == [{"token": []}]
    assert "security" not in told["paths"]["/healthz"]["get"]


def test_a_memory_of_images_learns_images() -> None:
    classifier = AnytimeClassifier.open(
        model=helpers.model(), settings=helpers.settings(codec="image")
    )
    engine = Engine(classifier, Options())
    with TestClient(
        create_app(Memories(engine), AccessTokens({})), base_url="http://localhost"
    ) as client:
        told = client.post("/v1/learn", json={"image": text(1), "label": "cat"})
        assert told.status_code == 200, told.text
        assert client.get("/v1/stats").json()["keeps_images"] is True
        record = classifier.memory.example(told.json()["id"]).record
        assert png(1) in record


def test_a_memory_of_one_label_answers_about_others(service: Service) -> None:
    """However many examples the one label has: at the eighth the pool is weighed anew."""
    for number in range(9):
        service.learn(number, "cat")
        asked = {"images": [text(20)], "labels": ["cat", "dog"]}
        answer = service.client.post("/v1/predict", json=asked)
        assert answer.status_code == 200, number
        assert sum(one["blended"] for one in answer.json()["predictions"][0]["scores"]) > 0


def test_files_of_the_page_do_not_count_against_the_rate() -> None:
    with opened(None, AccessTokens({}), burst=2, per_second=0.001) as service:
        assert {service.client.get(path).status_code for path in sorted(ASSETS)} == {200}
        asked = [service.client.get("/v1/stats").status_code for _ in range(3)]
        assert asked == [200, 200, 429]
