"""Looking through what was taught, and correcting it, over HTTP."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.serve.conftest import READ, WRITE, Service, bearer, opened, png, text

from anytimecl.serve.choices import FILE, Choices
from anytimecl.serve.tokens import AccessTokens


def counts(service: Service) -> dict[str, int]:
    return service.engine.classifier.memory.labels()


def learn(service: Service, number: int, label: str) -> Any:
    asked = {"image": text(number), "label": label, "source": f"{label} {number}.png"}
    response = service.client.post("/v1/learn", json=asked)
    assert response.status_code == 200, response.text
    return response.json()


def post(service: Service, path: str, status: int = 200, **asked: Any) -> Any:
    response = service.client.post(f"/v1/{path}", json=asked)
    assert response.status_code == status, response.text
    if status != 200:
        assert response.headers["content-type"] == "application/problem+json"
    return response.json()


def test_pages_of_examples(service: Service) -> None:
    for number in range(5):
        learn(service, number, "cat" if number % 2 else "dog")

    def ids(**asked: Any) -> tuple[list[int], str | None, int]:
        told = service.client.get("/v1/examples", params={"limit": 2, **asked}).json()
        return [one["id"] for one in told["examples"]], told["next"], told["total"]

    first, after, total = ids()
    assert (first, total) == ([5, 4], 5)
    second, after, _ = ids(after=after)
    third, end, _ = ids(after=after)
    assert (second, third, end) == ([3, 2], [1], None)
    assert ids(label="cat")[0] == [4, 2]
    assert ids(source="DOG 4")[0] == [5]
    [example] = service.client.get("/v1/examples", params={"label": "dog", "source": "2"}).json()[
        "examples"
    ]
    assert example["source"] == "dog 2.png"
    assert {"tuned", "original", "gaussian"} <= example["says"].keys()
    doubtful = service.client.get("/v1/examples", params={"suspicious": True}).json()["examples"]
    doubts = [one["suspicion"] for one in doubtful]
    assert doubts == sorted(doubts, reverse=True)
    for bad in ({"after": "x"}, {"limit": 0}, {"limit": 201}, {"colour": "red"}):
        assert service.client.get("/v1/examples", params=bad).status_code == 422
    other = service.client.get("/v1/examples", params={"after": "0.5:3"})
    assert other.status_code == 409  # of another question


def test_examples_like_an_image(service: Service) -> None:
    for number in range(4):
        learn(service, number, "cat")
    files = {"image": ("a.png", png(2), "image/png")}
    told = service.client.post("/v1/examples/like", files=files, data={"limit": "2"}).json()
    assert told["examples"][0]["id"] == 3
    assert told["examples"][0]["similarity"] == pytest.approx(1, abs=1e-2)
    files = {"image": ("a.png", b"no image", "image/png")}
    assert service.client.post("/v1/examples/like", files=files).status_code == 422


def test_relabel_and_undo(service: Service) -> None:
    taught = learn(service, 1, "llama")
    told = post(service, f"examples/{taught['id']}/label", label=" okapi ")
    assert (told["label"], told["before"]) == ("okapi", "llama")
    assert counts(service) == {"okapi": 1}
    [undone] = post(service, "undo", steps=1, event=told["event"])["undone"]
    assert (undone["act"], undone["before"]) == ("relabel", "llama")
    assert counts(service) == {"llama": 1}
    post(service, "examples/99/label", 404, label="okapi")
    post(service, f"examples/{taught['id']}/label", 422, label="")


def test_undo_takes_back_nobody_elses_act(service: Service) -> None:
    mine = learn(service, 1, "cat")
    learn(service, 2, "cat")
    told = post(service, "undo", 409, event=mine["event"])
    assert "happened since" in told["detail"]
    assert counts(service) == {"cat": 2}
    assert len(post(service, "undo", steps=2)["undone"]) == 2
    post(service, "undo", 409)  # there is nothing more
    post(service, "undo", 422, steps=0)


def test_the_same_image_again(service: Service) -> None:
    first = learn(service, 1, "llama")
    again = learn(service, 1, "llama")
    assert (again["id"], again["event"], again["replaced"]) == (first["id"], None, None)
    other = learn(service, 1, "okapi")
    assert (other["id"], other["replaced"]) == (first["id"], "llama")
    post(service, "undo", event=other["event"])
    assert counts(service) == {"llama": 1}


def test_rename_and_merge(service: Service) -> None:
    learn(service, 1, "lama")
    learn(service, 2, "lama")
    learn(service, 3, "okapi")
    assert post(service, "labels/rename", old="lama", new="llama")["examples"] == 2
    merged = post(service, "labels/merge", source="llama", into="okapi")
    assert counts(service) == {"okapi": 3}
    post(service, "undo", steps=2, event=merged["event"])
    assert counts(service) == {"lama": 2, "okapi": 1}
    post(service, "labels/rename", 404, old="nothing", new="x")
    post(service, "labels/rename", 409, old="lama", new="okapi")
    post(service, "labels/merge", 404, source="lama", into="nothing")
    post(service, "labels/merge", 409, source="lama", into="lama")


def test_changes_are_told_and_audited(service: Service) -> None:
    taught = learn(service, 1, "cat")
    post(service, f"examples/{taught['id']}/label", label="dog")
    kinds = [one["kind"] for one in service.client.get("/v1/changes").json()["events"]]
    assert kinds == ["learned", "changed"]
    post(service, "choices", add=["dog", "lynx"])
    trail = service.client.get("/v1/audit").text.splitlines()
    assert [json.loads(line)["action"] for line in trail] == ["learned", "relabelled", "chose"]
    assert "dog" not in service.client.get("/v1/audit").text


def test_thumbnails(service: Service) -> None:
    taught = learn(service, 1, "cat")
    told = service.client.get(f"/v1/examples/{taught['id']}/thumbnail")
    assert told.status_code == 200
    assert told.headers["content-type"] == "image/webp"
    assert service.client.delete(f"/v1/examples/{taught['id']}").status_code == 200
    assert service.client.get(f"/v1/examples/{taught['id']}/thumbnail").status_code == 404


def test_a_thumbnail_goes_with_its_example_whatever_it_is_called_by_then(service: Service) -> None:
    taught = learn(service, 1, "cat")
    kept = learn(service, 2, "cat")
    post(service, f"examples/{taught['id']}/label", label="dog")
    assert service.client.delete("/v1/labels/dog").json() == {"forgotten": 1}
    assert service.client.get(f"/v1/examples/{taught['id']}/thumbnail").status_code == 404
    assert service.client.get(f"/v1/examples/{kept['id']}/thumbnail").status_code == 200


def test_export(service: Service) -> None:
    learn(service, 1, "cat, striped")
    learn(service, 2, "dog")
    table = service.client.get("/v1/export")
    assert table.headers["content-type"].startswith("text/csv")
    assert 'filename="labels.csv"' in table.headers["content-disposition"]
    found = list(csv.DictReader(io.StringIO(table.text)))
    assert [one["label"] for one in found] == ["cat, striped", "dog"]
    lines = service.client.get("/v1/export", params={"format": "jsonl"}).text.splitlines()
    assert [json.loads(line)["label"] for line in lines] == ["cat, striped", "dog"]
    assert service.client.get("/v1/export", params={"format": "xml"}).status_code == 422


def test_choices_belong_to_the_memory(tmp_path: Path) -> None:
    with opened(tmp_path, AccessTokens({})) as service:
        learn(service, 1, "cat")
        told = post(service, "choices", add=["dog", "  emu ", "dog"], remove=[])
        assert told == {"own": ["dog", "emu"], "hidden": []}
        assert post(service, "choices", remove=["dog", "cat"]) == {
            "own": ["emu"],
            "hidden": ["cat"],
        }
        assert post(service, "choices", add=["cat"])["hidden"] == []
        post(service, "choices", 422, add=[""])
    with opened(tmp_path, AccessTokens({})) as service:  # after a restart
        assert service.client.get("/v1/choices").json()["own"] == ["emu", "cat"]


def test_damaged_choices_cost_nothing_else(tmp_path: Path) -> None:
    for content in ("", "[]", '{"version": 9}', '{"version": 1, "own": [5], "hidden": []}'):
        (tmp_path / FILE).write_text(content)
        choices = Choices(tmp_path)
        assert choices.told() == ([], [])
        assert choices.change(["cat"], [], taught=()).own == ["cat"]


def test_who_may_correct(closed: Service) -> None:
    reading, writing = bearer(READ), bearer(WRITE)
    client = closed.client
    for path in ("/v1/examples", "/v1/choices", "/v1/export"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers=reading).status_code == 200
    for path, asked in (
        ("/v1/undo", {}),
        ("/v1/choices", {"add": ["cat"]}),
        ("/v1/labels/rename", {"old": "a", "new": "b"}),
        ("/v1/labels/merge", {"source": "a", "into": "b"}),
        ("/v1/examples/1/label", {"label": "a"}),
    ):
        assert client.post(path, json=asked, headers=reading).status_code == 403
    assert client.post("/v1/choices", json={"add": ["cat"]}, headers=writing).status_code == 200
    files = {"image": ("a.png", png(2), "image/png")}
    assert client.post("/v1/examples/like", files=files, headers=reading).status_code == 200
