"""As Label Studio talks to its ML backends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.serve.conftest import Service, opened, png, text

from anytimecl.serve.label_studio import Studio
from anytimecl.serve.problems import Problem
from anytimecl.serve.tokens import Tokens

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
        if self.path == "/data/upload/1.png":
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


def test_learns_an_annotation_once_and_its_correction_as_well(service: Service) -> None:
    def send(*choices: str, action: str = "ANNOTATION_CREATED") -> list[Any]:
        event = annotation(INLINE, *choices, action=action)
        response = service.client.post("/label-studio/webhook", json=event)
        assert response.status_code == 201, response.text
        return list(response.json()["learned"])

    assert send("cat") == [{"id": 1, "label": "cat", "repeated": False}]
    assert send("cat") == [{"id": 1, "label": "cat", "repeated": True}]
    [learned] = send("dog", action="ANNOTATION_UPDATED")
    assert (learned["label"], learned["repeated"]) == ("dog", False)
    assert send("dog", action="ANNOTATIONS_DELETED") == []
    assert send() == []
    assert service.engine.classifier.memory.labels() == {"cat": 1, "dog": 1}


def test_fetches_pictures_from_its_label_studio(studio: Any) -> None:
    url = f"http://127.0.0.1:{studio.server_port}"
    with opened(None, Tokens({}), Studio(url, "the key")) as service:
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
    with opened(None, Tokens({}), Studio(f"http://127.0.0.1:{studio.server_port}", "key")) as made:
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
    studio = Studio("https://ls.example/base")
    assert studio.resolve("/data/x.png") == "https://ls.example/data/x.png"
    assert studio.resolve("x.png") == "https://ls.example/base/x.png"
    for address in ("https://ls.example.evil/x", "http://ls.example/x", "https://ls.example:8/x"):
        with pytest.raises(Problem):
            studio.resolve(address)
