"""What ages a line of results, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from anytimecl_lab import digest as marks


def test_what_decides_results_is_in_it_and_nothing_else() -> None:
    found = set(marks.deciding())
    assert {"anytimecl.loss", "anytimecl.learner", "anytimecl.sampling", "anytimecl.blend"} <= found
    assert {"anytimecl_lab.run", "anytimecl_lab.methods.online", "anytimecl_lab.codecs.vq"} <= found
    assert "anytimecl.backbone.embedded.text" in found  # the model
    rooms = {name.split(".")[1] for name in found}
    assert not rooms & {"serve", "commands", "cli", "client", "demo", "adapters"}
    assert not rooms & {"memory", "checkpoint", "classifier", "recording", "review", "trainer"}
    assert not rooms & {"report", "tables", "table", "claims", "plots", "verify", "results"}
    assert not rooms & {"few_shot", "needs", "whole", "costs"}  # of the report, or of no run
    assert {"stream", "tail", "experts", "pool", "examples"} <= rooms
    assert "sets.toml" in {file.name for file in marks.data_files()}


def test_comments_docstrings_and_layout_do_not_age_it() -> None:
    one = 'def f(x: int) -> int:\n    """Twice."""\n    return 2 * x  # it\n'
    two = "def f(\n    x: int,\n) -> int:\n    return 2 * x\n"
    assert marks.meaning(one) == marks.meaning(two)
    assert marks.meaning(one) != marks.meaning(two.replace("2", "3"))
    assert marks.meaning("x: list = []") != marks.meaning("x: list = [1]")


@pytest.mark.parametrize(
    ("module", "ages"), [("anytimecl.loss", True), ("anytimecl.commands.bench", False)]
)
def test_a_changed_line_of_the_method_is_another_mark(
    module: str, ages: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = marks.ROOT.joinpath(*module.split(".")).with_suffix(".py")
    changed = tmp_path / "changed.py"
    changed.write_text(own.read_text() + "\nNEW = 1\n")
    found = {name: changed if name == module else file for name, file in marks.deciding().items()}
    monkeypatch.setattr(marks, "deciding", lambda: found)
    monkeypatch.setattr(marks, "data_files", list)
    with_change = marks.digest.__wrapped__()
    monkeypatch.undo()
    monkeypatch.setattr(marks, "data_files", list)
    assert (with_change != marks.digest.__wrapped__()) == ages


def test_imports_for_type_checking_alone_are_not_followed() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import anytimecl.serve\n"
    assert list(marks.imports(source)) == []
