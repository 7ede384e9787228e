"""Models of every kind from the command line, and `anytimecl model` with hub names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from tests.backbone import stand_in, tiny
from tests.backbone.stand_in import Hub
from tests.commands.conftest import Run

from anytimecl import AnytimeClassifier, backbone
from anytimecl.memory import open_memory
from anytimecl.settings import Settings

ASK = ("--labels", "cat,dog")


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.siglip(tmp_path_factory.mktemp("siglip") / "model")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with stand_in.serving() as serving:
        stand_in.point_to(serving, tmp_path / "hub", monkeypatch)
        yield serving
        huggingface_hub.close_session()


def test_siglip_answers_without_being_taught(run: Run, photos: Path, siglip: Path) -> None:
    result = run("predict", photos / "test", *ASK, "--model", siglip, "--json")
    assert result.exit_code == 0, result.output
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(answers) == 3
    # Its bias says how likely neither is.
    assert all(0 < answer["none_of_these"] < 1 for answer in answers)


def test_siglip_learns_with_a_codec_of_its_own(run: Run, photos: Path, siglip: Path) -> None:
    result = run("learn", photos, "--memory", "memory", "--model", siglip)
    assert result.exit_code == 0, result.output
    with open_memory(Path("memory"), read_only=True) as store:
        assert json.loads(store.meta["settings"])["codec"] == "attention-pca"
    first = run("predict", photos / "test", "--memory", "memory", "--json")
    assert first.exit_code == 0, first.output
    assert run("predict", photos / "test", "--memory", "memory", "--json").stdout == first.stdout
    # The same command goes on: what it would choose by itself is what the memory has.
    again = run("learn", photos, "--memory", "memory", "--model", siglip)
    assert again.exit_code == 0, again.output


def test_images_turn_from_a_siglip_to_others_and_back(
    run: Run, photos: Path, siglip: Path, tmp_path: Path
) -> None:
    result = run("learn", photos, "--memory", "a", "--model", siglip, "--codec", "image")
    assert result.exit_code == 0, result.output
    for source, to, model, blocks in (
        ("a", "b", tiny.dinov2(tmp_path / "dinov2"), 1),
        ("b", "c", siglip, 0),
    ):
        options = () if to == "c" else ("--codec", "image")
        result = run("memory", "reencode", source, "--to", to, "--model", model, *options)
        assert result.exit_code == 0, result.output
        with open_memory(Path(to), read_only=True) as store:
            assert json.loads(store.meta["spec"])["tail"]["blocks"] == blocks
    assert run("predict", photos / "test", "--memory", "c").exit_code == 0


def test_a_chosen_codec_is_the_one_that_is_taken(run: Run, photos: Path, siglip: Path) -> None:
    result = run("learn", photos, "--memory", "m", "--model", siglip, "--codec", "tokens-fp32")
    assert result.exit_code == 0, result.output
    result = run("learn", photos, "--memory", "n", "--model", siglip, "--codec", "pca-image-cls")
    assert result.exit_code == 2
    assert "needs a tail of one block" in result.stderr
    assert not Path("n").exists()


def test_a_model_of_images_only_can_be_taught_and_says_what_it_cannot(
    run: Run, photos: Path, tmp_path: Path
) -> None:
    folder = tiny.dinov2(tmp_path / "dinov2")
    result = run("predict", photos / "test", *ASK, "--model", folder)
    assert result.exit_code == 2
    assert "knows images only, so it can tell no label that it was not taught" in result.stderr
    result = run("learn", photos, "--memory", "memory", "--model", folder)
    assert result.exit_code == 0, result.output
    result = run("predict", photos / "test", "--memory", "memory")
    assert result.exit_code == 0, result.output


def test_a_memory_brings_its_tail_to_a_named_model(run: Run, photos: Path, model: Path) -> None:
    two = backbone.load(model, tail_blocks=2)
    AnytimeClassifier.open("memory", model=two, settings=Settings(codec="tokens-fp16")).close()
    result = run("predict", photos / "test", *ASK, "--memory", "memory", "--model", model)
    assert result.exit_code == 0, result.output


def test_an_exported_trunk_can_be_named(run: Run, photos: Path, model: Path) -> None:
    result = run("export", "--to", "trunk.onnx", "--model", model, "--int8")
    assert result.exit_code == 0, result.output
    result = run("learn", photos, "--memory", "memory", "--model", "trunk.onnx")
    assert result.exit_code == 0, result.output
    result = run("predict", photos / "test", "--memory", "memory")
    assert result.exit_code == 0, result.output


# --------------------------------------------------------------------------------------- model


def test_fetch_takes_a_hub_name(run: Run, hub: Hub, tmp_path: Path) -> None:
    made = hub.repository("someone/tiny")
    commit = made.commit(stand_in.files_of(tiny.clip(tmp_path / "tiny")), "main")
    for written in ("someone/tiny", "hf-hub:someone/tiny", "https://hf.co/someone/tiny/tree/main"):
        result = run("model", "fetch", written)
        assert result.exit_code == 0, result.output
        assert f"is ready at commit {commit}: clip, 32 by 32 pixels" in result.stdout
    result = run("model", "remove", "someone/tiny@elsewhere")
    assert "someone/tiny@elsewhere is not in the Hugging Face cache" in result.stderr
    result = run("model", "remove", "someone/tiny")
    assert result.exit_code == 0, result.output
    result = run("model", "remove", "someone/tiny")
    assert "someone/tiny is not in the Hugging Face cache" in result.stderr


def test_fetch_says_that_a_model_cannot_be_used(run: Run, hub: Hub) -> None:
    hub.repository("someone/gpt").commit(
        {"config.json": b'{"model_type": "gpt2"}', "model.safetensors": b""}, "main"
    )
    result = run("model", "fetch", "someone/gpt")
    assert result.exit_code == 2
    assert "of type 'gpt2', which anytimecl cannot load" in result.stderr
    assert not any(
        "model.safetensors" in asked for asked in hub.asked
    )  # gigabytes, and for nothing


def test_info_takes_a_hub_name(run: Run) -> None:
    result = run("model", "info", "someone/tiny@v2")
    assert "from: someone/tiny@v2, by its Hugging Face name" in result.stdout


def test_models_are_listed_with_what_others_call_them(run: Run) -> None:
    lines = run("model", "list").stdout.splitlines()
    assert any(line.startswith("clip-vit-b-32 ") and "ViT-B/32" in line for line in lines)
    result = run("model", "info", "ViT-B/32")
    assert "from: openai/clip-vit-base-patch32" in result.stdout


@pytest.mark.e2e
def test_the_program_asks_the_hub_that_it_is_told(tmp_path: Path) -> None:
    """In a process of its own, with nothing but the variables that people set."""
    with stand_in.serving() as hub:
        made = hub.repository("someone/tiny")
        commit = made.commit(stand_in.files_of(tiny.clip(tmp_path / "tiny")), "main")
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(tmp_path / "home"),
            "ANYTIMECL_CACHE": str(tmp_path / "cache"),
            "NO_PROXY": "127.0.0.1",
        }
        environment.pop("HF_HUB_CACHE", None)
        words = [sys.executable, "-m", "anytimecl.cli", "model", "fetch"]
        words.append(f"{hub.url}/someone/tiny")  # as pasted from the page of a mirror
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert f"someone/tiny is ready at commit {commit}" in done.stdout
