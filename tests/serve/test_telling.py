"""Which image to label first, over HTTP: the inbox's choice among those that were looked at."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.serve.conftest import Service, png, text

from anytimecl.inbox import Inbox, knowing
from anytimecl.serve import telling
from anytimecl.serve.telling import key_of


def looked_at(service: Service, *numbers: int, **asked: Any) -> list[str]:
    images = [text(number) for number in numbers]
    asked = {"images": images, "labels": ["cat", "dog"], "remember": True, **asked}
    told = service.client.post("/v1/predict", json=asked)
    assert told.status_code == 200, told.text
    return [one["image"] for one in told.json()["predictions"]]


def order(service: Service, keys: list[str], **asked: Any) -> dict[str, list[str]]:
    told = service.client.post("/v1/order", json={"images": keys, **asked})
    assert told.status_code == 200, told.text
    found: dict[str, list[str]] = told.json()
    return found


def test_the_first_is_what_the_inbox_would_ask_about(service: Service) -> None:
    for number, label in enumerate(("cat", "dog", "cat", "dog")):
        service.learn(number, label)
    numbers = list(range(10, 30))
    keys = looked_at(service, *numbers)
    assert keys == [key_of(png(number)) for number in numbers]
    told = order(service, keys)
    assert sorted(told["images"]) == sorted(keys)
    assert told["unknown"] == []
    assert order(service, keys) == told

    inbox = Inbox(service.engine.classifier, [png(number) for number in numbers])
    inbox.prepare()
    vectors = inbox._stacked(range(len(numbers)))
    with knowing(service.engine.classifier) as known:
        said = known.say(vectors)
        best = known.best(said, Random(len(numbers)).random())
        doubt = said.doubt.tolist()
    assert told["images"][0] == keys[best]
    rest = [doubt[keys.index(key)] for key in told["images"][1:]]
    assert rest == sorted(rest, reverse=True)


def test_before_any_lesson_and_with_labels_that_are_only_named(service: Service) -> None:
    keys = looked_at(service, 1, 2, 3)
    assert len(order(service, keys)["images"]) == 3
    assert len(order(service, keys, labels=["cat", "dog"])["images"]) == 3


def test_nothing_is_kept_unless_asked_for_nor_after_forgetting(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert looked_at(service, 1, remember=False) == [None]
    assert order(service, [key_of(png(1))]) == {"images": [], "unknown": [key_of(png(1))]}
    keys = looked_at(service, 1, 2)
    taught = service.learn(3, "cat")
    assert order(service, keys)["unknown"] == []
    assert service.client.delete(f"/v1/examples/{taught['id']}").status_code == 200
    assert order(service, keys)["unknown"] == keys

    monkeypatch.setattr(telling, "MOST", 2)
    keys = looked_at(service, 1, 2, 3)
    assert order(service, keys)["unknown"] == keys[:1]  # the latest are kept


def test_an_image_that_cannot_be_read_is_passed_over(service: Service) -> None:
    asked = {"images": ["bm8gaW1hZ2U=", text(1)], "labels": ["cat"], "remember": True}
    told = service.client.post("/v1/predict", json=asked).json()
    assert told["predictions"][0] is None
    assert told["predictions"][1]["image"] == key_of(png(1))
    wrong: list[dict[str, Any]] = [{"images": []}, {"images": ["../x"]}]
    for bad in (*wrong, {"images": [key_of(b"")], "labels": [""]}):
        assert service.client.post("/v1/order", json=bad).status_code == 422
