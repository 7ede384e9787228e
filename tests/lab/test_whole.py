"""The whole lab: what belongs to it, parts that can be stopped, and what is left."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.conftest import write_recipe
from tests.lab.test_quick import RECIPES

from anytimecl_lab import whole
from anytimecl_lab.digest import digest
from anytimecl_lab.results import read_lines
from anytimecl_lab.run import LEFT
from anytimecl_lab.whole import main, remaining, shares


def test_every_recipe_is_in_it_once_for_each_group() -> None:
    every = shares(RECIPES)
    held = [(r.name, share.group) for share in every for r in share.recipes]
    assert len(set(held)) == len(held)
    names = {file.stem for file in RECIPES.glob("*.toml")} - {"groups", "quick"}
    assert {name for name, _ in held} == names
    tuned = {name for name in names if name.startswith("tuning")}
    assert set(held) == {(n, "subsets") for n in names} | {
        (n, "true_vectors") for n in names - tuned
    }
    assert {r.name for share in every if share.validation for r in share.recipes} == tuned
    assert all(recipe.group == share.group for share in every for recipe in share.recipes)
    # What needs an encoder that may not be there holds up nothing.
    last = [share for share in every if any(r.name.startswith("dinov2") for r in share.recipes)]
    assert every[-len(last) :] == last


def test_it_is_run_in_parts_and_says_what_is_left(
    data: Path,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole, "ROUNDS", 1)
    for name in ("codecs", "mtil"):
        file = write_recipe(tmp_path, model, "mtil")
        file.write_text(file.read_text().replace("seeds = [0, 1]", "seeds = [0]"))
        file.rename(tmp_path / f"{name}.toml")
    recipes = tmp_path / "codecs.toml"
    text = recipes.read_text()
    recipes.write_text(text[: text.index("[[methods]]")] + text[text.rindex("[[methods]]") :])
    out = tmp_path / "out" / "bench.jsonl"
    words = ["--recipes", str(tmp_path), "--data", str(data), "--out", str(out), "--groups=subsets"]
    assert main([*words, "--left"]) == LEFT
    assert not out.exists()
    assert "| mtil | subsets | 3 | 3 |" in capsys.readouterr().out
    assert main([*words, "--minutes", "0"]) == LEFT
    assert "4 runs are left." in capsys.readouterr().out
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "| mtil | subsets | 3 | 0 |" in told
    assert "Nothing is left." in told
    assert {line["digest"] for line in read_lines(out)} == {digest()}
    times = out.with_name("codec_timings.jsonl")
    before = times.read_text()
    assert main(words) == 0
    assert times.read_text() == before
    out.write_text("\n".join(out.read_text().splitlines()[1:]) + "\n")
    assert remaining(shares(tmp_path, ["subsets"]), data, out, 1).note == "1 runs are left."


def test_what_cannot_be_run_hinders_nobody(
    data: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_recipe(tmp_path, model, "mtil")
    text = file.read_text().replace("seeds = [0, 1]", "seeds = [0]")
    file.write_text(text)
    absent = text.replace('"online"', '"encoder"\nencoder = "no/such"')
    (tmp_path / "absent.toml").write_text(absent)
    out = tmp_path / "bench.jsonl"
    words = ["--recipes", str(tmp_path), "--data", str(data), "--out", str(out)]
    assert main([*words, "--groups=subsets"]) == 1
    assert "Not run: absent (subsets): " in capsys.readouterr().err
    assert len(read_lines(out)) == 3
