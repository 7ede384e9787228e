"""`anytimecl serve` and `anytimecl watch`, as far as they need no process of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.backbone import tiny
from tests.serve.conftest import png, running
from typer.testing import CliRunner, Result

from anytimecl.cli import app
from anytimecl.codec import ImageBytes
from anytimecl.commands.watch import Watcher
from anytimecl.memory import open_memory
from anytimecl.serve.tokens import AccessTokens

Run = Callable[..., Result]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.clip(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def put(folder: Path, name: str, number: int) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(png(number))
    return file


def test_serve_refuses_strangers_before_it_loads_anything(run: Run) -> None:
    result = run("serve", "--memory", "memory", "--host", "0.0.0.0")
    assert result.exit_code == 2
    assert "no token is set" in result.output
    assert not Path("memory").exists()


def test_serve_tells_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = run("serve", "--memory", "memory")
    assert result.exit_code == 2
    told = " ".join(result.output.split())
    assert "needs uvicorn: pip install -c constraints.txt '.[serve]'" in told


def test_serve_tells_of_wrong_tokens(run: Run) -> None:
    Path("tokens").write_text("write short\n")
    result = run("serve", "--memory", "memory", "--tokens", "tokens")
    assert result.exit_code == 2
    assert "at least 16" in result.output


def test_watch_learns_what_lies_there(run: Run, model: Path) -> None:
    put(Path("in"), "cat/1.png", 1)
    put(Path("in"), "tabby cat/2.png", 2)
    put(Path("in"), "loose.png", 3)
    (Path("in") / "cat" / "broken.png").write_bytes(b"no image")
    words = ("watch", "in", "--memory", "memory", "--model", model, "--every", "0.05", "--once")
    result = run(*words)
    assert result.exit_code == 0, result.output
    assert "learned 1: cat/1.png as cat" in result.output
    assert "learned 2: tabby cat/2.png as tabby cat" in result.output
    assert "not learned" in result.output
    assert "loose" not in result.output
    again = run(*words)
    assert "known 1: cat/1.png as cat" in again.output
    with open_memory(Path("memory"), read_only=True) as memory:
        assert memory.labels() == {"cat": 1, "tabby cat": 1}


def test_watch_and_learn_know_each_other_s_files(run: Run, model: Path) -> None:
    put(Path("in"), "cat/1.png", 1)
    run("learn", "in", "--memory", "memory", "--model", model)
    result = run("watch", "in", "--memory", "memory", "--every", "0.05", "--once")
    assert "known 1: cat/1.png as cat" in result.output


def test_watch_needs_one_to_teach(run: Run) -> None:
    Path("in").mkdir()
    assert run("watch", "in").exit_code == 2
    assert run("watch", "in", "--memory", "m", "--url", "http://localhost").exit_code == 2


def test_watch_teaches_a_service(run: Run) -> None:
    put(Path("in"), "cat/1.png", 1)
    with running(None, AccessTokens({})) as server:
        result = run("watch", "in", "--url", server.url, "--every", "0.05", "--once")
        assert result.exit_code == 0, result.output
        assert server.engine.classifier.memory.labels() == {"cat": 1}


class Notes:
    """A teacher that writes down what it is given."""

    def __init__(self) -> None:
        self.lessons: list[tuple[str, str]] = []
        self.keys: set[str] = set()

    def __call__(self, ref: object, label: str, key: str) -> tuple[int, bool]:
        known = key in self.keys
        self.keys.add(key)
        self.lessons.append((ref.name, label))  # type: ignore[attr-defined]
        return len(self.lessons), known


def test_a_file_is_learned_when_it_stands_still(tmp_path: Path) -> None:
    notes = Notes()
    watcher = Watcher(tmp_path, notes)
    file = put(tmp_path, "cat/1.png", 1)
    assert list(watcher.look()) == []  # it may still be arriving
    file.write_bytes(png(1) + b"more")
    assert list(watcher.look()) == []
    assert list(watcher.look()) == ["learned 1: cat/1.png as cat"]
    assert list(watcher.look()) == []
    assert not watcher.waiting


def test_a_file_that_moves_on_is_learned_again_as_the_other(tmp_path: Path) -> None:
    notes = Notes()
    watcher = Watcher(tmp_path, notes)
    file = put(tmp_path, "cat/1.png", 1)
    (tmp_path / "dog").mkdir()
    for _ in range(2):
        list(watcher.look())
    file.rename(tmp_path / "dog" / "1.png")
    for _ in range(2):
        list(watcher.look())
    assert notes.lessons == [("cat/1.png", "cat"), ("dog/1.png", "dog")]


def test_a_file_that_is_replaced_is_learned_again(tmp_path: Path) -> None:
    notes = Notes()
    watcher = Watcher(tmp_path, notes)
    for number in (1, 2):
        put(tmp_path, "cat/1.png", number)
        for _ in range(2):
            list(watcher.look())
    assert len(notes.keys) == 2


def test_watch_stores_files_as_they_are_and_where_they_lie(run: Run, model: Path) -> None:
    file = put(Path("in"), "cat/1.png", 1)
    file.write_bytes(file.read_bytes() + b"more")
    put(Path("new"), "cat/0.png", 0)
    run("learn", "new", "--memory", "memory", "--model", model, "--codec", "image")
    result = run("watch", "in", "--memory", "memory", "--every", "0.05", "--once")
    assert result.exit_code == 0, result.output
    with open_memory(Path("memory"), read_only=True) as memory:
        [(_, row)] = memory.rows([2])
    assert row.source == str(file)
    assert ImageBytes().images([row.record]) == [file.read_bytes()]


def test_a_config_with_a_byte_order_mark_is_read(run: Run) -> None:
    Path("serve.toml").write_bytes(b"\xef\xbb\xbfport = 9000\n")
    result = run("serve", "--config", "serve.toml", "--memory", "m", "--show-config")
    assert "port = 9000  # file" in result.stdout
