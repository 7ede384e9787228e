"""Folders in other layouts say what they are, and what comes nearest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.backbone import tiny
from tests.backbone.compare import kept

from anytimecl.backbone import load
from anytimecl.backbone.layout import lacking, unreadable
from anytimecl.errors import ModelError

CLIP = {"model_type": "clip"}


@pytest.mark.parametrize(
    ("files", "config", "says"),
    [
        (["pytorch_model.bin"], CLIP, r"only pickled weights \(pytorch_model.bin\).*can run code"),
        (["model.onnx", "onnx/model.onnx"], CLIP, r"only ONNX graphs .*exported from"),
        (["model.fp16.safetensors"], CLIP, r"variant \(model.fp16.safetensors\).*copy the file"),
        (["flax_model.msgpack"], CLIP, "TensorFlow or JAX"),
        (["model.gguf"], CLIP, "another runtime"),
        (["open_clip_pytorch_model.bin"], None, r"open_clip with pickled weights"),
        (["open_clip_model.safetensors"], None, r"no open_clip_config\.json"),
        (["model_index.json", "unet/config.json"], None, "pipeline of diffusers"),
        (["snapshots/config.json", "refs/main"], None, "in the cache of huggingface_hub"),
        (["adapter_config.json", "adapter_model.safetensors"], None, "is an adapter"),
        ([], CLIP, "has no model.safetensors"),
        ([], None, "no config.json"),
    ],
)
def test_a_layout_is_named(
    tmp_path: Path, files: list[str], config: dict[str, Any] | None, says: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=says):
        load(tmp_path)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {"architecture": "vit_base_patch16_siglip_224", "pretrained_cfg": {}},
            r"layout of timm \(vit_base_patch16_siglip_224\).*google/siglip-base-patch16-224",
        ),
        ({"architecture": "vit_base_patch16_gap_224"}, "with a class token load, such as timm's"),
        ({"architecture": "vit_base_patch16_dinov3"}, "facebook/dinov3-vitb16"),
        ({"architecture": "convnext_tiny"}, "google/vit-base-patch16-224"),
        (
            {"model_type": "jina_clip", "auto_map": {"AutoModel": "modeling.JinaCLIP"}},
            r"its own program code \(auto_map\), which anytimecl never runs.*Near",
        ),
        ({"model_type": "siglip2"}, "naflex"),
        ({"model_type": "altclip"}, "'altclip', which anytimecl cannot load.*Near"),
        ({"model_type": "gpt2"}, "'gpt2', which anytimecl cannot load"),
        ({}, "tells no model_type"),
        ({**CLIP, "quantization_config": {"quant_method": "fp8"}}, r"quantised \(fp8\)"),
    ],
)
def test_a_configuration_of_no_family_says_what_it_is(
    tmp_path: Path, config: dict[str, Any], says: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=says):
        load(tmp_path)
    (tmp_path / "model.safetensors").unlink()  # and the configuration speaks first
    with pytest.raises(ModelError, match=says):
        load(tmp_path)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
def test_small_numbers_are_refused(tmp_path: Path, kind: torch.dtype) -> None:
    folder = tiny.dinov2(tmp_path / "small")
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    weights["encoder.layer.0.mlp.fc1.weight"] = weights["encoder.layer.0.mlp.fc1.weight"].to(kind)
    safetensors.torch.save_file(weights, file, {"format": "pt"})
    name = str(kind).removeprefix("torch.")
    with pytest.raises(ModelError, match=rf"quantised: .*fc1.weight is {name}"):
        load(folder)


@pytest.mark.parametrize("kind", ["clip", "open_clip"])
def test_a_pointer_of_git_lfs_is_told_from_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As `git clone` leaves it where git-lfs is not installed."""
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))
    folder = tiny.dinov2(tmp_path / "model") if kind == "clip" else kept(kind, tmp_path / "model")
    file = folder / ("model.safetensors" if kind == "clip" else "open_clip_model.safetensors")
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1a2b\nsize 605157884\n")
    with pytest.raises(ModelError, match=r"only a pointer of Git LFS.*`git lfs pull` in"):
        load(folder)
    file.write_bytes(b"version 2")
    with pytest.raises(ModelError, match="is damaged"):
        load(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = tiny.dinov2(tmp_path / "whole")
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(
        ModelError, match=r"model-00001-of-00002\.safetensors of its 1 weight files"
    ):
        load(folder)
    assert lacking(["config.json"], index) == ["model-00001-of-00002.safetensors"]


def test_many_files_are_not_all_listed() -> None:
    said = str(unreadable("mine", [f"{n}.onnx" for n in range(9)] + ["config.json"], CLIP))
    assert "0.onnx, 1.onnx, 2.onnx and 6 more" in said
