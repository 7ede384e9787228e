"""A machine that only runs recipes: the packages that docs/bench.md names, and no others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.lab.conftest import write_recipe

from anytimecl_lab.results import read_lines

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "bench.md"

# As if nothing were installed but the packages that are named, and what they need in turn.
BARE = """
import sys
from importlib import metadata
from importlib.machinery import PathFinder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name as plain

there, todo = set(), sys.argv.pop(1).split(",")
while todo:
    name = plain(todo.pop())
    try:
        needed = metadata.requires(name) if name not in there else None
    except metadata.PackageNotFoundError:  # of another system, say
        continue
    there.add(name)
    for line in map(Requirement, needed or []):
        if line.marker is None or line.marker.evaluate({"extra": ""}):
            todo.append(line.name)

brought = metadata.packages_distributions()
away = {name for name, by in brought.items() if not there & set(map(plain, by))}
away -= {"anytimecl", "anytimecl_lab"}  # its folder is on the path

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in away else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
"""


def bare(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    named = re.search(r"machine that only runs needs ([\w, ]+)", PAGE.read_text())
    assert named
    return subprocess.run(
        [sys.executable, "-c", BARE + code, re.sub(r",? and |, ", ",", named[1]), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )


def test_a_bare_machine_runs_a_recipe(model: Path, data: Path, tmp_path: Path) -> None:
    recipe, out = write_recipe(tmp_path, model, "data-incremental"), tmp_path / "out.jsonl"
    done = bare(
        "from anytimecl_lab.run import main; sys.exit(main(sys.argv[1:]))",
        *(str(recipe), "--data", str(data), "--out", str(out)),
    )
    assert done.returncode == 0, done.stderr
    assert len(read_lines(out)) == 3 * 2 * 2
    for name in ("pi_heif", "onnxruntime", "sklearn"):  # they are away indeed
        assert "No module named" in bare(f"import {name}").stderr


def test_a_photograph_of_a_phone_names_the_package_that_reads_it() -> None:
    photograph = r"b'\0\0\0\x18ftypheic'"
    done = bare(f"from anytimecl.images import load_image; load_image({photograph})")
    assert "it is HEIC, which needs the package pi-heif" in done.stderr
