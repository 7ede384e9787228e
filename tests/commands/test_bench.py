"""`anytimecl bench`, as a person uses it."""

from __future__ import annotations

from pathlib import Path

from tests.commands.conftest import Run
from tests.lab.conftest import fill, write_recipe

from anytimecl_lab.run import read_lines


def test_run_and_report(run: Run, model: Path, tmp_path: Path) -> None:
    for task in ("pets", "places"):
        fill(tmp_path / "data", task)
    recipe = write_recipe(tmp_path, model, "data-incremental")
    words = ("bench", "run", recipe, "--data", "data", "--out", "out/results.jsonl")
    result = run(*words, "--only", "original,AnytimeCL", "--seeds", "0")
    assert result.exit_code == 0, result.output
    assert "anytimecl bench report out/results.jsonl" in result.stdout
    assert len(read_lines(tmp_path / "out" / "results.jsonl")) == 4
    result = run("bench", "report", "out/results.jsonl", "--out", "report")
    assert result.exit_code == 0, result.output
    assert result.stdout.split() == ["report/report.md", "report/report.html", "report/results.csv"]
    assert "| AnytimeCL |" in (tmp_path / "report" / "report.md").read_text()


def test_codecs(run: Run, model: Path, tmp_path: Path) -> None:
    fill(tmp_path / "data", "pets")
    recipe = write_recipe(tmp_path, model, "data-incremental")
    text = recipe.read_text().replace('["pets", "places"]', '["pets"]')
    text = text[: text.index("[[methods]]")] + (
        '[[methods]]\nname = "tokens-fp16"\nmethod = "online"\n'
        '[[methods]]\nname = "attention-pca"\nmethod = "online"\ncodec = "attention-pca"\n'
        '[[methods]]\nname = "vq"\nmethod = "online"\ncodec = "vq"\n'
    )
    recipe.write_text(text)
    result = run("bench", "codecs", "--recipe", recipe, "--data", "data", "--out", "codecs")
    assert result.exit_code == 0, result.output
    report = (tmp_path / "codecs" / "report.md").read_text()
    for codec in ("image", "tokens-fp16", "attention-pca", "vq"):
        [row] = [line for line in report.splitlines() if line.startswith(f"| {codec} |")]
        size, time = row.split("|")[2:4]
        assert float(size) >= 0  # kilobytes: a tiny model's record may be no tenth of one
        assert float(time) > 0


def test_errors_are_for_people(run: Run, tmp_path: Path, model: Path) -> None:
    result = run("bench", "run", "nowhere.toml")
    assert result.exit_code == 2
    assert "The recipe nowhere.toml cannot be read" in result.stderr
    recipe = write_recipe(tmp_path, model, "mtil")
    result = run("bench", "run", recipe, "--data", tmp_path, "--out", "x.jsonl")
    assert result.exit_code == 2
    assert "There is no data set 'places'" in result.stderr or "'pets'" in result.stderr
    result = run("bench", "run", recipe, "--seeds", "one")
    assert result.exit_code == 2
    assert "whole numbers with commas" in result.stderr
    result = run("bench", "run", recipe, "--only", "nobody")
    assert result.exit_code == 2
    assert "None of these recipes has a method nobody" in result.stderr
    result = run("bench", "report")
    assert result.exit_code == 2
    assert "There are no results" in result.stderr
