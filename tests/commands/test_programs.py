"""The program as people run it: as a process of its own, interrupted, killed, side by side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from anytimecl import cli
from anytimecl.errors import StoreError
from anytimecl.memory import open_memory

Start = Callable[..., subprocess.Popen[str]]
COMMAND = (sys.executable, "-W", "error::UserWarning", "-m", "anytimecl.cli")


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    """More pictures than are learned in a second."""
    random = np.random.default_rng(0)
    for number in range(400):
        file = tmp_path / "stream" / ("cat", "dog")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(file)
    return tmp_path / "stream"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with ExitStack() as started:

        def begin(*words: object) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [*COMMAND, *map(str, words)],
                cwd=tmp_path,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            started.enter_context(process)
            started.callback(process.kill)  # before it is waited for
            return process

        yield begin


def stored(memory: Path) -> int:
    with open_memory(memory, read_only=True) as store:
        return len(store)


def wait_for(process: subprocess.Popen[str], memory: Path, count: int) -> None:
    """Until that many are stored."""
    while process.poll() is None:
        with suppress(StoreError):  # it is yet to be made
            if stored(memory) >= count:
                return
        time.sleep(0.05)
    pytest.fail(process.communicate()[1])


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_in_any_way_it_goes_on_where_it_was(
    start: Start,
    stream: Path,
    model: Path,
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    words = ("learn", stream, "--memory", "memory", "--model", model, "--shuffle")
    first = start(*words)
    wait_for(first, tmp_path / "memory", 20)
    first.send_signal(number)
    out, told = first.communicate(timeout=300)
    kept = stored(tmp_path / "memory")
    assert 20 <= kept < 400
    if number == signal.SIGINT:
        assert first.returncode == 130, told
        assert f"Stopped after {kept} of 400 images" in told
        assert "Traceback" not in told
        assert f"learned    {kept} images" in out
    second = start(*words)
    out, told = second.communicate(timeout=300)
    assert second.returncode == 0, told
    assert f"{kept} that were learned before" in out
    assert stored(tmp_path / "memory") == 400


@pytest.mark.e2e
def test_predicts_while_another_process_learns(
    start: Start, stream: Path, model: Path, tmp_path: Path
) -> None:
    learner = start("learn", stream, "--memory", "memory", "--model", model, "--shuffle")
    wait_for(learner, tmp_path / "memory", 20)
    predictor = start("predict", stream / "cat/0.png", "--memory", "memory", "--json")
    out, told = predictor.communicate(timeout=300)
    assert predictor.returncode == 0, told
    assert json.loads(out)["label"] in ("cat", "dog")
    second = start("learn", stream, "--memory", "memory")
    _, told = second.communicate(timeout=300)
    if learner.poll() is None:  # it still owns the memory
        assert second.returncode == 2
        assert f"in use by process {learner.pid}" in told
    _, told = learner.communicate(timeout=300)
    assert learner.returncode == 0, told


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform == "win32", reason="this system has no terminals of this kind")
def test_a_terminal_gets_a_bar_that_fits(stream: Path, model: Path, tmp_path: Path) -> None:
    import pty

    lead, follow = pty.openpty()
    os.set_blocking(lead, False)
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm", "ANYTIMECL_CACHE": str(tmp_path)}
    words = ("learn", stream, "--memory", "memory", "--model", model, "--limit", "60")
    with subprocess.Popen(
        [*COMMAND, *map(str, words)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=follow,
    ) as learner:
        os.close(follow)
        seen = b""
        while learner.poll() is None:
            time.sleep(0.02)
            with suppress(OSError):  # nothing to read yet
                seen += os.read(lead, 1 << 16)
        out = learner.stdout.read() if learner.stdout else b""
    os.close(lead)
    assert learner.returncode == 0
    assert b"learned    60 images" in out
    assert b"\x1b" not in out  # stdout is no terminal
    assert b"right" in seen
    assert "…" not in seen.decode()  # nothing had to be cut


def test_a_warning_is_one_line_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(name: str) -> str:
        warnings.warn("something stored is damaged", UserWarning, stacklevel=1)
        return "1.0"

    monkeypatch.setattr(cli, "installed_version", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = CliRunner().invoke(cli.app, ["version"])
    assert result.stdout == "1.0\n"
    assert result.stderr == "Warning: something stored is damaged\n"
