"""Counted before anything is run, and refused where a set is not the published one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.lab.conftest import TEST, TRAIN, write_recipe

from anytimecl.errors import ImageError
from anytimecl_lab.needs import check_counts, counted
from anytimecl_lab.recipe import read_recipe
from anytimecl_lab.run import run
from anytimecl_lab.studio import Studio

RIGHT = {"pets": 3 * TRAIN, "places": 2 * TRAIN}


def studio(data: Path, model: Path, tmp_path: Path, counts: dict[str, int]) -> Studio:
    recipe = read_recipe(write_recipe(tmp_path, model, "data-incremental"))
    return Studio(replace(recipe, counts=counts), data)


def test_what_a_recipe_needs_is_counted(data: Path, model: Path, tmp_path: Path) -> None:
    table = counted(studio(data, model, tmp_path, RIGHT))
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["pets"] == [str(3 * TRAIN), str(3 * TEST), "3", str(3 * TRAIN)]
    assert rows["in all"] == [str(5 * TRAIN), str(5 * TEST), "", str(5 * TRAIN)]
    assert "GB" in table.note


def test_a_set_that_is_not_the_published_one_is_refused(
    data: Path, model: Path, tmp_path: Path
) -> None:
    check_counts(studio(data, model, tmp_path, RIGHT))
    wrong = studio(data, model, tmp_path, RIGHT | {"pets": 7})
    with pytest.raises(ImageError, match="pets has 15 training images, not 7"):
        check_counts(wrong)
    out = tmp_path / "out.jsonl"
    with pytest.raises(ImageError, match="not 7"):
        run([wrong.recipe], data, out)
    assert not out.exists()
    capped = replace(wrong, recipe=replace(wrong.recipe, per_class=2))
    check_counts(capped)  # fewer on purpose


def test_a_dry_run_runs_nothing(
    data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = studio(data, model, tmp_path, {}).recipe
    assert run([recipe], data, tmp_path / "out.jsonl", dry=True) == (0, 0)
    assert not (tmp_path / "out.jsonl").exists()
    assert "what it will need" in capsys.readouterr().err
