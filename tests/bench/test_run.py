"""Recipes run: lines of results that resume, cells that fail alone, processes that agree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bench.conftest import TEST, TRAIN, write_recipe

from anytimecl.bench import run as lab
from anytimecl.bench.methods import METHODS
from anytimecl.bench.recipe import SCENARIOS, read_recipe
from anytimecl.bench.run import main, read_lines
from anytimecl.bench.studio import Studio
from anytimecl.errors import ModelError, StoreError

FLEXIBLE = 'novel = ["novel"]'


def go(recipe: Path, data: Path, out: Path, *words: str) -> list[dict[str, Any]]:
    assert main([str(recipe), "--data", str(data), "--out", str(out), *words]) == 0
    return read_lines(out)


def accuracies(lines: list[dict[str, Any]]) -> list[Any]:
    return sorted(
        json.dumps([line["name"], line["subject"], line["seed"], line["results"]]) for line in lines
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_runs(scenario: str, data: Path, model: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, model, scenario, FLEXIBLE)
    lines = go(recipe, data, tmp_path / "out.jsonl")
    per_task = scenario in SCENARIOS[:2]
    assert len(lines) == 3 * 2 * (2 if per_task else 1)
    for line in lines:
        last = line["results"][-1]
        brought = 3 * TRAIN if line["subject"] == "pets" else 2 * TRAIN
        assert last["examples"] == (brought if per_task else 5 * TRAIN)
        assert {"anytimecl", "code", "torch", "python"} <= set(line["versions"])
        assert line["hardware"]["device"] == "CPU"
        assert line["seconds"] > 0
        assert set(last["answers"]) == {"task", "zero-shot", "union", "mix"}


def test_accuracy_by_hand(data: Path, model: Path, tmp_path: Path) -> None:
    """The original model's line against its embeddings, image by image."""
    recipe = read_recipe(write_recipe(tmp_path, model, "data-incremental"))
    lines = go(tmp_path / "data_incremental.toml", data, tmp_path / "out.jsonl", "--only=original")
    studio = Studio(recipe, data)
    test = studio.test["pets"]
    vectors = studio.backbone.embed_labels(studio.sets["pets"].names)
    right = 0
    for i, label in zip(test.chosen, test.labels, strict=True):
        from anytimecl.tail import embed

        tokens = studio.backbone.encode([test.split.load(i)]).half().float()
        scores = embed(studio.backbone.tail, studio.backbone.spec.tail, tokens) @ vectors.T
        right += studio.sets["pets"].names[int(scores.argmax())] == label
    [line] = [x for x in lines if x["subject"] == "pets" and x["seed"] == 0]
    told = line["results"][-1]["answers"]["task"]["pets"][""]
    assert told == pytest.approx(100 * right / (3 * TEST), abs=1e-3)


def test_novel_tasks_keep_the_original_accuracy(data: Path, model: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, model, "task-incremental", FLEXIBLE)
    lines = go(recipe, data, tmp_path / "out.jsonl", "--seeds=0")
    last = {line["name"]: (line["reading"], line["results"][-1]["answers"]) for line in lines}
    zero_shot = {name: answers["zero-shot"]["novel"][r] for name, (r, answers) in last.items()}
    assert len(set(zero_shot.values())) == 1
    assert len(zero_shot) == 3


def test_methods_that_wait_answer_after_whole_tasks(
    data: Path, model: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, model, "task-incremental")
    lines = go(recipe, data, tmp_path / "out.jsonl", "--seeds=0")
    stages = {line["name"]: [r["name"] for r in line["results"]] for line in lines}
    assert len(stages["AnytimeCL"]) == 8
    assert stages["linear probe (AIM)"] == ["pets 100 %", "places 100 %"]


def test_what_is_done_is_not_run_again(data: Path, model: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, model, "mtil")
    out = tmp_path / "out.jsonl"
    assert len(go(recipe, data, out, "--seeds=0")) == 3
    first = out.read_text()
    assert len(go(recipe, data, out)) == 6
    assert out.read_text().startswith(first)
    before = out.read_text()
    go(recipe, data, out)
    assert out.read_text() == before


def test_a_failed_cell_fails_alone_and_is_tried_again(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path, model, "mtil")
    out = tmp_path / "out.jsonl"

    class Failing(METHODS["online"]):  # type: ignore[misc]
        def learn(self, examples: Any) -> None:
            raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setitem(METHODS, "online", Failing)
        assert main([str(recipe), "--data", str(data), "--out", str(out)]) == 1
    lines = read_lines(out)
    assert [line["error"] for line in lines if "error" in line] == [
        "RuntimeError: out of memory"
    ] * 2
    assert len(lines) == 6
    assert main([str(recipe), "--data", str(data), "--out", str(out)]) == 0
    assert len([line for line in read_lines(out) if "error" not in line]) == 6


