"""A power cut takes what is not on the disk; what a tree has acknowledged is on the disk."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import helpers
from tests.scale.power_worker import IMAGE

from anytimecl.scale.leaf_host import LeafHost, write_tail
from anytimecl.scale.leaves import Here
from anytimecl.scale.tree import TreeClassifier

ROOT = Path(__file__).parents[2]
COUNT = 20
FULL, NORMAL = 2, 1  # as SQLite's `PRAGMA synchronous` has them


def alone(*code: str) -> subprocess.CompletedProcess[str]:
    """With mounts of its own, which end with it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        ["unshare", "-m", *code], capture_output=True, text=True, cwd=ROOT, env=environment
    )


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder with the image of a small, empty ext4."""
    with (tmp_path / IMAGE).open("wb") as file:
        file.truncate(16 << 20)
    if not shutil.which("unshare") or not shutil.which("mkfs.ext4"):
        pytest.skip("NO DISK: unshare and mkfs.ext4 are needed")
    subprocess.run(["mkfs.ext4", "-q", tmp_path / IMAGE], check=True)
    (tmp_path / "try").mkdir()
    if alone("mount", "-o", "loop", str(tmp_path / IMAGE), str(tmp_path / "try")).returncode:
        pytest.skip("NO DISK: a loop device cannot be mounted here")
    return tmp_path


def cuts(disk: Path, durability: str) -> list[tuple[int, int, str]]:
    """What each power cut left: [acknowledged, lost, what was said]."""
    worker = sys.executable, "-m", "tests.scale.power_worker"
    learned = alone(*worker, "learn", str(disk), durability, str(COUNT))
    assert learned.returncode == 0, learned.stderr
    checked = alone(*worker, "check", str(disk))
    assert checked.returncode == 0, checked.stderr
    return [json.loads(line) for line in checked.stdout.splitlines()]


@pytest.mark.e2e
def test_a_power_cut_loses_nothing_acknowledged(disk: Path) -> None:
    found = cuts(disk, "full")
    assert {acknowledged for acknowledged, _, _ in found} == set(range(1, COUNT + 1))
    assert len(found) > COUNT + 10  # in splits, too
    assert [one for one in found if one[1]] == []


@pytest.mark.e2e
def test_the_same_cuts_do_lose_lessons_that_only_the_process_keeps(disk: Path) -> None:
    """Or the test above would show nothing."""
    found = cuts(disk, "process")
    assert sum(lost for _, lost, _ in found) > COUNT


def test_leaves_wait_for_the_disk_unless_told_otherwise(tmp_path: Path) -> None:
    def synchronous(leaf: Any) -> int:
        return int(leaf.memory.db.execute("PRAGMA synchronous").fetchone()[0])

    options: dict[str, Any] = {"model": helpers.model(), "settings": helpers.settings()}
    with TreeClassifier.open(tmp_path, **options) as tree:
        assert isinstance(tree.leaves, Here)
        assert synchronous(tree.leaves._use(0)) == FULL
    model, settings = helpers.model(), helpers.settings()
    write_tail(model, tmp_path)
    for given, expected in (((), FULL), (("process",), NORMAL)):
        host = LeafHost(str(tmp_path), 0, model.spec.to_dict(), settings.to_json(), *given)
        assert synchronous(host._leaf) == expected
        host._leaf.close()
    here = Here(tmp_path, model, settings, durability="process")
    here.start([0])
    assert synchronous(here._use(0)) == NORMAL
    here.close()
