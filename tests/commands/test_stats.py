"""`anytimecl stats`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from tests.commands.conftest import Run

from anytimecl import AnytimeClassifier, LabelStats, Settings, backbone
from anytimecl.commands.stats import MOST_BARS, draw


def test_json_says_what_the_classifier_says(run: Run, learned: Path, model: Path) -> None:
    result = run("stats", "--memory", learned, "--json", "--sort", "age")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    with AnytimeClassifier.open(learned, model=model, read_only=True) as classifier:
        expected = [{"label": y, **s._asdict()} for y, s in classifier.stats().items()]
    assert told == {"examples": 12, "labels": expected}


def test_table(run: Run, learned: Path) -> None:
    result = run("stats", "--memory", learned)
    assert result.exit_code == 0
    assert "great white shark" in result.stdout
    assert result.stdout.endswith("12 examples of 3 labels\n")
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("sort", ["examples", "label", "tuned", "original", "weight"])
def test_sort(run: Run, learned: Path, photos: Path, sort: str) -> None:
    run("learn", photos, "--memory", learned, "--split", "test", "--limit", 2, "--no-shuffle")
    labels = json.loads(run("stats", "--memory", learned, "--json", "--sort", sort).stdout)
    values = [label[sort] for label in labels["labels"]]
    assert values == sorted(values, reverse=sort != "label")


def test_nothing_learned_yet(run: Run, model: Path) -> None:
    AnytimeClassifier.open("memory", model=model).close()
    result = run("stats", "--memory", "memory", "--plot", "plot.png")
    assert (result.exit_code, result.stdout) == (0, "Nothing is learned yet in memory.\n")
    assert json.loads(run("stats", "--memory", "memory", "--json").stdout)["labels"] == []


def test_a_memory_that_tunes_two_blocks_opens_by_its_own_word(run: Run, model: Path) -> None:
    deeper = backbone.load(model, tail_blocks=2)
    settings = Settings(codec="tokens-fp16")
    with AnytimeClassifier.open("memory", model=deeper, settings=settings) as classifier:
        classifier.learn_one(Image.new("RGB", (24, 24)), "dark")
    result = run("stats", "--memory", "memory")
    assert result.exit_code == 0, result.output
    assert "dark" in result.stdout


def test_plot(run: Run, learned: Path) -> None:
    result = run("stats", "--memory", learned, "--plot", "plot.png")
    assert result.exit_code == 0
    with Image.open("plot.png") as image:
        assert min(image.size) > 300
        assert len(image.convert("RGB").getcolors(1 << 24) or ()) > 20  # not a blank sheet


@pytest.mark.parametrize("name", ["plot.txt", "plot", "no/such/plot.png"])
def test_a_plot_that_cannot_be_is_refused_first(run: Run, name: str) -> None:
    result = run("stats", "--memory", "nowhere", "--plot", name)
    assert result.exit_code == 2
    assert "--plot" in result.stderr


@pytest.mark.parametrize("count", [1, 100, 300])
def test_every_label_has_room(tmp_path: Path, count: int) -> None:
    known = LabelStats(examples=3, tuned=0.8, original=0.4, weight=0.6)
    draw({f"$label$ 猫 {i} {'long ' * 20}": known for i in range(count)}, tmp_path / "plot.png")
    with Image.open(tmp_path / "plot.png") as image:
        assert image.height > 30 * min(count, MOST_BARS)  # pixels, at 150 an inch
        assert image.width == 1350
