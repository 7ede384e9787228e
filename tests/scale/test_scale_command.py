"""`anytimecl scale up` hands on what it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from anytimecl import cli
from anytimecl.errors import AnytimeError
from anytimecl.scale import router
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
