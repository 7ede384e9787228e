"""The files that tools and people read beside the code, and that they name what exists."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def parsed(name: str) -> dict[str, Any]:
    # Not safe_load: YAML 1.1 reads the key `on` as true, and a version as a number.
    found = yaml.load((ROOT / name).read_text(), Loader=yaml.BaseLoader)
    assert isinstance(found, dict)
    return found


def make_dry_run(command: str) -> str:
    """What a `make` command would run, without running it."""
    words = command.split()
    assert words[0] == "make"
    done = subprocess.run(
        [*words, "--dry-run", "--assume-old=.venv/.installed"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    cited = parsed("CITATION.cff")
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= cited.keys()  # what the format requires
    assert cited["type"] == "software"
    for field, key in (("title", "name"), ("version", "version"), ("license", "license")):
        assert cited[field] == PROJECT[key]
    assert cited["keywords"] == PROJECT["keywords"]
    assert cited["abstract"].rstrip(".") == PROJECT["description"]


def test_the_preferred_citation_is_the_paper_that_the_readme_names() -> None:
    paper = parsed("CITATION.cff")["preferred-citation"]
    assert paper["type"] == "conference-paper"
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert paper["title"] in readme
    authors = [author["family-names"] for author in paper["authors"]]
    assert f"{authors[0]}, {authors[1]} and {authors[2]}, ECCV {paper['year']}" in readme
    assert all(author["given-names"] for author in paper["authors"])


def test_the_security_policy_points_at_what_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    named = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r"`((?:src|docs)/[^`]+)`", text)
    assert len(named) > 5
    for name in named:
        assert (ROOT / name).exists(), name


def test_hooks_are_local_and_run_the_projects_own_tools() -> None:
    config = parsed(".pre-commit-config.yaml")
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    assert {hook["language"] for hook in hooks} == {"system"}  # nothing is installed for them
    for hook in hooks:
        pattern = re.compile(hook["files"])
        assert pattern.search("src/anytimecl/cli.py")
        assert pattern.search("pyproject.toml")
        assert not pattern.search("docs/index.md")
    runs = "".join(make_dry_run(hook["entry"]) for hook in hooks)
    for tool in ("ruff check", "ruff format --check", "mypy"):
        assert tool in runs


def test_the_workflow_runs_what_every_change_must_pass() -> None:
    workflow = parsed(".github/workflows/ci.yml")
    assert {"push", "pull_request"} <= workflow["on"].keys()
    assert workflow["permissions"] == {"contents": "read"}
    [job] = workflow["jobs"].values()
    wanted = PROJECT["requires-python"].removeprefix(">=")
    assert job["container"].startswith(f"python:{wanted}-")
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert runs == [".ci/run"]
    assert os.access(ROOT / runs[0], os.X_OK)
    for line in (ROOT / runs[0]).read_text().splitlines():
        if line.startswith("make "):
            make_dry_run(line)
