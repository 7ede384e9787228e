"""Towers in the layout of timm: what is read of it, and what is refused.

Pixels are compared with what timm's transforms do, written out in Pillow; the rest with what timm
gave (`test_compare.py`).
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from tests.backbone import stand_in, tiny
from tests.backbone.compare import FOREIGN, pictures

from anytimecl import AnytimeClassifier
from anytimecl.backbone import load
from anytimecl.backbone.layout import TIMM
from anytimecl.backbone.timm import hub_config
from anytimecl.errors import ModelError

TOWERS = sorted(found.name for found in FOREIGN.iterdir() if "open_clip" not in found.name)
NEAR = 1e-4


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))


def test_all_layouts_of_timm_are_compared() -> None:
    shapes = [load(FOREIGN / name).spec for name in TOWERS]
    assert {spec.family for spec in shapes} == {"vit", "clip", "dinov2"}
    assert {spec.tail.mlp for spec in shapes} == {"plain", "swiglu"}
    assert {spec.tail.activation for spec in shapes} == {"gelu", "quick_gelu", "silu"}
    assert {spec.tokens for spec in shapes} == {17, 21}  # without and with registers
    assert {spec.tail.norm_eps for spec in shapes} == {1e-5, 1e-6}


@pytest.mark.parametrize(
    ("architecture", "width", "heads", "activation", "eps"),
    [
        ("vit_tiny_patch16_224", 192, 3, "gelu", 1e-6),
        ("deit_small_patch16_224", 384, 6, "gelu", 1e-6),
        ("vit_base_patch16_clip_quickgelu_224", 768, 12, "quick_gelu", 1e-5),
        ("vit_large_patch14_clip_336", 1024, 16, "gelu", 1e-5),
        ("vit_giant_patch14_reg4_dinov2", 1536, 24, "gelu", 1e-6),
    ],
)
def test_what_a_configuration_does_not_tell_is_known_by_its_name(
    architecture: str, width: int, heads: int, activation: str, eps: float
) -> None:
    """As timm builds them; the files on the hub tell no more than this."""
    weights = {
        "patch_embedding.weight": torch.empty(width, 3, 16, 16, device="meta"),
        "layers.0.mlp.fc1.weight": torch.empty(4 * width, width, device="meta"),
        "layers.0.mlp.fc2.weight": torch.empty(width, 4 * width, device="meta"),
    }
    told = {"architecture": architecture, "global_pool": "token", "pretrained_cfg": {}}
    assert TIMM.fullmatch(architecture)
    made = hub_config("mine", told, weights)
    assert (made["num_attention_heads"], made["hidden_act"]) == (heads, activation)
    assert (made["layer_norm_eps"], made["image_size"], made["patch_size"]) == (eps, 224, 16)


@pytest.mark.parametrize("mode", ["center", "squash"])
def test_pixels_are_those_of_timms_transforms(tmp_path: Path, mode: str) -> None:
    folder = edited(tmp_path, pretrained_cfg__crop_mode=mode, pretrained_cfg__crop_pct=0.9)
    found = load(folder).pixels(pictures())
    larger = math.floor(16 / 0.9)
    for picture, own in zip(pictures(), found, strict=True):
        short = min(picture.size)
        across, down = (int(larger * edge / short) for edge in picture.size)
        if mode == "squash":
            across, down = larger, larger
        resized = picture.resize((across, down), PIL.Image.Resampling.BICUBIC)
        # As transformers crops; torchvision lies a pixel further where 3, 7, 11 ... are cut off.
        left, top = (across - 16) // 2, (down - 16) // 2
        values = np.asarray(resized.crop((left, top, left + 16, top + 16))) / 255
        wanted = (values - 0.5) / 0.5
        assert np.abs(wanted.transpose(2, 0, 1) - own.numpy()).max() < NEAR


def test_a_memory_of_one_learns_and_reopens_bit_equal(tmp_path: Path) -> None:
    folder = FOREIGN / "vit_tiny_patch16_224"
    with AnytimeClassifier.open(tmp_path / "memory", model=str(folder)) as classifier:
        for number, picture in enumerate(pictures()):
            classifier.learn_one(picture, f"code {number % 2}")
        before = classifier.predict_proba(pictures())
    with AnytimeClassifier.open(tmp_path / "memory") as classifier:
        assert np.array_equal(classifier.predict_proba(pictures()), before)


def test_it_comes_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = stand_in.files_of(FOREIGN / "vit_small_patch14_dinov2")
    del files["expected.safetensors"]
    with stand_in.serving() as hub:
        stand_in.point_to(hub, tmp_path / "hub", monkeypatch)
        commit = hub.repository("timm/vit_small_patch14_dinov2.lvd142m").commit(files, "main")
        found = load("hf-hub:timm/vit_small_patch14_dinov2.lvd142m").spec
        assert (found.name, found.revision) == ("timm/vit_small_patch14_dinov2.lvd142m", commit)
        pickled = {"config.json": files["config.json"], "pytorch_model.bin": b"pickled"}
        hub.repository("timm/pickled").commit(pickled, "main")
        with pytest.raises(ModelError, match="only pickled weights"):
            load("timm/pickled")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_args__qk_norm": True}, r"timm model \(vit_tiny_patch16_224\) with qk_norm=True"),
        (
            {"global_pool": "avg", "model_args": {}},
            "global_pool='avg'.*google/vit-base",
        ),
        ({"pretrained_cfg__input_size": [3, 16, 32]}, "16 by 32 pixels"),
        ({"pretrained_cfg__crop_mode": "border"}, "resizes images by 'border'"),
        ({"pretrained_cfg__input_size": [16]}, r"config\.json of .* cannot be used: ValueError"),
    ],
)
def test_what_is_unusual_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        load(edited(tmp_path, **change))


def test_a_folder_with_pickles_alone_says_so(tmp_path: Path) -> None:
    folder = edited(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"only pickled weights \(pytorch_model\.bin\)"):
        load(folder)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = edited(tmp_path)
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ModelError, match=r"model\.safetensors of .* is damaged"):
        load(folder)


def edited(to: Path, **changes: Any) -> Path:
    """A copy of a tower whose configuration says something else."""
    folder = shutil.copytree(FOREIGN / "vit_tiny_patch16_224", to / "model")
    tiny.edit(folder / "config.json", **changes)
    assert json.loads((folder / "config.json").read_text())["architecture"]
    return folder
