"""Recipes run: lines of results that resume, cells that fail alone, processes that agree."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.lab.conftest import TEST, TRAIN, write_recipe

from anytimecl.errors import ModelError, StoreError
from anytimecl.tail import embed, pick
from anytimecl_lab import run as runner
from anytimecl_lab._clock import Clock
from anytimecl_lab.digest import digest
from anytimecl_lab.methods import METHODS
from anytimecl_lab.metrics import auroc, calibration_error
from anytimecl_lab.recipe import PER_TASK, SCENARIOS, Cell, by_labels, read_recipe
from anytimecl_lab.results import read_lines
from anytimecl_lab.run import LEFT, cells_of, main, studios_of
from anytimecl_lab.scenarios import THEIRS
from anytimecl_lab.studio import Studio

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
    per_task = scenario in PER_TASK
    assert len(lines) == 3 * 2 * (2 if per_task else 1)
    for line in lines:
        last = line["results"][-1]
        brought = 3 * TRAIN if line["subject"] == "pets" else 2 * TRAIN
        assert last["examples"] == (brought if per_task else 5 * TRAIN)
        assert {"anytimecl", "torch", "python"} <= set(line["versions"])
        assert line["digest"] == digest()
        assert line["hardware"]["device"] == "CPU"
        assert line["seconds"] > 0
        flexible = {"zero-shot", "union", "mix", THEIRS}
        few_shot = {"calibration"} | ({"none-of-these"} if line["method"] == "online" else set())
        assert set(last["answers"]) == {"task"} | (few_shot if scenario == "few-shot" else flexible)


def test_accuracy_by_hand(data: Path, model: Path, tmp_path: Path) -> None:
    """The original model's line against its embeddings, image by image."""
    recipe = read_recipe(write_recipe(tmp_path, model, "data-incremental"))
    lines = go(tmp_path / "data_incremental.toml", data, tmp_path / "out.jsonl", "--only=original")
    studio = Studio(recipe, data)
    test = studio.test["pets"]
    vectors = studio.backbone.embed_labels(studio.sets["pets"].names)
    right = 0
    for i, label in zip(test.chosen, test.labels, strict=True):
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


def test_what_another_recipe_or_model_gave_is_run_again(
    data: Path, model: Path, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, model, "mtil")
    out = tmp_path / "out.jsonl"
    words = ("--seeds=0", "--only=AnytimeCL")
    [line] = go(recipe, data, out, *words)
    text = recipe.read_text()
    recipe.write_text(text.replace("A small one", "Another title"))  # decides nothing
    assert len(go(recipe, data, out, *words)) == 1
    recipe.write_text(text.replace("batch = 4", "batch = 5"))
    assert len(go(recipe, data, out, *words)) == 2
    recipe.write_text(text.replace("title", "per_class = 2\ntitle"))
    assert len(go(recipe, data, out, *words)) == 3
    recipe.write_text(text)
    out.write_text(json.dumps(line | {"fingerprint": "of another"}) + "\n")
    assert len(go(recipe, data, out, *words)) == 2


def test_a_run_in_parts_says_what_is_left_and_goes_on(
    data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, model, "mtil")
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    words = [str(recipe), "--data", str(data), "--out", str(out)]
    assert main([*words, "--minutes", "0"]) == LEFT
    assert read_lines(out) == []  # nothing is encoded yet
    assert "6 runs are left" in capsys.readouterr().err
    go(recipe, data, whole)
    for left in range(5, -1, -1):  # all is encoded now; one run begins in any case
        assert main([*words, "--minutes", "0"]) == (LEFT if left else 0)
        assert len(read_lines(out)) == 6 - left
    assert accuracies(read_lines(out)) == accuracies(read_lines(whole))


def test_no_run_begins_that_would_not_end_in_time(data: Path, model: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, model, "mtil")
    out = tmp_path / "out.jsonl"
    [line] = go(recipe, data, out, "--seeds=0", "--only=AnytimeCL")
    out.write_text(json.dumps(line | {"digest": "older", "seconds": 7200.0}) + "\n")
    words = [str(recipe), "--data", str(data), "--out", str(out)]
    assert main([*words, "--minutes", "60"]) == LEFT
    names = [line["name"] for line in read_lines(out)[1:]]
    assert Counter(names) == {"original model": 2, "linear probe (AIM)": 2}
    assert main([*words, "--minutes", "60"]) == LEFT  # as the first of its part
    assert read_lines(out)[-1]["name"] == "AnytimeCL"


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


