"""`anytimecl examples`, `relabel`, `undo`, `rename`, `merge`, `label`, `labels`, `learn`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.commands.conftest import Run
from tests.commands.test_learn import labels_in
from typer.testing import CliRunner

from anytimecl.cli import app
from anytimecl.memory import open_memory


def test_examples_and_corrections(run: Run, learned: Path) -> None:
    result = run("examples", "--memory", learned, "--label", "cat", "--limit", 3, "--json")
    assert result.exit_code == 0, result.output
    page = json.loads(result.stdout)
    assert (len(page["examples"]), page["total"]) == (3, 4)
    first = page["examples"][0]
    assert first["source"].endswith(".png")
    assert first["says"].keys() == {"tuned", "original", "gaussian"}
    result = run("examples", "--memory", learned, "--suspicious")
    assert "suspicion" in result.stdout
    result = run("relabel", f"{first['id']},999", "okapi", "--memory", learned)
    assert result.exit_code == 1
    assert f"{first['id']}: 'cat' is 'okapi' now." in result.stdout
    assert "no example 999" in result.stderr
    assert run("relabel", "seven", "okapi", "--memory", learned).exit_code == 2
    assert run("rename", "okapi", "wild okapi", "--memory", learned).exit_code == 0
    assert "use `anytimecl merge`" in run("rename", "dog", "cat", "--memory", learned).stderr
    assert run("merge", "dog", "cat", "--memory", learned).exit_code == 0
    assert labels_in(learned) == {"cat": 7, "great white shark": 4, "wild okapi": 1}
    result = run("undo", "--steps", 3, "--memory", learned)
    assert result.exit_code == 0, result.output
    assert "'okapi' is 'cat' again" in result.stdout
    for words in (("relabel", first["id"], "Dog"), ("rename", "Dog", "CAT")):
        result = run(*words, "--memory", learned)
        assert "differs only in case from" in result.stderr
        assert "`anytimecl merge` makes them one" in result.stderr
    assert "differs" not in run("rename", "CAT", "lynx", "--memory", learned).stderr
    assert "differs" not in run("rename", "lynx", "Lynx", "--memory", learned).stderr
    assert run("undo", "--steps", 4, "--memory", learned).exit_code == 0
    assert labels_in(learned) == {"cat": 4, "dog": 4, "great white shark": 4}


def test_labels_as_files(run: Run, learned: Path) -> None:
    assert run("labels", "out.csv", "--memory", learned).exit_code == 0
    assert len(Path("out.csv").read_text().splitlines()) == 13
    missing = run("labels", "no/out.csv", "--memory", learned)
    assert missing.exit_code == 2
    assert "the folder no is not there: make it first" in missing.stderr
    assert "does not stand for standard output" in run("labels", "-", "--memory", learned).stderr
    assert not Path("-").exists()
    assert run("labels", "out", "--memory", learned).exit_code == 0
    assert sorted(folder.name for folder in Path("out").iterdir()) == sorted(labels_in(learned))


def test_label_asks_and_goes_on(run: Run, photos: Path, model: Path) -> None:
    given = ["label", str(photos / "test"), "--memory", "m", "--model", str(model)]
    result = CliRunner().invoke(app, [*given, "--labels", "cat,dog"], input="1\nu\nbird\ns\nq\n")
    assert result.exit_code == 0, result.output
    assert labels_in("m") == {"bird": 1}
    result = CliRunner().invoke(app, given, input="cat\n")
    assert result.exit_code == 0, result.output
    assert sum(labels_in("m").values()) == 2
    assert "nothing left to label" in CliRunner().invoke(app, given).stdout


def test_labels_that_look_like_commands_are_written_with_a_sign(
    run: Run, photos: Path, model: Path
) -> None:
    given = ["label", str(photos / "test"), "--memory", "m", "--model", str(model)]
    result = CliRunner().invoke(app, given, input="7\n?\ny\n=7\n=s\n1\n")
    assert result.exit_code == 0, result.output
    assert "as 7, a new label" in result.stdout
    assert labels_in("m") in ({"7": 2, "s": 1}, {"7": 1, "s": 2})  # the last got the likelier one
    Path("empty").mkdir()
    result = run("label", "empty", "--memory", "other", "--model", model)
    assert (result.exit_code, Path("other").exists()) == (2, False)
    assert "no images in empty" in result.stderr


def test_what_names_nothing_is_an_error_with_a_hint(run: Run, learned: Path) -> None:
    for words in (
        ("examples", "--label", "cats"),
        ("rename", "cats", "tiger"),
        ("merge", "cats", "dog"),
        ("merge", "dog", "cats"),
    ):
        result = run(*words, "--memory", learned)
        assert result.exit_code == 2, words
        assert "no example of 'cats'. Did you mean 'cat'?" in result.stderr
    assert run("examples", "--source", "nowhere", "--memory", learned).exit_code == 1
    assert run("relabel", "7-3", "okapi", "--memory", learned).exit_code == 2
    assert run("labels", "out.txt", "--memory", learned).exit_code == 2
    assert not Path("out.txt").exists()


def test_a_range_is_of_the_examples_in_it(run: Run, learned: Path) -> None:
    assert run("relabel", "11-999999999", "okapi", "--memory", learned).exit_code == 0
    assert labels_in(learned)["okapi"] == 2
    result = run("relabel", "1,20-30", "okapi", "--memory", learned)
    assert result.exit_code == 1
    assert "no example from 20 to 30" in result.stderr
    assert labels_in(learned)["okapi"] == 3


def test_messages_name_options(run: Run, learned: Path, photos: Path, model: Path) -> None:
    picture = photos / "test/cat/4.png"
    with open_memory(learned):
        busy = run("learn", photos, "--memory", learned)
    told = [
        busy,
        run("learn", photos, "--memory", learned, "--seed", 3),
        run("learn", picture, "--memory", learned),
        run("label", picture, "--memory", learned),
        run("examples", "--after", "nowhere", "--memory", learned),
    ]
    for result in told:
        assert result.exit_code == 2, result.output
        assert not re.search(r"\w=|_image|`", result.stderr), result.stderr
    assert "--seed 0, not 3" in told[1].stderr


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        ("2024-05-01", "look like dates"),
        ("Cat", "differ only in case"),
        ("Unsorted", "places for images without a label"),
        ("cat/asleep", "mixed depth"),
    ],
)
def test_learn_asks_where_labels_look_wrong(
    run: Run, photos: Path, model: Path, folder: str, told: str
) -> None:
    (photos / "train" / folder).mkdir(parents=True)
    shutil.copy(photos / "test/cat/4.png", photos / "train" / folder / "4.png")
    (photos / "train/notes.txt").touch()
    given = ("learn", photos / "train", "--memory", "m", "--model", model)
    result = run(*given)
    assert result.exit_code == 2
    assert told in result.stderr
    assert "--yes" in result.stderr
    assert "Passed over: 1 no image (.txt)." in result.stderr
    result = run(*given, "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "13 images of 4 labels" in result.stderr
    assert not Path("m").exists()
    assert run(*given, "--yes").exit_code == 0
    assert sum(labels_in("m").values()) == 13


def test_learn_compares_labels_with_those_of_the_memory(
    run: Run, learned: Path, photos: Path
) -> None:
    (photos / "train/dog").rename(photos / "train/Dog")
    result = run("learn", photos, "--memory", learned)
    assert result.exit_code == 2
    assert "'Dog' differs only in case from 'dog', which the memory knows" in result.stderr
    assert labels_in(learned)["dog"] == 4


def test_images_without_a_label_are_counted_and_never_make_a_memory(
    run: Run, photos: Path, model: Path
) -> None:
    given = ("--memory", "m", "--model", model)
    result = run("learn", photos / "test/cat", *given, "--yes")
    assert result.exit_code == 2
    assert "anytimecl label" in result.stderr
    assert not Path("m").exists()
    shutil.copy(photos / "test/cat/4.png", photos / "train/4.png")
    result = run("learn", photos / "train", *given, "--dry-run")
    assert "Not in a folder of a label, and not learned: 1 image." in result.stderr


def test_learn_tells_of_characters_that_cannot_be_seen(
    run: Run, learned: Path, photos: Path
) -> None:
    (photos / "train/dog").rename(photos / "train/dog\u200b")
    (photos / "train/cat").rename(photos / "train/lynx\ufeff")
    result = run("learn", photos, "--memory", learned)
    assert result.exit_code == 2
    assert "characters that cannot be seen: 'dog\\u200b', 'lynx\\ufeff'." in result.stderr
    assert "'dog\\u200b' differs only in characters that cannot be seen from 'dog'" in result.stderr
    assert run("learn", photos, "--memory", learned, "--yes").exit_code == 0
    assert "cannot be seen" not in run("learn", photos, "--memory", learned).stderr  # it has them
