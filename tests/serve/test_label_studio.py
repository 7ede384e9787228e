"""As Label Studio talks to its ML backends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.serve.conftest import Service, opened, png, text

from anytimecl.serve import studio_files
from anytimecl.serve.problems import Problem
from anytimecl.serve.studio_files import LabelStudio
from anytimecl.serve.tokens import AccessTokens

CONFIG = """
<View>
  <Header value="What is it?"/>
  <Image name="picture" value="$photo"/>
  <Choices name="kind" toName="picture" choice="single">
    <!-- two are enough -->
    <Choice value="cat"/><Choice value="dog"/>
  </Choices>
</View>
"""
INLINE = f"data:image/png;base64,{text(1)}"


def annotation(photo: str, *choices: str, action: str = "ANNOTATION_CREATED") -> dict[str, Any]:
    """What Label Studio sends when a person has chosen."""
    result = [
        {"from_name": "kind", "to_name": "picture", "type": "choices",
         "value": {"choices": list(choices)}},
        {"from_name": "note", "type": "textarea", "value": {"text": ["hm"]}},
    ]  # fmt: skip
    return {
        "action": action,
        "project": {"id": 3, "label_config": CONFIG},
        "task": {"id": 7, "data": {"photo": photo}},
        "annotation": {"id": 11, "result": result},
    }


class Files(BaseHTTPRequestHandler):
    """A Label Studio that holds one picture."""

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization")))  # type: ignore[attr-defined]
        if self.path == "/data/large.png":
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):  # nobody reads all of it
                self.wfile.write(bytes(studio_files.PICTURE_BYTES + 1))
        elif self.path == "/data/cut.png":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"short")
        elif self.path in ("/data/upload/1.png", "/data/my%20cat.png", "/data/gr%C3%B6%C3%9Fe.png"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(png(1))
        elif self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "http://169.254.169.254/secrets")
            self.end_headers()
        else:
            self.send_error(404)

    def log_message(self, *args: object) -> None:
        """Not on the screen."""


@pytest.fixture
def studio() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    server.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_health_and_setup(service: Service) -> None:
    assert service.client.get("/label-studio/health").json()["status"] == "UP"
    asked = {"project": "3.1", "schema": CONFIG, "hostname": "http://h", "access_token": "s"}
    told = service.client.post("/label-studio/setup", json=asked).json()
    assert told["model_version"].startswith("anytimecl-")


def test_predicts_tasks(service: Service) -> None:
    broken = "data:image/png;base64,AAAA"
    tasks = [{"id": 1, "data": {"photo": INLINE}}, {"id": 2, "data": {"photo": broken}}]
    asked = {"tasks": tasks, "project": "3.1", "label_config": CONFIG, "params": {"context": None}}
    told = service.client.post("/label-studio/predict", json=asked).json()
    good, bad = told["results"]
    expected = service.client.post(
        "/v1/predict", json={"images": [text(1)], "labels": ["cat", "dog"]}
    ).json()["predictions"][0]
    assert good["result"] == [
        {"from_name": "kind", "to_name": "picture", "type": "choices",
         "value": {"choices": [expected["label"]]}}
    ]  # fmt: skip
    assert good["score"] == pytest.approx(expected["probability"])
    assert bad["result"] == []


def told(service: Service, *choices: str, action: str, **more: Any) -> dict[str, Any]:
    """Send a message; what became of it."""
    event = annotation(INLINE, *choices, action=action)
    event["annotation"].update(more)
    response = service.client.post("/label-studio/webhook", json=event)
    assert response.status_code == 201, response.text
    return dict(response.json())


def test_learns_an_annotation_once(service: Service) -> None:
    first = told(service, "cat", action="ANNOTATION_CREATED")
    assert first["learned"] == [{"id": 1, "label": "cat", "repeated": False}]
    again = told(service, "cat", action="ANNOTATION_CREATED")
    assert again["learned"] == [{"id": 1, "label": "cat", "repeated": True}]
    assert told(service, action="ANNOTATION_CREATED")["learned"] == []
    assert told(service, "dog", action="TASK_CREATED")["learned"] == []
    assert service.engine.classifier.memory.labels() == {"cat": 1}


def test_an_updated_annotation_relabels(service: Service) -> None:
    told(service, "cat", action="ANNOTATION_CREATED")
    for label, before in (("dog", "cat"), ("cat", "dog"), ("dog", "cat")):  # and back again
        [changed] = told(service, label, action="ANNOTATION_UPDATED")["relabelled"]
        assert (changed["id"], changed["label"], changed["before"]) == (1, label, before)
        assert service.engine.classifier.memory.labels() == {label: 1}
        assert told(service, label, action="ANNOTATION_UPDATED")["relabelled"] == []  # a retry


def test_an_update_of_what_was_never_told_is_learned(service: Service) -> None:
    made = told(service, "dog", action="ANNOTATION_UPDATED", updated_at="2031-05-01T10:00:00Z")
    assert [one["label"] for one in made["learned"]] == ["dog"]
    assert service.engine.classifier.memory.labels() == {"dog": 1}


@pytest.mark.parametrize("how", ["ANNOTATIONS_DELETED", "ANNOTATION_UPDATED"])
def test_a_deleted_or_emptied_annotation_is_forgotten(service: Service, how: str) -> None:
    told(service, "cat", action="ANNOTATION_CREATED")
    other = annotation(f"data:image/png;base64,{text(2)}", "cat")
    other["annotation"]["id"] = 111  # it begins like 11, and is another
    assert service.client.post("/label-studio/webhook", json=other).status_code == 201
    if how == "ANNOTATION_UPDATED":
        gone = told(service, action=how)
    else:
        event = {"action": how, "annotations": [{"id": 11}, {"id": 5}, {}], "project": {"id": 3}}
        gone = service.client.post("/label-studio/webhook", json=event).json()
    assert gone["forgotten"] == 1
    assert list(service.engine.classifier.memory.ids()) == [(2, "cat")]


def test_odd_addresses_fail_alone(studio: Any) -> None:
    url = f"http://127.0.0.1:{studio.server_port}"
    odd = ["/data/my cat.png", "/data/größe.png", "http://[::1/x", "/a\x00b.png", "http://x:y/",
           "/data/\ud800.png", "http://evil/x", "", "/data/large.png", "/data/cut.png"]  # fmt: skip
    tasks = [{"id": at, "data": {"photo": photo}} for at, photo in enumerate(odd)]
    tasks.append({"id": 99, "data": {"photo": "/data/upload/1.png"}})
    with opened(None, AccessTokens({}), LabelStudio(url, "key")) as service:
        asked = json.dumps({"tasks": tasks, "label_config": CONFIG})
        headers = {"content-type": "application/json"}
        answer = service.client.post("/label-studio/predict", content=asked, headers=headers)
    assert answer.status_code == 200, answer.text
    found = [bool(one["result"]) for one in answer.json()["results"]]
    assert found == [True, True, *[False] * 8, True]
    paths = {path for path, _ in studio.seen}
    assert {"/data/my%20cat.png", "/data/gr%C3%B6%C3%9Fe.png"} <= paths


def test_all_pictures_together_have_a_limit(studio: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    each = len(png(1))
    monkeypatch.setattr(studio_files, "ALL_BYTES", int(2.5 * each))
    tasks = [{"id": at, "data": {"photo": "/data/upload/1.png"}} for at in range(5)]
    with opened(
        None, AccessTokens({}), LabelStudio(f"http://127.0.0.1:{studio.server_port}")
    ) as service:
        asked = {"tasks": tasks, "label_config": CONFIG}
        answer = service.client.post("/label-studio/predict", json=asked)
    assert answer.status_code == 200
    assert sum(bool(one["result"]) for one in answer.json()["results"]) == 2


def test_pictures_that_come_too_slowly_are_given_up() -> None:
    with pytest.raises(Problem, match="too slowly"):
        studio_files.Allowance(seconds=-1).take(1)


def test_fetches_pictures_from_its_label_studio(studio: Any) -> None:
    url = f"http://127.0.0.1:{studio.server_port}"
    with opened(None, AccessTokens({}), LabelStudio(url, "the key")) as service:
        for photo in ("/data/upload/1.png", f"{url}/data/upload/1.png"):
            event = annotation(photo, "cat")
            assert service.client.post("/label-studio/webhook", json=event).status_code == 201
        assert set(studio.seen) == {("/data/upload/1.png", "Token the key")}
        missing = service.client.post(
            "/label-studio/webhook", json=annotation("/data/upload/2.png", "cat")
        )
        assert missing.status_code == 422
        assert "404" in missing.json()["detail"]


@pytest.mark.parametrize(
    "photo",
    ["http://169.254.169.254/latest", "http://localhost:1/x", "file:///etc/passwd", "//evil/x",
     "http://user@evil/x", "gopher://x", "/moved", "", None, 5],
)  # fmt: skip
def test_fetches_nothing_else(studio: Any, photo: Any) -> None:
    with opened(
        None, AccessTokens({}), LabelStudio(f"http://127.0.0.1:{studio.server_port}", "key")
    ) as made:
        response = made.client.post("/label-studio/webhook", json=annotation(photo, "cat"))
        assert response.status_code == 422
        assert not [path for path, _ in studio.seen if path != "/moved"]
        assert not len(made.engine.classifier)


def test_without_a_label_studio_nothing_is_fetched(service: Service) -> None:
    response = service.client.post("/label-studio/webhook", json=annotation("/a.png", "cat"))
    assert response.status_code == 422
    assert "--label-studio" in response.json()["detail"]


BOMB = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><View>&b;</View>'


@pytest.mark.parametrize("config", ["", "<View", "<View/>", BOMB, "<View><Image name='i'/></View>"])
def test_interfaces_that_cannot_be_answered(service: Service, config: str) -> None:
    asked = {"tasks": [{"data": {"photo": INLINE}}], "label_config": config}
    assert service.client.post("/label-studio/predict", json=asked).status_code == 422


def test_addresses_are_joined_with_care() -> None:
    studio = LabelStudio("https://ls.example/base")
    assert studio.resolve("/data/x.png") == "https://ls.example/data/x.png"
    assert studio.resolve("x.png") == "https://ls.example/base/x.png"
    for address in ("https://ls.example.evil/x", "http://ls.example/x", "https://ls.example:8/x"):
        with pytest.raises(Problem):
            studio.resolve(address)