def test_validation_is_a_fifth_of_every_label(data: Path, model: Path, tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path, model, "few-shot"))
    studio = Studio(recipe, data, validation=True)
    for task in recipe.tasks:
        expected = dict.fromkeys(studio.sets[task].names, TRAIN // 5)
        assert Counter(studio.test[task].labels) == expected
        assert not set(studio.train[task].chosen) & set(studio.test[task].chosen)


def test_few_shot_begins_anew_for_each_number_of_examples(
    data: Path, model: Path, tmp_path: Path
) -> None:
    """The line of a peer against the peer, taught by hand."""
    file = write_recipe(tmp_path, model, "few-shot")
    file.write_text(file.read_text().replace('"linear-probe"', '"class-mean"'))
    [line] = [
        each
        for each in go(file, data, tmp_path / "out.jsonl", "--only=class-mean", "--seeds=1")
        if each["subject"] == "pets"
    ]
    assert [(r["name"], r["examples"]) for r in line["results"]] == [
        ("1", 3),
        ("2", 6),
        ("4", 12),
        ("all", 15),
    ]
    studio = Studio(read_recipe(file), data)
    [contestant] = [each for each in studio.recipe.methods if each.method == "class-mean"]
    for stages, result in zip(studio.streams("pets", 1), line["results"], strict=True):
        method = METHODS["class-mean"](studio.world(stages, 1, contestant))
        assert set(stages[0].examples) <= set(studio.places["pets"])
        method.learn(stages[0].examples)
        names, labels = studio.sets["pets"].names, studio.test["pets"].labels
        tokens = pick(studio.asked("pets"), torch.arange(len(labels)))
        found = method.predict(tokens, names).argmax(1)
        right = sum(names[k] == label for k, label in zip(found, labels, strict=True))
        told = result["answers"]["task"]["pets"][""]
        assert told == pytest.approx(100 * right / len(labels), abs=1e-3)


def test_calibration_and_none_of_these_by_hand(data: Path, model: Path, tmp_path: Path) -> None:
    """Of the nearest mean, against scores worked out image by image."""
    file = write_recipe(tmp_path, model, "few-shot", FLEXIBLE + "\nshots = [2]")
    file.write_text(file.read_text().replace('"linear-probe"', '"class-mean"'))
    lines = go(file, data, tmp_path / "out.jsonl", "--only=class-mean", "--seeds=0")
    [line] = [each for each in lines if each["subject"] == "pets"]
    assert [result["name"] for result in line["results"]] == ["2", "all"]
    studio = Studio(read_recipe(file), data)
    [contestant] = [each for each in studio.recipe.methods if each.method == "class-mean"]
    [stage], _ = studio.streams("pets", 0)
    method = METHODS["class-mean"](studio.world([stage], 0, contestant))
    method.learn(stage.examples)
    names = studio.sets["pets"].names
    far: dict[str, list[float]] = {}
    sure, right = [], []
    for task in ("pets", "novel"):
        for i, label in enumerate(studio.test[task].labels):
            tokens = pick(studio.asked(task), torch.tensor([i]))
            far.setdefault(task, []).append(
                1 - max(float(studio.asked_vectors(task)[i] @ mean) for mean in method.means)
            )
            if task == "pets":
                scores = method.predict(tokens, names)[0]
                sure.append(float(scores.max()))
                right.append(names[int(scores.argmax())] == label)
    strange = [
        f for f, y in zip(far["novel"], studio.test["novel"].labels, strict=True) if y != "dog"
    ]
    answers = line["results"][0]["answers"]
    assert answers["calibration"]["pets"][""] == pytest.approx(
        100 * calibration_error(sure, right), abs=1e-2
    )
    none = answers["none-of-these"]["novel"]
    assert none["AUROC"] == pytest.approx(100 * auroc(far["pets"], strange), abs=2)
    assert none["own refused"] == pytest.approx(100 * np.mean([f > 0.5 for f in far["pets"]]))
    assert none["foreign refused"] == pytest.approx(100 * np.mean([f > 0.5 for f in strange]))


def test_labels_by_code_are_runs_of_their_own(data: Path, model: Path, tmp_path: Path) -> None:
    file = write_recipe(tmp_path, model, "few-shot", 'labels = ["name", "code"]')
    out = tmp_path / "out.jsonl"
    lines = go(file, data, out, "--only=original", "--seeds=0")
    assert [(x["recipe"], x["labels"], x["subject"]) for x in lines] == [
        ("few_shot", "name", "pets"),
        ("few_shot", "name", "places"),
        ("few_shot-code", "code", "pets"),
        ("few_shot-code", "code", "places"),
    ]
    assert len(go(file, data, out, "--only=original", "--seeds=0")) == 4
    named, coded = (Studio(each, data) for each in by_labels(read_recipe(file)))
    assert named.sets["pets"].names == ["cat", "dog", "great white shark"]
    assert coded.sets["pets"].names == ["item 000", "item 001", "item 002"]
    assert coded.labels == [f"item {n:03}" for n in [0] * 5 + [1] * 5 + [2] * 5 + [0] * 5 + [1] * 5]
    texts = coded.backbone.embed_labels(["item 001"])
    torch.testing.assert_close(coded.vectors["item 001"], texts[0])
    assert coded.test["pets"].split.key == named.test["pets"].split.key  # encoded once


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
        kept = coded.examples(float("inf"))
        whole = coded.codec.decode(coded.records)
        tail, spec = studio.backbone.tail, studio.backbone.spec.tail
        with torch.no_grad():
            found = embed(tail, spec, pick(kept, torch.arange(len(coded.records))))
            torch.testing.assert_close(found, embed(tail, spec, whole), atol=0.05, rtol=0.05)
    lines = go(file, data, tmp_path / "out.jsonl", "--only=online", "--seeds=0")
    assert lines[0]["bytes"] > 0


@pytest.mark.parametrize("scenario", ["task-incremental", "union-data-incremental", "mtil"])
def test_classifiers_on_frozen_vectors_go_through_several_tasks(
    scenario: str, data: Path, model: Path, tmp_path: Path
) -> None:
    file = write_recipe(tmp_path, model, scenario, FLEXIBLE)
    text = file.read_text()
    peers = ("class-mean", "slda", "gda", "klda", "ranpac", "rail", "tip-adapter", "logistic")
    methods = "".join(f'[[methods]]\nname = "{each}"\nmethod = "{each}"\n' for each in peers)
    file.write_text(text[: text.index("[[methods]]")] + methods)
    lines = go(file, data, tmp_path / "out.jsonl", "--seeds=0")
    assert [line["name"] for line in lines] == list(peers)
    assert all(set(line["results"][-1]["answers"]["task"]) == {"pets", "places"} for line in lines)


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
        ("title =", 'labels = "nickname"\ntitle =', "labels is one of name, code"),
        ("title =", 'labels = "code"\ntitle =', "the labels of one task apart"),
        ("seeds = [0, 1]", "seeds = 3", "seeds is a list, not 3"),
        ("title =", "stages = 1.0\ntitle =", "stages is a list, not 1.0"),
    ],
)
def test_recipes_that_cannot_be_followed(
    old: str, new: str, told: str, model: Path, tmp_path: Path
) -> None:
    file = write_recipe(tmp_path, model, "mtil")
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ModelError, match=told):
        read_recipe(file)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--jobs=0", "At least one run at a time"),
        ("--only=original,typo", "has a method typo"),
        ("--device=cudo", "The device 'cudo' cannot be used here"),
        ("--seeds=0;1", "invalid numbers value: '0;1'"),
    ],
)
def test_slips_are_told(
    words: str, told: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, model, "mtil")
    try:
        status: Any = main([str(recipe), f"--out={tmp_path / 'out.jsonl'}", words])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert told in capsys.readouterr().err


