"""Full disks, for scripts that run apart: limits and mounts hold for a whole process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def with_limit(script: str, size: int, folder: Path) -> None:
    """Run a script whose `full` forbids files to grow beyond `size` bytes, and `room` allows it."""
    _run([sys.executable, "-c", LIMIT.format(size=size) + script, str(folder)])


def with_ballast(script: str, pages: int, folder: Path) -> None:
    """Run a script on a small disk that `full` fills but for `pages`, and `room` clears."""
    mounting = f"mount -t tmpfs -o size=4m none '{folder}'"
    alone = ["unshare", "-m", "sh", "-c"]  # a mount that ends with its process
    if (
        not shutil.which("unshare")
        or subprocess.run([*alone, mounting], capture_output=True).returncode
    ):
        pytest.skip("no small disk can be made here")
    python = f"{mounting} && exec '{sys.executable}' -c \"$0\" '{folder}'"
    _run([*alone, python, BALLAST.format(pages=pages) + script])


def _run(code: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(code, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


LIMIT = """
import resource

def full():
    resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, resource.RLIM_INFINITY))

def room():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""

BALLAST = """
import os
import sys

name = sys.argv[1] + "/ballast"

def full():
    with open(name, "wb", buffering=0) as file:
        try:
            while os.statvfs(name).f_bavail > {pages}:
                file.write(bytes(4096))
        except OSError:
            pass

def room():
    os.remove(name)
"""
