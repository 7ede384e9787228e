"""The notebooks run from top to bottom, and show what they print."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))

pytestmark = [pytest.mark.real, pytest.mark.e2e]


def test_there_are_the_three_that_the_pages_name() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"first-steps", "correcting", "method"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """`ANYTIMECL_WRITE_NOTEBOOKS=1` also keeps what they print, for the site."""
    notebook = nbformat.read(path, as_version=4)
    stored = [bool(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
    run = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=run, record_timing=False).execute()
    if os.environ.get("ANYTIMECL_WRITE_NOTEBOOKS"):
        nbformat.write(notebook, path)
    else:
        made = [bool(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
        assert made == stored  # what the site shows was printed by this code