def test_the_same_seed_gives_the_same_lines(data: Path, model: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, model, "class-incremental")
    one, two = (go(recipe, data, tmp_path / name) for name in ("one.jsonl", "two.jsonl"))
    assert accuracies(one) == accuracies(two)


@pytest.mark.e2e
def test_processes_give_the_same_lines(data: Path, model: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, model, "class-incremental")
    alone = go(recipe, data, tmp_path / "alone.jsonl")
    together = go(recipe, data, tmp_path / "together.jsonl", "--jobs=2")
    assert accuracies(alone) == accuracies(together)


def test_validation_never_looks_at_test_images(data: Path, model: Path, tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path, model, "data-incremental"))
    studio = Studio(recipe, data, validation=True)
    for task in recipe.tasks:
        train, test = studio.train[task], studio.test[task]
        assert test.split is studio.sets[task].train
        assert not set(train.chosen) & set(test.chosen)
        assert len(train.chosen) + len(test.chosen) == len(train.split)
    [line, *_] = go(
        tmp_path / "data_incremental.toml", data, tmp_path / "out.jsonl", "--validation"
    )
    assert line["recipe"] == "data_incremental-validation"
    assert line["validation"]


def test_recipes_with_the_same_tasks_share_their_examples(
    data: Path, model: Path, tmp_path: Path
) -> None:
    one = read_recipe(write_recipe(tmp_path, model, "mtil"))
    file = write_recipe(tmp_path, model, "task-incremental")
    file.write_text(file.read_text().replace('["pets", "places"]', '["places", "pets"]'))
    studio = Studio(one, data)
    other = Studio(read_recipe(file), data, shelf=studio.shelf)
    assert studio.examples is other.examples
    assert list(studio.places) == ["pets", "places"]
    assert list(other.places) == ["places", "pets"]
    for task, places in other.places.items():
        assert [other.labels[i] for i in places] == other.train[task].labels
        assert places == studio.places[task]


@pytest.mark.parametrize("codec", ["pca-image", "vq", "pca-dataset", "attention-pca"])
def test_examples_may_be_kept_by_a_codec(
    codec: str, data: Path, model: Path, tmp_path: Path
) -> None:
    file = write_recipe(tmp_path, model, "union-data-incremental")
    text = file.read_text().replace('method = "online"', f'method = "online"\ncodec = "{codec}"')
    file.write_text(text)
    recipe = read_recipe(file)
    studio = Studio(recipe, data)
    if codec in ("pca-image", "attention-pca"):  # as the memory of a classifier would give them
        coded = studio.records(codec, None)
        kept = coded.resident()
        whole = coded.codec.decode(coded.records)
        from anytimecl.tail import embed

        tail, spec = studio.backbone.tail, studio.backbone.spec.tail
        with torch.no_grad():
            found = embed(tail, spec, lab.pick(kept, torch.arange(len(coded.records))))
            torch.testing.assert_close(found, embed(tail, spec, whole), atol=0.05, rtol=0.05)
    lines = go(file, data, tmp_path / "out.jsonl", "--only=online", "--seeds=0")
    assert lines[0]["bytes"] > 0


def test_broken_lines_are_named(tmp_path: Path) -> None:
    file = tmp_path / "out.jsonl"
    file.write_text('{"recipe": "x"}\nnot json\n')
    with pytest.raises(StoreError, match="line 2, is not a line of results"):
        read_lines(file)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"original"', '"orignal"', "there is no method 'orignal'"),
        ("mtil", "mtl", "scenario is 'mtl'"),
        ("seeds = [0, 1]", "seeds = []", "at least one"),
        ('"AnytimeCL"', '"original model"', "two methods have the same name"),
        ("title =", "titel =", "titel"),
        ('tasks = ["pets", "places"]', 'tasks = "targets"', "no such list of data sets"),
        ("[[methods]]", "[[methods", "cannot be read"),
    ],
)
def test_recipes_that_cannot_be_followed(
    old: str, new: str, told: str, model: Path, tmp_path: Path
) -> None:
    file = write_recipe(tmp_path, model, "mtil")
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ModelError, match=told):
        read_recipe(file)


def test_the_lab_runs_on_a_bare_machine() -> None:
    """One that has no rich, typer, matplotlib, scikit-learn or datasets."""
    code = "import sys, anytimecl.bench.run, anytimecl.bench.codecs; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"rich", "typer", "matplotlib", "sklearn", "datasets", "torchmetrics"}
