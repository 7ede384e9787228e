"""Committed results and the figures taken from them are checked line by line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.lab.test_report import line, stages
from typer.testing import CliRunner

from anytimecl.cli import app
from anytimecl.errors import StoreError
from anytimecl_lab.digest import digest
from anytimecl_lab.report import write_report
from anytimecl_lab.verify import verify

RECIPE = """
title = "A recipe"
scenario = "union-data-incremental"
tasks = ["a", "b"]
seeds = [0, 1]
[[methods]]
name = "AnytimeCL"
method = "online"
"""


def made(seed: int, **more: Any) -> dict[str, Any]:
    told = stages("gated", {"a": 70.0 + seed, "b": 60.0}, {"a": 80.0 + seed, "b": 65.0})
    about = {"digest": digest(), "fingerprint": "one", "labels": "name", **more}
    return line("r", "union-data-incremental", "AnytimeCL", seed, told, **about)


def write(folder: Path, lines: list[dict[str, Any]], text: str = "") -> tuple[Path, Path, Path]:
    recipes, results = folder / "recipes", folder / "lines.jsonl"
    recipes.mkdir(exist_ok=True)
    (recipes / "r.toml").write_text(RECIPE)
    results.write_text("".join(json.dumps(each) + "\n" for each in lines))
    document = folder / "page.md"
    document.write_text(text)
    return results, recipes, document


def problems(folder: Path, lines: list[dict[str, Any]], text: str = "") -> list[str]:
    results, recipes, document = write(folder, lines, text)
    return verify([results], recipes, [document])


def test_all_is_well(tmp_path: Path) -> None:
    text = "At 3.14 nobody looks.\n<!-- bench: r -->\nIn the end 72.8 ± 0.4.\n<!-- end -->\n"
    assert problems(tmp_path, [made(0), made(1)], text) == []


def test_a_figure_that_no_line_has_is_found(tmp_path: Path) -> None:
    text = "\n<!-- bench: r -->\nIn the end 99.9.\n<!-- end -->\n"
    (told,) = problems(tmp_path, [made(0), made(1)], text)
    assert "page.md, line 2" in told
    assert "99.9" in told
    (told,) = problems(tmp_path, [made(0), made(1)], text.replace("bench: r", "bench: other"))[:1]
    assert "no results of the recipe other" in told


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"recipe": "unknown"}, "no recipe unknown"),
        ({"group": "paper", "recipe": "x"}, "no recipe x of the group paper"),
        ({"seed": 7}, "does not ask for AnytimeCL"),
        ({"options": {"batch": 8}}, "other settings"),
        ({"settings": "of another recipe"}, "other settings"),
        ({"digest": "older"}, "1 lines are not of the present version"),
        ({"fingerprint": "two"}, "2 versions of it"),
    ],
)
def test_a_line_that_does_not_belong_is_found(
    change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    found = problems(tmp_path, [made(0), made(1) | change])
    assert any(told in each for each in found), found


def test_the_command_fails_where_anything_is_wrong(tmp_path: Path) -> None:
    results, recipes, document = write(tmp_path, [made(0), made(1)])
    words = ["bench", "verify", str(results), "--recipes", str(recipes)]
    words += ["--document", str(document)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    write(tmp_path, [made(0, digest="older")])
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "not of the present version" in done.output


def test_a_report_is_of_one_group(tmp_path: Path) -> None:
    results, _, _ = write(tmp_path, [made(0), made(1, group="paper")])
    with pytest.raises(StoreError, match=r"2 groups, paper, subsets.*--group"):
        write_report([results], tmp_path)
    write_report([results], tmp_path, group="paper")
    assert "1 runs on CPU" in (tmp_path / "report.md").read_text()


def test_a_report_refuses_a_mixture_unless_told(tmp_path: Path) -> None:
    results, _, _ = write(tmp_path, [made(0), made(1, digest="older")])
    with pytest.raises(StoreError, match=r"2 versions.*older \(1 lines: r\).*--mixed"):
        write_report([results], tmp_path)
    assert write_report([results], tmp_path, mixed=True)
