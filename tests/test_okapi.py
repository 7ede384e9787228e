"""Six okapis lay among the llamas: moved to their own folder and learned again, they are okapis."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from anytimecl import AnytimeClassifier
from anytimecl.backbone import Backbone
from anytimecl.cli import app
from anytimecl.images import ImageRef, iter_images


def laid_out(refs: list[ImageRef], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{ref.label}-{Path(ref.name).name}" for ref in refs]
    for file, ref in zip(files, refs, strict=True):
        file.write_bytes(ref.read())
    return files


def test_moved_files_are_relabelled(
    embedded: Backbone, shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refs = list(iter_images(shared_data / "caltech101.zip"))
    okapis = [ref for ref in refs if ref.label == "okapi"][:10]
    llamas = [ref for ref in refs if ref.label == "llama"][:6]
    photos = tmp_path / "photos"
    laid_out(llamas, photos / "llama")
    wrong = laid_out(okapis[:6], photos / "llama")
    new = laid_out(okapis[6:], tmp_path / "new")
    run = CliRunner()
    result = run.invoke(app, ["learn", "photos", "--memory", "memory"])
    assert result.exit_code == 0, result.output
    (photos / "okapi").mkdir()
    moved = [file.rename(photos / "okapi" / file.name) for file in wrong]
    result = run.invoke(app, ["learn", "photos", "--memory", "memory", "--ids"])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("relabelled from llama") == 6
    with AnytimeClassifier.open(tmp_path / "memory", model=embedded) as classifier:
        assert classifier.memory.labels() == {"llama": len(llamas), "okapi": 6}
        assert [each.label for each in classifier.predict([str(file) for file in moved])] == [
            "okapi"
        ] * 6
        answers = [each.label for each in classifier.predict([str(file) for file in new])]
        assert answers.count("okapi") >= 3, answers
