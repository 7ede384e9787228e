"""The quick recipe, as a person runs it, on the embedded model."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from anytimecl_lab.recipe import read_recipe
from anytimecl_lab.results import read_lines

RECIPES = Path(__file__).parents[2] / "recipes" / "paper"
QUICK = RECIPES / "quick.toml"
COLOURS = ("red", "green", "blue", "yellow", "black", "white")
# Seconds of processors. Quick is five minutes of two, and up to twice that where others use them.
LIMIT = 1200


def test_every_recipe_can_be_read() -> None:
    for file in sorted(RECIPES.glob("*.toml")):
        if file.name != "groups.toml":
            for group in ("subsets", "paper"):
                assert read_recipe(file, group).methods


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """The real subsets where they are; else pictures made up in their layout."""
    chosen = os.environ.get("ANYTIMECL_DATA")
    folder = Path(chosen) if chosen else RECIPES.parents[2] / "shared" / "data"
    if folder.is_dir():
        return folder
    random = np.random.default_rng(0)
    for task, colours in (("pets", COLOURS), ("resisc12", COLOURS[:4])):
        for colour in colours:
            for number in range(8):
                noise = random.integers(-30, 30, (48, 48, 3))
                picture = np.array(ImageColor.getrgb(colour)) + noise
                split = "train" if number < 5 else "test"
                file = tmp_path / task / split / colour / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(file)
    return tmp_path


@pytest.mark.e2e
@pytest.mark.real
def test_the_quick_recipe_ends_in_a_report(images: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "anytimecl.cli", "bench"]
    out = tmp_path / "results.jsonl"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for words in (
        ["run", str(QUICK), "--data", str(images), "--out", str(out)],
        ["report", str(out), "--out", str(tmp_path)],
    ):
        done = subprocess.run([*program, *words], capture_output=True, text=True, timeout=6 * LIMIT)
        assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < LIMIT
    lines = read_lines(out)
    assert len(lines) == len(read_recipe(QUICK).methods) * 2
    last = {
        (line["name"], line["subject"]): next(
            iter(line["results"][-1]["answers"]["task"].values())
        )[line["reading"]]
        for line in lines
    }
    for task in ("pets", "resisc12"):
        gain = last["AnytimeCL", task] - last["original model", task]
        assert gain >= 0
        assert gain > 0 or images == tmp_path  # colours are known from the start
    assert "AnytimeCL" in (tmp_path / "report.md").read_text()
    assert "<svg" in (tmp_path / "report.html").read_text()
