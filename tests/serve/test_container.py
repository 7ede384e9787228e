"""The container file and the service unit: linted, and true to the program."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anytimecl.cli import app

ROOT = Path(__file__).resolve().parents[2]
CONTAINER = ROOT / "Containerfile"
DOCUMENT = ROOT / "docs" / "serve.md"


@pytest.fixture(scope="module")
def options() -> set[str]:
    """Every option that `anytimecl serve` has."""
    result = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    return set(re.findall(r"--[a-z-]+", result.output))


def test_the_linter_finds_nothing() -> None:
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("NO HADOLINT: there is no build of it for this system")
    done = subprocess.run([linter, str(CONTAINER)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_it_runs_as_nobody_special_and_holds_no_secret() -> None:
    text = CONTAINER.read_text()
    steps = re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)
    assert steps.index(("USER", "10001")) > [name for name, _ in steps].index("RUN")
    assert not re.search(r"^(ENV|ARG).*(TOKEN|KEY|SECRET)", text, re.MULTILINE)
    assert "HEALTHCHECK" in text


def test_the_container_starts_what_there_is(options: set[str]) -> None:
    found = re.search(r"^ENTRYPOINT (.*)$", CONTAINER.read_text(), re.MULTILINE)
    assert found
    words = json.loads(found[1])  # a list: a shell in between would not pass signals on
    assert words[:2] == ["anytimecl", "serve"]
    assert {word for word in words if word.startswith("--")} <= options


def test_the_document_names_only_options_that_there_are(options: set[str]) -> None:
    lines = [line for line in DOCUMENT.read_text().splitlines() if "anytimecl serve" in line]
    assert len(lines) >= 3
    for line in lines:
        assert set(re.findall(r" (--[a-z-]+)", line)) <= options, line
