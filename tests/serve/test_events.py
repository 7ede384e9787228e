"""Streams are bounded exactly, and any number of tabs hears what happens without one."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
from typing import Any

import pytest
from tests.serve.conftest import Service, png, running

from anytimecl.client import Client
from anytimecl.serve.assets import ASSETS
from anytimecl.serve.events import KEPT, Broadcast
from anytimecl.serve.problems import Busy
from anytimecl.serve.tokens import AccessTokens

OPEN = AccessTokens({})
CONNECTIONS = 6  # that a browser has to one host
TABS = 20


def changes(service: Service, after: int) -> dict[str, Any]:
    return dict(service.client.get(f"/v1/changes?after={after}").json())


def test_what_happened_is_told_since_the_last_time(service: Service) -> None:
    assert changes(service, 0) == {"last": 0, "missed": False, "events": []}
    first = service.learn(1, "cat")["id"]
    service.client.delete(f"/v1/examples/{first}")
    assert changes(service, 0)["events"] == [
        {"number": 1, "kind": "learned", "data": {"id": first}},
        {"number": 2, "kind": "forgotten", "data": {"examples": 1}},
    ]
    assert [one["number"] for one in changes(service, 1)["events"]] == [2]
    assert changes(service, 2) == {"last": 2, "missed": False, "events": []}


def test_who_is_too_far_behind_or_from_before_a_restart_is_told_so(service: Service) -> None:
    for _ in range(KEPT + 1):
        service.engine.broadcast.send("forgotten", {"examples": 1})
    assert changes(service, 0)["missed"]
    assert not changes(service, 1)["missed"]
    assert changes(service, KEPT + 2)["missed"]


def test_a_label_is_not_kept(service: Service) -> None:
    """It may be forgotten the next moment."""
    service.learn(1, "a private label")
    assert "private" not in json.dumps(changes(service, 0))


def test_places_are_counted_before_a_stream_begins() -> None:
    """Each stream used to be counted when its first part was asked for: two at once were one."""

    async def try_it() -> None:
        broadcast = Broadcast(2)
        broadcast.start()
        first, second = broadcast.listen(), broadcast.listen()
        with pytest.raises(Busy):
            broadcast.listen()
        assert await anext(first) == b"retry: 2000\n\n"
        del second  # a response that never began
        gc.collect()
        assert len(broadcast) == 1
        third = broadcast.join()
        with pytest.raises(Busy):
            broadcast.join()
        del third
        await first.aclose()  # type: ignore[attr-defined]
        assert len(broadcast) == 0

    asyncio.run(try_it())


def test_following_a_job_takes_a_place_too() -> None:
    with running(None, OPEN, streams=0) as server:
        client = Client(server.url, patience=0)
        client.learn(png(1), "cat")
        job = client.consolidate(wait=False)
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.request("GET", f"/v1/jobs/{job.id}/events")
        assert connection.getresponse().status == 429
        connection.close()


def test_twenty_tabs_share_the_connections_of_a_browser() -> None:
    """What a page asks when it loads and every second after; none keeps a connection to itself."""
    with running(None, OPEN) as server:
        address = ("127.0.0.1", server.port)
        pool = [http.client.HTTPConnection(*address, timeout=30) for _ in range(CONNECTIONS)]

        def get(tab: int, path: str) -> bytes:
            connection = pool[tab % CONNECTIONS]
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200
            return answer.read()

        known = {}
        for tab in range(TABS):
            for path in ("/", "/page.css", "/page.js", "/v1/stats", "/v1/examples?limit=24"):
                get(tab, path)
            known[tab] = json.loads(get(tab, "/v1/changes?after=0"))["last"]
        lesson = Client(server.url).learn(png(1), "cat")
        for tab in range(TABS):
            told = json.loads(get(tab, f"/v1/changes?after={known[tab]}"))
            assert [one["data"]["id"] for one in told["events"]] == [lesson.id]
        for connection in pool:
            connection.close()


def test_the_page_keeps_no_stream(service: Service) -> None:
    scripts = "".join(service.client.get(path).text for path in ASSETS if path.endswith(".js"))
    assert "changes?after=" in scripts
    assert "EventSource" not in scripts
    assert "events`" not in scripts
