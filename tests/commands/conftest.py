"""A tiny model, a few pictures, and the program."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.backbone import tiny
from typer.testing import CliRunner, Result

from anytimecl.cli import app

Run = Callable[..., Result]
COLOURS = {"cat": (200, 60, 40), "dog": (40, 180, 60), "great white shark": (40, 60, 200)}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.clip(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def run(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """The program, in an empty folder."""
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    return lambda *words: runner.invoke(app, [str(word) for word in words])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """<split>/<class>/<file>: four to learn and one to test of each class, all different."""
    folder = tmp_path / "photos"
    random = np.random.default_rng(0)
    for label, colour in COLOURS.items():
        for number in range(5):
            noise = random.integers(-40, 40, (24, 24, 3))
            file = folder / ("test" if number == 4 else "train") / label / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((np.array(colour) + noise).astype(np.uint8)).save(file)
    return folder


@pytest.fixture
def learned(run: Run, photos: Path, model: Path) -> Path:
    """A memory of the twelve pictures to learn."""
    result = run("learn", photos, "--memory", "memory", "--model", model, "--no-shuffle")
    assert result.exit_code == 0, result.output
    return photos.parent / "memory"


def zipped(folder: Path) -> Path:
    file = folder.with_suffix(".zip")
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.rglob("*.png")):
            archive.write(path, path.relative_to(folder))
    return file
