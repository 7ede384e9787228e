"""`anytimecl scale up` hands on what it is told."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from anytimecl import cli
from anytimecl.errors import AnytimeError
from anytimecl.scale import router
from anytimecl.scale.leaf_host import connect_ray
from anytimecl.scale.leaves import Health
from anytimecl.scale.serving import on_serve


class Started(Exception):
    pass


@pytest.mark.parametrize(
    ("words", "durability", "accept_loss"),
    [([], "full", False), (["--durability", "process", "--accept-loss"], "process", True)],
)
def test_durability_is_full_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, words: list[str], durability: str, accept_loss: bool
) -> None:
    heard: dict[str, Any] = {}

    def up(folder: object, **options: Any) -> None:
        heard.update(options)
        raise Started

    monkeypatch.setattr(router, "up", up)
    with pytest.raises(Started):
        run(["up", "--memory", "tree", *words])
    assert (heard["durability"], heard["accept_loss"]) == (durability, accept_loss)


def test_another_durability_is_refused() -> None:
    done = CliRunner().invoke(cli.app, ["scale", "up", "--memory", "t", "--durability", "some"])
    assert done.exit_code == 2


def test_a_tree_that_runs_already_is_watched_if_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Running:
        labels = ("cat",)

        def __len__(self) -> int:
            return 7

        def health(self) -> list[Health]:
            return [Health(3, alive=True, node="n" * 20, pending=0, restarts=2)]

    def up(*_: object, **__: object) -> None:
        raise router.AlreadyUp("A tree runs on this cluster already.")

    monkeypatch.setattr(router, "up", up)
    monkeypatch.setattr(router, "connect", lambda address: Running())
    words = ["--debug", "scale", "up", "--memory", "tree", "--once"]
    with pytest.raises(router.AlreadyUp):
        CliRunner().invoke(cli.app, words, catch_exceptions=False)
    told = CliRunner().invoke(cli.app, [*words, "--watch"], catch_exceptions=False).output
    assert told.startswith("7 examples of 1 labels\nleaf 3: up on nnnnnnnn, 0 waiting, restarted 2")


def test_predictions_are_served_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: dict[str, Any] = {}
    monkeypatch.setattr(on_serve, "serve_memory", lambda memory, **told: heard.update(told))
    words = [
        "serve",
        "--memory",
        "m",
        "--encoders",
        "1:8",
        "--threads",
        "2",
        "--gpus",
        "1",
        "--once",
    ]
    run(words)
    assert (heard["encoders"], heard["threads"], heard["encoder_cpus"]) == ("1:8", 2, 2)
    assert (heard["encoder_gpus"], heard["host"]) == (1, "127.0.0.1")


def test_a_service_that_others_reach_needs_tokens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("READ", "WRITE", "ADMIN"):
        monkeypatch.delenv(f"ANYTIMECL_{name}_TOKEN", raising=False)
    with pytest.raises(AnytimeError, match="no token is set"):
        on_serve.serve_memory(tmp_path, host="0.0.0.0")


def run(words: list[str]) -> None:
    CliRunner().invoke(cli.app, ["--debug", "scale", *words], catch_exceptions=False)


def test_what_cannot_be_served_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray.serve")
    monkeypatch.setattr(on_serve, "connect_ray", None)
    with pytest.raises(AnytimeError, match=f"no memory in {tmp_path}"):
        on_serve.serve_memory(tmp_path)
    with pytest.raises(AnytimeError, match=r"number of replicas.*'0'"):
        on_serve.serve_memory(tmp_path, encoders="0")


def test_a_door_that_nobody_opens_is_told_at_once() -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{door.getsockname()[1]}"
        ray = SimpleNamespace(is_initialized=lambda: False)  # which would look for minutes
        with pytest.raises(AnytimeError, match=f"no Ray cluster at '{address}'.*refused"):
            connect_ray(ray, address)
