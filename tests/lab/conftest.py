"""Small data sets in the layout of the large ones, and a tiny model."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.backbone import tiny

COLOURS = {
    "pets": {"cat": (200, 60, 40), "dog": (40, 180, 60), "great white shark": (40, 60, 200)},
    "places": {"cat": (120, 120, 30), "tabby": (20, 20, 20)},  # "cat" is in both
    "novel": {"golden retriever": (220, 220, 40), "dog": (0, 90, 0), "white": (250, 250, 250)},
}
TRAIN, TEST = 5, 3  # images of each class


def fill(folder: Path, task: str, *, train: bool = True) -> Path:
    """<split>/<class>/<file>: colours and noise."""
    random = np.random.default_rng(len(task))
    for label, colour in COLOURS[task].items():
        for number in range(TRAIN * train + TEST):
            noise = random.integers(-40, 40, (20, 20, 3))
            split = "train" if train and number < TRAIN else "test"
            file = folder / task / split / label / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(file)
    return folder / task


def zipped(folder: Path) -> Path:
    """The same as a zip beside it; the folder goes."""
    file = folder.with_suffix(".zip")
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.rglob("*.png")):
            archive.write(path, path.relative_to(folder))
    return file


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random CLIP."""
    return tiny.clip(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data sets: one folder, one zip, and one without training images."""
    folder = tmp_path_factory.mktemp("data")
    fill(folder, "pets")
    zipped(fill(tmp_path_factory.mktemp("zip"), "places")).rename(folder / "places.zip")
    fill(folder, "novel", train=False)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A cache folder of its own for each test, but not for tests of the real model."""
    if request.node.get_closest_marker("real") is None:
        monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))


RECIPE = """
title = "A small one"
scenario = "{scenario}"
tasks = ["pets", "places"]
seeds = [0, 1]
backbone = "{model}"
{more}

[[methods]]
name = "original model"
method = "original"

[[methods]]
name = "AnytimeCL"
method = "online"
options = {{ batch = 4 }}

[[methods]]
name = "linear probe (AIM)"
method = "linear-probe"
"""


def write_recipe(folder: Path, model: Path, scenario: str, more: str = "") -> Path:
    """A recipe for the small data sets."""
    file = folder / f"{scenario.replace('-', '_')}.toml"
    file.write_text(RECIPE.format(scenario=scenario, model=model, more=more))
    return file
