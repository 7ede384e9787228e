"""Whole programs: a server in a process of its own, and Debian's Chromium."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

COMMAND = (sys.executable, "-W", "error::UserWarning", "-m", "anytimecl.cli", "serve")


class Server:
    """`anytimecl serve`, and where it listens."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.told: list[str] = []
        listening = threading.Event()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                self.told.append(line)
                if "served on" in line:
                    listening.set()
            listening.set()

        self._reader = threading.Thread(target=read, daemon=True)
        self._reader.start()
        assert listening.wait(180), self.told
        found = re.search(r"served on (http://\S+)", "".join(self.told))
        assert found, self.told
        self.url = found[1]

    def end(self, number: int) -> str:
        """Send a signal, wait, and return all that it said."""
        self.process.send_signal(number)
        self.process.wait(120)
        self._reader.join(30)
        return "".join(self.told)


Serve = Callable[..., Server]


@contextmanager
def serving(folder: Path) -> Iterator[Serve]:
    """What starts servers in a folder; they are gone when this ends."""
    with ExitStack() as started:

        def begin(*words: object, env: dict[str, str] | None = None) -> Server:
            process = subprocess.Popen(
                [*COMMAND, "--port", "0", *map(str, words)],
                cwd=folder,
                env={**os.environ, **(env or {})},
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            started.enter_context(process)
            started.callback(process.kill)  # before it is waited for
            return Server(process)

        yield begin


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a server; it is gone when the test is."""
    with serving(tmp_path) as begin:
        yield begin


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on a tiny random model, for all tests of a file."""
    from tests.backbone import tiny

    folder = tmp_path_factory.mktemp("tiny")
    with serving(folder) as begin:
        yield begin("--memory", "memory", "--model", tiny.clip(folder / "model"))


@contextmanager
def launched() -> Iterator[Any]:
    """Debian's Chromium. Where there is none the tests fail: they never pass by not running."""
    found = shutil.which("chromium")
    if found is None:
        pytest.fail(
            "There is no chromium. As root: apt-get install chromium; `make test-e2e` does that "
            "by itself where it may."
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        options += ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        started = playwright.chromium.launch(executable_path=found, args=options, timeout=120_000)
        yield started
        started.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One for all tests."""
    with launched() as started:
        yield started


@pytest.fixture(scope="session")
def photos() -> Path:
    """Two photographs that come with scikit-learn: china.jpg and flower.jpg."""
    import sklearn.datasets

    return Path(sklearn.datasets.__file__).parent / "images"
