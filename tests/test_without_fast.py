"""The package `fast` may be moved away: the core needs nothing of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "anytimecl"

# As if the folder were not there.
HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] == ["anytimecl", "fast"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name="anytimecl.fast")

sys.meta_path.insert(0, Hidden())
import pytest
code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[1:]])
from anytimecl.acceleration import OnlineLearner
from anytimecl.learner import Learner
assert OnlineLearner is Learner and not any("anytimecl.fast" in name for name in sys.modules)
sys.exit(code)
"""
CHOSEN = [
    "tests/test_trainer.py::test_a_trainer_is_the_method_line_by_line",
    "tests/test_trainer.py::test_a_replayed_journal_gives_the_same_trainer",
    "tests/test_stream.py::test_a_stream_is_its_examples_one_by_one",
    "tests/test_classifier.py::test_an_interrupted_lesson_is_made_up_for",
]


def test_the_core_learns_without_the_fast_package() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN, *CHOSEN], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "passed" in done.stdout


def test_no_private_function_of_torch_is_called_elsewhere() -> None:
    private = ("torch._", "from torch import _", "mkldnn._", "aten._")
    for path in SOURCE.rglob("*.py"):
        if path.is_relative_to(SOURCE / "fast"):
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            found = [word for word in private if word in line.replace('"torch._utils"', "")]
            allowed = "torch.__version__" in line or "torch._utils._rebuild_tensor_v2" in line
            assert not found or allowed, f"{path}: {line}"
