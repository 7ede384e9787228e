"""`anytimecl model` and the frame of the command line, without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from anytimecl.backbone import embedded
from anytimecl.backbone.embedded import assemble
from anytimecl.backbone.embedded.fetch import sha256_of
from anytimecl.cli import app
from anytimecl.errors import ModelError

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))
    runner = CliRunner()
    return lambda *words: runner.invoke(app, list(words))


@pytest.fixture
def made(run: Run) -> Path:
    """A model folder with a manifest and one small file."""
    folder = embedded.folder()
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    known = {"sha256": sha256_of(folder / "model.safetensors"), "size": 7}
    assemble.write_manifest(
        {"weights": assemble.identity(), "files": {"model.safetensors": known}}, folder
    )
    return folder


def test_list_names_the_embedded_model(run: Run) -> None:
    result = run("model", "list")
    assert result.exit_code == 0
    assert any(line.startswith("embedded ") for line in result.output.splitlines())


def test_info_says_the_state_and_every_licence(run: Run) -> None:
    result = run("model", "info", "embedded")
    assert result.exit_code == 0
    assert "not fetched" in result.output
    assert result.output.count("licence:") == 4


def test_info_of_a_hub_model_says_its_hub_name(run: Run) -> None:
    assert "openai/clip-vit-base-patch16" in run("model", "info", "clip-vit-b-16").output


def test_verify_accepts_what_was_made(run: Run, made: Path) -> None:
    result = run("model", "verify", "embedded")
    assert (result.exit_code, result.stdout) == (0, "embedded: 1 files, all as made\n")


@pytest.mark.parametrize("damage", [lambda f: f.write_bytes(b"weightz"), Path.unlink])
def test_verify_names_what_changed(run: Run, made: Path, damage: Callable[[Path], object]) -> None:
    damage(made / "model.safetensors")
    result = run("model", "verify", "embedded")
    assert result.exit_code == 2
    assert "model.safetensors" in result.stderr


def test_a_model_of_another_version_counts_as_absent(run: Run, made: Path) -> None:
    manifest = json.loads((made / "manifest.json").read_text())
    assemble.write_manifest({**manifest, "weights": "other"}, made)
    result = run("model", "verify", "embedded")
    assert result.exit_code == 2
    assert "anytimecl model fetch embedded" in result.stderr


def test_fetch_passes_the_choice_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        embedded, "set_up", lambda with_dinov2, report: asked.append(with_dinov2) or Path("made")
    )
    assert run("model", "fetch").stdout == "embedded is ready in made\n"
    run("model", "fetch", "embedded", "--with-dinov2")
    assert asked == [False, True]


def test_an_error_is_one_line_and_exit_code_2(run: Run) -> None:
    result = run("model", "info", "nonsense")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("There is no model 'nonsense'")
    assert len(result.stderr.splitlines()) == 1


def test_debug_lets_the_error_through(run: Run) -> None:
    assert isinstance(run("--debug", "model", "info", "nonsense").exception, ModelError)


def test_version_answers(run: Run) -> None:
    result = run("version")
    assert result.exit_code == 0
    assert result.stdout.strip()


def test_loading_what_was_not_fetched_says_what_to_run(run: Run) -> None:
    with pytest.raises(ModelError, match="anytimecl model fetch embedded"):
        embedded.load()
