"""The library stands without the lab: its package is taken away, and all else works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
AWAY = "import sys; sys.modules['anytimecl_lab'] = None\n"  # as if its folder were not there


def apart(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", AWAY + code], cwd=ROOT, capture_output=True, text=True
    )


def test_every_module_of_the_library_imports_without_the_lab() -> None:
    code = """
import importlib, pkgutil, anytimecl
missing = []
for found in pkgutil.walk_packages(anytimecl.__path__, "anytimecl."):
    if found.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        missing.append((found.name, error.name))
print([name for name, what in missing if what.startswith("anytimecl")])
"""
    done = apart(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_library_learns_and_answers_without_the_lab() -> None:
    code = """
from tests.helpers import picture, taught
print(taught(range(3)).predict(picture(0), ["cat", "dog"]).label)
"""
    done = apart(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("cat", "dog")
    assert "ModuleNotFoundError" in apart("import anytimecl_lab").stderr  # it is away indeed


def test_the_command_line_says_what_is_missing() -> None:
    done = apart("from anytimecl.cli import app; app(['bench', 'report'])")
    assert done.returncode == 2
    assert "anytimecl_lab" in done.stderr
    assert ".[bench]" in done.stderr