def test_recipes_of_one_name_are_not_run_together(model: Path, tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path, model, "mtil"))
    with pytest.raises(ModelError, match="have the same name"):
        studios_of([recipe, recipe], None)


def test_novel_images_that_are_all_of_learned_labels_are_asked_nothing(
    data: Path, model: Path, tmp_path: Path
) -> None:
    file = write_recipe(tmp_path, model, "few-shot", 'novel = ["pets", "novel"]\nshots = [1]')
    lines = go(file, data, tmp_path / "out.jsonl", "--only=AnytimeCL", "--seeds=0")
    [line] = [each for each in lines if each["subject"] == "pets"]
    assert set(line["results"][0]["answers"]["none-of-these"]) == {"novel"}


def deadly(cell: Cell) -> dict[str, Any]:
    """In place of a run: the first seed's kills its process."""
    if cell.seed == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"seed": cell.seed}


@pytest.mark.e2e
def test_a_killed_process_does_not_stop_the_others(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(read_recipe(write_recipe(tmp_path, model, "mtil")), seeds=(0, 1, 2, 3))
    studios = studios_of([recipe], None)
    ready = cells_of(studios, only=["original"])
    monkeypatch.setattr(runner, "_in_worker", deadly)
    lines = list(runner._lines(studios, ready, 2, Clock(), {}, 0.0))
    assert sorted(line["seed"] for line in lines) == [0, 1, 2, 3]
    failed = [line for line in lines if "error" in line]
    assert 1 <= len(failed) <= 2  # the killed one, and perhaps the one beside it
    assert all(line["error"].startswith("BrokenProcessPool") for line in failed)


ORPHAN = """
import os, sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from anytimecl_lab.records import begin_process

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, get_context("spawn"), begin_process)
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 1000).result()
"""


@pytest.mark.e2e
def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    """Though it has work to do."""
    (tmp_path / "orphan.py").write_text(ORPHAN)
    words = [sys.executable, str(tmp_path / "orphan.py")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        process = int(parent.stdout.readline())
        os.kill(process, 0)
        parent.kill()
    for _ in range(600):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.kill(process, signal.SIGKILL)
    raise AssertionError("It outlived its parent by a minute.")


def test_the_lab_runs_on_a_bare_machine() -> None:
    """One that has no rich, typer, matplotlib, scikit-learn or datasets."""
    code = "import sys, anytimecl_lab.whole; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"rich", "typer", "matplotlib", "sklearn", "datasets", "torchmetrics"}
