"""A tree on a cluster that does not start, or is gone: on a Ray that is none."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.scale.fake_ray import ActorUnavailableError, RayActorError

from anytimecl.scale import router, router_host
from anytimecl.scale.router import ClusterClassifier
from anytimecl.scale.router_host import RouterHost


class ActorDiedError(RayActorError):
    pass


class Dead:
    """An actor of which every call raises an error."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error, self.asked = error, 0

    def __getattr__(self, name: str) -> Any:
        def remote(*_: Any, **__: Any) -> Any:
            self.asked += 1
            return self

        method = SimpleNamespace(remote=remote)
        method.options = lambda **_: method
        return method

    def future(self) -> Future[None]:
        failed = Future[None]()
        failed.set_exception(self.error("it is not there"))
        return failed


class Ray:
    """A cluster of such actors."""

    exceptions = SimpleNamespace(RayActorError=RayActorError, ActorDiedError=ActorDiedError)

    def __init__(self, actor: Dead) -> None:
        self.killed: list[Any] = []
        self.remote = lambda **_: lambda _: SimpleNamespace(remote=lambda *_: actor)

    def wait(self, asked: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return asked, []

    def get(self, actor: Dead, **_: Any) -> None:
        raise actor.error("it is not there")

    def kill(self, actor: Any) -> None:
        self.killed.append(actor)


def test_a_start_that_is_interrupted_leaves_no_actor_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = Dead(KeyboardInterrupt)
    ray = Ray(actor)
    monkeypatch.setattr(router, "import_ray", lambda: ray)
    monkeypatch.setattr(router, "connect_ray", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        router.up(tmp_path / "tree")
    assert ray.killed == [actor]


def test_a_tree_whose_router_is_gone_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Dead(ActorDiedError)
    ray = Ray(actor)
    monkeypatch.setattr(router, "import_ray", lambda: ray)
    ClusterClassifier(actor).down()
    assert ray.killed == [actor]


def test_an_encoder_that_cannot_start_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    without_model, away = Dead(ActorDiedError), Dead(ActorUnavailableError)
    monkeypatch.setattr(router_host, "import_ray", lambda: Ray(away))
    host = RouterHost.__new__(RouterHost)
    host._encoders = [without_model, away]
    host._starting = {each: each for each in host._encoders}
    with pytest.warns(UserWarning, match="An encoder did not start: it is not there"):
        assert asyncio.run(host.encoders()) == []
    assert host._encoders == [away]
    assert list(host._starting.values()) == [away]  # it may come back
    assert away.asked == 1
