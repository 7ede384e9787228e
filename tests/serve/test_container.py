"""The container file and the service unit: linted, and true to the program."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from anytimecl.cli import app
from anytimecl.serve.server import GRACE

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


def test_the_unit_starts_what_there_is(options: set[str]) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "anytimecl.service")
    service = unit["Service"]
    words = service["ExecStart"].split()
    assert words[0].endswith("/anytimecl")
    assert words[1] == "serve"
    assert {word for word in words if word.startswith("--")} <= options
    assert int(service["TimeoutStopSec"]) > GRACE  # what was begun is answered first
    assert "-HUP" in service["ExecReload"]


def test_settings_of_the_environment_are_known() -> None:
    known = {option.envvar for option in get_command(app).commands["serve"].params}  # type: ignore[attr-defined]
    for name in ("anytimecl.service", "compose.yaml", "docs/serve.md"):
        found = re.findall(r"\bANYTIMECL_SERVE_[A-Z_]*[A-Z]", (ROOT / name).read_text())
        assert found, name
        assert set(found) <= known, name


def test_the_compose_file_starts_what_there_is(options: set[str]) -> None:
    told = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["anytimecl"]
    assert {word for word in told["command"] if word.startswith("--")} <= options
    assert told["volumes"] == ["memory:/memory"]
    assert told["build"]["dockerfile"] == CONTAINER.name
    assert all(port.startswith("127.0.0.1:") for port in told["ports"])
