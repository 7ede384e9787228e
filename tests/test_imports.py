"""What importing the package may and may not do, and which room may import which."""

from __future__ import annotations

import json
import logging.config
import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parents[1]

# Extras, and what only some commands draw or load with.
LATE = {"datasets", "fastapi", "matplotlib", "pandas", "pyarrow", "ray", "river"}
LATE |= {"sklearn", "torchmetrics", "transformers", "uvicorn"}

# Runs apart from this process, which has long imported everything and may be online.
WATCHED_IMPORT = """
import json, sys
talked = []
sys.addaudithook(
    lambda event, args: talked.append(event)
    if event in {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname"} else None
)
import {module}
print(json.dumps([sorted({name.split(".")[0] for name in sys.modules}), talked]))
"""


def watched_import(module: str) -> tuple[set[str], list[str]]:
    """The top-level packages that importing `module` loads, and the network calls it makes."""
    code = WATCHED_IMPORT.replace("{module}", module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded, talked = json.loads(done.stdout)
    return set(loaded), talked


def test_imports_point_backwards(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))  # the linter adds to it
    # It would silence every logger of this process for the tests that come after.
    monkeypatch.setattr(logging.config, "dictConfig", lambda config: None)
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "banned"), [("anytimecl", LATE), ("anytimecl.cli", LATE | {"torch"})]
)
def test_import_is_offline_and_light(module: str, banned: set[str]) -> None:
    loaded, talked = watched_import(module)
    assert not talked
    assert not loaded & banned


def test_watched_import_sees_network_and_packages() -> None:
    loaded, _ = watched_import("matplotlib")
    assert loaded & LATE
    _, talked = watched_import("socket; socket.gethostbyname('localhost')")
    assert talked
