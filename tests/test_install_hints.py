"""Whoever reads how to install an extra has a checkout: the lock and the folder, not an index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_pages_say_to_install_can_be_installed(page: Path) -> None:
    for hint in re.findall(r"pip install .*", page.read_text()):
        assert "-c constraints.txt" in hint
        for package, extras in re.findall(r"([\w.]+)\[([\w,]+)\]", hint):
            assert package == "."
            assert {*extras.split(",")} <= EXTRAS.keys()
