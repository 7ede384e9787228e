"""`anytimecl predict`."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.commands.conftest import Run, zipped

from anytimecl import AnytimeClassifier, backbone
from anytimecl.backbone.hub_text import HubText
from anytimecl.backbone.text import LabelCache
from anytimecl.commands import _common, predict
from anytimecl.images import ImageRef

LABELS = ["cat", "dog", "golden retriever"]
ASK = ("--labels", ",".join(LABELS))


def lines(result: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_json_says_what_the_classifier_says(run: Run, photos: Path, model: Path) -> None:
    result = run("predict", photos / "test", *ASK, "--model", model, "--json", "--top", 2)
    assert result.exit_code == 0
    files = sorted((photos / "test").rglob("*.png"))
    with AnytimeClassifier.open(model=model) as classifier:
        expected = classifier.predict([str(file) for file in files], LABELS)
    assert [line["image"] for line in lines(result)] == [str(file) for file in files]
    for line, prediction in zip(lines(result), expected, strict=True):
        assert line["label"] == prediction.label
        assert line["probability"] == pytest.approx(prediction.probability, abs=1e-6)
        assert [entry["label"] for entry in line["top"]] == [y for y, _ in prediction.top(2)]
        assert (line["none_of_these"], line["spoke"]) == (0.0, "original")


def name_of(folder: Path) -> Path:
    """As somebody would type it: a table folds what is longer than its column."""
    return Path(os.path.relpath(folder))


def test_one_image_gets_a_table_of_several_labels(run: Run, photos: Path, model: Path) -> None:
    result = run("predict", name_of(photos) / "test/cat/4.png", *ASK, "--model", model)
    assert result.exit_code == 0
    for label in LABELS:
        assert label in result.stdout
    assert result.stdout.count("4.png") == 1
    assert "none of these" not in result.stdout  # nothing was learned that could say so


def test_several_images_get_a_line_each_and_a_count(run: Run, photos: Path, model: Path) -> None:
    result = run("predict", photos / "test", *ASK, "--model", model)
    assert result.exit_code == 0
    assert result.stdout.count(".png") == 3
    assert f"3 images in {photos / 'test'}: " in result.stdout


def test_what_is_piped_is_plain_and_narrow(run: Run, learned: Path, photos: Path) -> None:
    result = run("predict", photos / "test", "--memory", learned, "--top", 3)
    assert "\x1b" not in result.output
    assert max(map(len, result.stdout.splitlines()[:-1])) <= 80


def test_csv_has_a_row_for_every_image_even_a_broken_one(
    run: Run, photos: Path, model: Path
) -> None:
    (photos / "test/dog/5.png").write_bytes(b"no image")
    result = run("predict", photos / "test", *ASK, "--model", model, "--csv", "out.csv", "--top", 2)
    assert result.exit_code == 1
    assert result.stdout == ""
    with Path("out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == [
        str(photos / "test" / name)
        for name in ("cat/4.png", "dog/4.png", "dog/5.png", "great white shark/4.png")
    ]
    broken = rows.pop(2)
    assert "cannot read image" in broken["error"]
    assert broken["label"] == broken["probability"] == ""
    for row in rows:
        assert {row["label"], row["label_2"]} < set(LABELS)
        assert float(row["probability"]) >= float(row["probability_2"]) > 0
        assert row["error"] == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line(run: Run, photos: Path, model: Path) -> None:
    result = run("predict", photos, *ASK, "--model", model, "--csv", "/dev/full")
    assert result.exit_code == 2
    assert "What was to be written: No space left on device." in result.stderr


def test_a_run_that_cannot_begin_leaves_an_older_csv(run: Run, photos: Path) -> None:
    Path("out.csv").write_text("older")
    assert run("predict", photos, *ASK, "--model", "nonsense", "--csv", "out.csv").exit_code == 2
    assert Path("out.csv").read_text() == "older"


def test_a_broken_file_is_one_line_while_the_run_goes_on(
    run: Run, photos: Path, model: Path
) -> None:
    (photos / "test/cat/0.png").write_bytes(b"no image")
    (photos / "broken.zip").write_bytes(b"no zip")
    name = name_of(photos)
    result = run(
        "predict", name / "test", "missing.png", name / "broken.zip", *ASK, "--model", model
    )
    assert result.exit_code == 1
    report = result.stderr.splitlines()
    assert report[0] == "Without an answer (3):"
    assert [name in line for name, line in zip(
        ("0.png", "missing.png", "broken.zip"), report[1:], strict=True
    )] == [True] * 3  # fmt: skip
    assert result.stdout.count("4.png") == 3


def test_json_tells_errors_in_their_place(run: Run, photos: Path, model: Path) -> None:
    good = photos / "test/cat/4.png"
    result = run("predict", "missing.png", good, *ASK, "--model", model, "--json")
    assert result.exit_code == 1
    first, second = lines(result)
    assert first["image"] == "missing.png"
    assert "no such file" in first["error"]
    assert second["image"] == str(good)


def test_a_zip_is_a_folder(run: Run, photos: Path, model: Path) -> None:
    there, packed = (
        lines(run("predict", path, *ASK, "--model", model, "--json"))
        for path in (photos, zipped(photos))
    )
    for line in (*there, *packed):
        line["image"] = line["image"].replace("photos.zip", "photos")
    assert there == packed
    assert len(there) == 15


def test_absolute_and_relative_names_share_a_table(run: Run, photos: Path, model: Path) -> None:
    relative = os.path.relpath(photos / "test/cat/4.png")
    result = run("predict", photos / "test/dog/4.png", relative, *ASK, "--model", model)
    assert result.exit_code == 0
    assert "2 images: " in result.stdout


def test_names_and_labels_cannot_steer_the_terminal(run: Run, photos: Path, model: Path) -> None:
    odd = photos / "a\x1b[2J\nb.png"
    (photos / "test/cat/4.png").rename(odd)
    result = run("predict", odd, "--labels", "[red]cat[/red],dog", "--model", model)
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert "[red]cat[/red]" in result.stdout


# Labels


def test_a_file_of_labels(run: Run, photos: Path, model: Path) -> None:
    Path("labels.txt").write_text(
        "\ufeff# animals\n\n  cat \n  # and\ngolden  retriever\ncat\ndog, hot\n", encoding="utf-8"
    )
    image = photos / "test/cat/4.png"
    result = run(
        "predict", image, "--labels-file", "labels.txt", "--model", model, "--json", "--top", 9
    )
    [line] = lines(result)
    assert {entry["label"] for entry in line["top"]} == {"cat", "golden retriever", "dog, hot"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"cat\ndog\x00\n", "labels.txt, line 2: "),
        (b"caf\xe9\n", "not text in UTF-8"),
        (b"# nothing\n\n", "no labels in labels.txt"),
        (None, "cannot be read"),
    ],
)
def test_a_bad_file_of_labels_is_told(
    run: Run, photos: Path, content: bytes | None, told: str
) -> None:
    if content is not None:
        Path("labels.txt").write_bytes(content)
    result = run("predict", photos, "--labels-file", "labels.txt")
    assert result.exit_code == 2
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_many_labels_are_embedded_once(
    run: Run, photos: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    embed = HubText.__call__

    def count(self: HubText, texts: Any) -> Any:
        asked.extend(texts)
        return embed(self, texts)

    short = dataclasses.replace(backbone.load(model), label_cache=LabelCache(in_ram=2))
    monkeypatch.setattr(_common, "load_model", lambda *given: short)
    monkeypatch.setattr(HubText, "__call__", count)
    monkeypatch.setattr(predict, "LABELS_IN_RAM", 2)
    monkeypatch.setattr(predict, "LABELS_ON_DISK", 2)
    monkeypatch.setattr(predict, "LABELS_AT_ONCE", 2)
    monkeypatch.setattr(predict, "VALUES_AT_ONCE", 5)  # one image at a time
    assert run("predict", photos / "test", "--labels", "a,b,c,d,e").exit_code == 0
    assert len(asked) == len(set(asked))
    assert asked


# With a memory


def test_the_memory_gives_the_labels_and_the_model(run: Run, learned: Path, photos: Path) -> None:
    result = run("predict", photos / "test", "--memory", learned, "--json", "--top", 9)
    assert result.exit_code == 0, result.output
    with AnytimeClassifier.open(learned, model=_model_of(learned), read_only=True) as classifier:
        files = [str(file) for file in sorted((photos / "test").rglob("*.png"))]
        expected = classifier.predict(files)
    for line, prediction in zip(lines(result), expected, strict=True):
        assert {entry["label"] for entry in line["top"]} == set(prediction.probabilities)
        assert line["probability"] == pytest.approx(prediction.probability, abs=1e-6)
        assert line["none_of_these"] == pytest.approx(prediction.none_of_these, abs=1e-6)
        assert line["none_of_these"] > 0


def _model_of(memory: Path) -> str:
    return str(json.loads(_common.read_meta(memory, read_only=True)["spec"])["name"])


def test_predicts_beside_the_owner(run: Run, learned: Path, photos: Path, model: Path) -> None:
    with AnytimeClassifier.open(learned, model=model) as owner:
        before = len(owner)
        owner.learn_one(str(photos / "test/cat/4.png"), "tabby")
        result = run("predict", photos / "test", "--memory", learned, "--json", "--top", 9)
        assert result.exit_code == 0, result.output
        assert "tabby" in result.stdout
        assert len(owner) == before + 1


def test_none_of_these_wins_above_the_threshold(run: Run, learned: Path, photos: Path) -> None:
    result = run(
        "predict", photos / "test", "--memory", learned, "--json", "--threshold", 0, "--top", 2
    )
    for line in lines(result):
        assert line["label"] == "none of these"
        assert line["probability"] == line["none_of_these"]
        assert line["top"][1]["label"] in ("cat", "dog", "great white shark")


def test_a_damaged_checkpoint_is_told(run: Run, learned: Path, photos: Path) -> None:
    (learned / "checkpoint" / "learner.safetensors").write_bytes(b"")
    result = run("predict", photos / "test", "--memory", learned)
    assert result.exit_code == 2
    assert "checkpoint" in result.stderr


# Refusals


def test_says_what_is_missing(run: Run, photos: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for words, told in [
        ((photos,), "Say which labels to choose from"),
        ((photos, "--labels", " , "), "no labels"),
        ((photos, "--labels", "a", "--labels-file", "b"), "not both"),
        ((tmp_path / "empty", "--labels", "a"), "There are no images"),
        ((photos, "--memory", "nowhere"), "There is no memory in nowhere"),
        ((photos, "--labels", "a", "--model", "nonsense"), "There is no model 'nonsense'"),
        ((photos, "--labels", "a", "--model", model, "--csv", "no/such/o.csv"), "no folder"),
        ((photos, "--labels", "a", "--model", model, "--csv", "-"), "name a file"),
        ((photos, "--labels", "a", "--threshold", 2), "less than or equal to 1"),
    ]:
        result = run("predict", *words)
        assert result.exit_code == 2, words
        assert told in " ".join(result.stderr.replace("│", " ").split()), words
        assert result.stdout == ""


def test_a_memory_that_learned_nothing_needs_labels(run: Run, photos: Path, model: Path) -> None:
    AnytimeClassifier.open("memory", model=model).close()
    result = run("predict", photos, "--memory", "memory")
    assert result.exit_code == 2
    assert "Nothing is learned yet in memory" in result.stderr
    assert run("predict", photos / "test", "--memory", "memory", "--labels", "a").exit_code == 0


def test_a_model_that_moved_is_asked_for(
    run: Run, learned: Path, photos: Path, model: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    run("learn", photos, "--memory", "other", "--model", copy, "--limit", 2, "--no-shuffle")
    moved = copy.rename(tmp_path / "moved")
    result = run("predict", photos / "test", "--memory", "other")
    assert result.exit_code == 2
    assert "--model" in result.stderr
    assert run("predict", photos / "test", "--memory", "other", "--model", moved).exit_code == 0


def test_ctrl_c_keeps_the_answers_so_far(
    run: Run, photos: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ImageRef.load

    def interrupted(self: ImageRef, **options: Any) -> Any:
        if "dog" in self.name:
            signal.raise_signal(signal.SIGINT)
        return load(self, **options)

    monkeypatch.setattr(ImageRef, "load", interrupted)
    monkeypatch.setattr(predict, "IMAGES_AT_ONCE", 1)
    result = run("predict", photos / "test", *ASK, "--model", model)
    assert result.exit_code == 130
    assert result.stdout.count("4.png") == 2
    assert "Stopped after 2 of 3 images." in result.stderr


def test_advice_names_nothing_of_python(run: Run, photos: Path, model: Path) -> None:
    archive = zipped(photos)
    archive.write_bytes(archive.read_bytes()[:2000])
    Image.new("1", (20_000, 9_000)).save("huge.png")
    given = ("predict", archive, "huge.png", photos, "--model", model, "--labels", "cat,dog")
    result = run(*given, "--json")
    assert result.exit_code == 1
    told = [json.loads(line).get("error", "") for line in result.stdout.splitlines()][:2]
    assert "it is not a whole zip; export or download it again" in told[0]
    assert told[1].endswith("more than 134217728 pixels; make it smaller")
    assert all(each in result.stderr for each in told)
