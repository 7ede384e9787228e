"""What the pages say of commands and of Python: it is there, and it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import PIL.Image
import pytest
import typer

from anytimecl.cli import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(found: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    """Every command and group, with its options."""
    options = {name for each in found.params for name in (*each.opts, *each.secondary_opts)}
    yield " ".join(path), options | {"--help"}
    if isinstance(found, click.Group):
        for name, inner in found.commands.items():
            yield from commands(inner, (*path, name))


OPTIONS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_options_of_a_command_are_its_own(page: Path) -> None:
    for call in re.findall(r"\banytimecl ((?:--import \S+ )?[a-z][^`\n#|]*)", page.read_text()):
        words = re.sub(r"^--import \S+ ", "", call).split()
        path = next((n for n in (2, 1) if " ".join(words[:n]) in OPTIONS), 0)
        if path:  # else a sentence about the project, or an import
            named = set(re.findall(r"(?<!\S)\[?(--[a-z][a-z0-9-]*)", " ".join(words[path:])))
            assert named <= OPTIONS[" ".join(words[:path])], call


def test_the_page_of_the_command_line_has_every_command() -> None:
    first, *_ = (ROOT / "docs/cli.md").read_text().split("\n## ")
    rows = [line for line in first.splitlines() if line.startswith("| [`") or "`version`" in line]
    told = set(re.findall(r"`([a-z-]+)`", " ".join(rows)))
    assert {word for name in OPTIONS for word in name.split()} <= told


@pytest.mark.real
@pytest.mark.parametrize("page", ["README.md", "docs/adapters.md", "docs/curation.md"])
def test_python_on_a_page_runs(
    page: str, embedded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its blocks, one after the other, in a folder with the pictures they name."""
    from anytimecl import AnytimeClassifier

    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(0)
    paths = [f"{name}.jpg" for name in "abcdefghijkl"]
    for path in paths:
        PIL.Image.fromarray(noise.integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    labels = ["cat", "dog"] * 6
    pairs = list(zip(paths, labels, strict=True))
    known: dict[str, Any] = {"paths": paths, "labels": labels, "pairs": pairs}
    if page == "docs/curation.md":  # it is about a memory that has learned
        known["clf"] = AnytimeClassifier.open(model=embedded)
        taught = zip(paths, ["llama", "okapis", "zebu", "cow"], strict=False)
        known["clf"].learn_many(list(taught))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), known)
    for name in ("clf", "estimator", "model"):
        if name in known:
            known[name].close()
