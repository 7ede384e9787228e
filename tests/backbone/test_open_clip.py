"""open_clip's own layout gives what the same weights give in transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from tests.backbone import stand_in, tiny
from torch import Tensor

from anytimecl import tail
from anytimecl.backbone import Backbone, load
from anytimecl.backbone.hub_name import HubName
from anytimecl.backbone.open_clip import hub_config
from anytimecl.backbone.repository import fetch
from anytimecl.errors import ModelError

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
MODEL = {
    "embed_dim": 24,
    "vision_cfg": {
        "image_size": 32, "layers": tiny.BLOCKS, "width": 32, "head_width": 8, "patch_size": 8,
        "mlp_ratio": 2.0, "patch_dropout": 0.1, "ls_init_value": None, "pool_type": "tok",
    },
    "text_cfg": {
        "context_length": 20, "width": 32, "heads": 4, "layers": 2, "mlp_ratio": 2.0,
        "pool_type": "argmax", "no_causal_mask": False,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))


def as_open_clip(
    clip: Path, folder: Path, *, text: str = "", preprocess: dict[str, Any] | None = None
) -> Path:
    """A tiny CLIP of transformers as open_clip would save it, written out weight by weight."""
    own = safetensors.torch.load_file(clip / "model.safetensors")
    made: dict[str, Tensor] = {
        "logit_scale": own["logit_scale"],
        "visual.class_embedding": own["vision_model.embeddings.class_embedding"],
        "visual.positional_embedding": own["vision_model.embeddings.position_embedding.weight"],
        "visual.conv1.weight": own["vision_model.embeddings.patch_embedding.weight"],
        "visual.proj": own["visual_projection.weight"].T.contiguous(),
        f"{text}text_projection": own["text_projection.weight"].T.contiguous(),
        f"{text}token_embedding.weight": own["text_model.embeddings.token_embedding.weight"],
        f"{text}positional_embedding": own["text_model.embeddings.position_embedding.weight"],
    }
    for part in ("weight", "bias"):
        made[f"visual.ln_pre.{part}"] = own[f"vision_model.pre_layrnorm.{part}"]
        made[f"visual.ln_post.{part}"] = own[f"vision_model.post_layernorm.{part}"]
        made[f"{text}ln_final.{part}"] = own[f"text_model.final_layer_norm.{part}"]
        for side, blocks, here in (
            ("vision_model", tiny.BLOCKS, "visual."), ("text_model", 2, text),
        ):  # fmt: skip
            for index in range(blocks):
                old = f"{side}.encoder.layers.{index}."
                new = f"{here}transformer.resblocks.{index}."
                made[f"{new}attn.in_proj_{part}"] = torch.cat(
                    [own[f"{old}self_attn.{letter}_proj.{part}"] for letter in "qkv"]
                )
                made[f"{new}attn.out_proj.{part}"] = own[f"{old}self_attn.out_proj.{part}"]
                made[f"{new}ln_1.{part}"] = own[f"{old}layer_norm1.{part}"]
                made[f"{new}ln_2.{part}"] = own[f"{old}layer_norm2.{part}"]
                made[f"{new}mlp.c_fc.{part}"] = own[f"{old}mlp.fc1.{part}"]
                made[f"{new}mlp.c_proj.{part}"] = own[f"{old}mlp.fc2.{part}"]
    folder.mkdir()
    safetensors.torch.save_file(made, folder / "open_clip_model.safetensors")
    config = json.loads((clip / "config.json").read_text())
    words = {**MODEL["text_cfg"], "vocab_size": config["text_config"]["vocab_size"]}
    quick = config["vision_config"].get("hidden_act", "quick_gelu") == "quick_gelu"
    model = {**MODEL, "text_cfg": words, "quick_gelu": quick, "custom_text": bool(text)}
    told = {"model_cfg": model, "preprocess_cfg": preprocess or {}}
    (folder / "open_clip_config.json").write_text(json.dumps(told))
    for name in TOKENIZER:
        if (clip / name).is_file():
            shutil.copy(clip / name, folder)
    return folder


def features(backbone: Backbone, pixels: Tensor) -> Tensor:
    return tail.embed(backbone.tail, backbone.spec.tail, backbone.trunk(pixels))


@pytest.mark.parametrize("text", ["", "text."])
@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_it_gives_what_transformers_gives(tmp_path: Path, text: str, activation: str) -> None:
    clip = tiny.clip(tmp_path / "clip", hidden_act=activation)
    tiny.edit(clip / "config.json", text_config__hidden_act=activation)
    backbone = load(as_open_clip(clip, tmp_path / "open", text=text), tail_blocks=2)
    model = transformers.CLIPModel.from_pretrained(clip).eval()
    pixels = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    texts = ["a photo of a cat.", "the golden retriever", "a"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(clip)
    tokens = tokenizer(texts, padding=True, truncation=True, max_length=20, return_tensors="pt")
    with torch.no_grad():
        expected = model(**tokens, pixel_values=pixels)
    images = torch.nn.functional.normalize(features(backbone, pixels), dim=-1)
    assert backbone.text is not None
    names = backbone.text(texts)
    assert (images - expected.image_embeds).abs().max() < 1e-4
    assert (names - expected.text_embeds).abs().max() < 1e-4
    logits = backbone.spec.logit_scale * images @ names.T
    assert (logits - expected.logits_per_image).abs().max() < 1e-4
    assert torch.equal(logits.argmax(1), expected.logits_per_image.argmax(1))
    assert backbone.spec.tail.activation == activation


def test_it_is_converted_once(tmp_path: Path) -> None:
    folder = as_open_clip(tiny.clip(tmp_path / "clip"), tmp_path / "open")
    first = load(folder).spec
    [made] = (tmp_path / "cache" / "models").glob("open_clip-*/model.safetensors")
    before = made.stat().st_mtime_ns
    assert load(folder).spec == first
    assert made.stat().st_mtime_ns == before
    assert first.name == str(folder)
    told = json.loads((folder / "open_clip_config.json").read_text())
    told["model_cfg"]["quick_gelu"] = False
    (folder / "open_clip_config.json").write_text(json.dumps(told))
    assert load(folder).spec.tail.activation == "gelu"


def test_preprocessing_is_its_own(tmp_path: Path) -> None:
    clip = tiny.clip(tmp_path / "clip")
    plain = load(as_open_clip(clip, tmp_path / "plain")).spec.preprocess
    assert (plain.resize, plain.resize_to, plain.resample) == ("shortest", 32, "bicubic")
    assert plain.mean == (0.48145466, 0.4578275, 0.40821073)
    how = {
        "mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bilinear", "resize_mode": "squash",
    }  # fmt: skip
    own = load(as_open_clip(clip, tmp_path / "own", preprocess=how)).spec.preprocess
    assert (own.resize, own.resize_to, own.resample) == ("exact", (32, 32), "bilinear")
    assert (own.mean, own.std) == ((0.5,) * 3, (0.25,) * 3)
    longest = as_open_clip(clip, tmp_path / "longest", preprocess={"resize_mode": "longest"})
    with pytest.raises(ModelError, match="resizes images by 'longest'"):
        load(longest)


def test_transformers_own_layout_comes_first(tmp_path: Path) -> None:
    clip = tiny.clip(tmp_path / "clip")
    other = as_open_clip(tiny.clip(tmp_path / "other", seed=1), tmp_path / "open")
    fingerprint = load(clip).spec.fingerprint
    for name in ("open_clip_config.json", "open_clip_model.safetensors"):
        shutil.copy(other / name, clip)
    assert load(clip).spec.fingerprint == fingerprint
    tiny.edit(clip / "config.json", model_type="custom")  # which only its own program code reads
    assert load(clip).spec.fingerprint == load(other).spec.fingerprint


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"vision_cfg": {"timm_model_name": "vit_base_patch16_siglip_224"}}, "google/siglip-base"),
        ({"vision_cfg": {"timm_model_name": "convnext_base"}}, "Near to it: openai/clip-vit-base"),
        ({"vision_cfg": {"attentional_pool": True}}, "attentional_pool=True"),
        ({"vision_cfg": {"pool_type": "avg"}}, "pool_type='avg'"),
        ({"vision_cfg": {"layers": [3, 4, 6, 3]}}, "ResNet"),
        (
            {"text_cfg": {"hf_model_name": "xlm-roberta-base"}},
            "hf_model_name='xlm-roberta-base'.*metaclip-2-worldwide",
        ),
        ({"text_cfg": {"pool_type": "eos"}}, "pool_type='eos'.*metaclip-2-worldwide"),
        ({"text_cfg": {"tokenizer_kwargs": {"clean": "canonicalize"}}}, "with tokenizer_kwargs,"),
        ({"multimodal_cfg": {"width": 1}}, "with multimodal_cfg, not read"),
    ],
)
def test_what_open_clip_builds_beside_clip_is_refused(change: dict[str, Any], says: str) -> None:
    model: dict[str, Any] = {**MODEL}
    for part, values in change.items():
        model[part] = {**model.get(part, {}), **values}
    with pytest.raises(ModelError, match=says):
        hub_config("mine", model)


def test_what_a_configuration_leaves_out_is_open_clips_own() -> None:
    told = {"embed_dim": 512, "vision_cfg": {}, "text_cfg": {"tokenizer_kwargs": None}}
    found = hub_config("mine", told)
    whole = {  # ViT-B-16
        "embed_dim": 512,
        "vision_cfg": {"image_size": 224, "layers": 12, "width": 768, "patch_size": 16},
        "text_cfg": {
            "context_length": 77, "vocab_size": 49408, "width": 512, "heads": 8, "layers": 12,
            "proj_type": "linear", "tokenizer_kwargs": {"clean": "whitespace"},
        },
    }  # fmt: skip
    assert found == hub_config("mine", whole)


def test_a_broken_folder_is_named(tmp_path: Path) -> None:
    folder = as_open_clip(tiny.clip(tmp_path / "clip"), tmp_path / "open")
    told = json.loads((folder / "open_clip_config.json").read_text())
    (folder / "open_clip_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"open_clip_config\.json of .* KeyError\('model_cfg'\)"):
        load(folder)
    (folder / "open_clip_config.json").write_text(json.dumps(told))
    weights = (folder / "open_clip_model.safetensors").read_bytes()
    (folder / "open_clip_model.safetensors").write_bytes(weights[:100])
    with pytest.raises(ModelError, match=r"open_clip_model\.safetensors of .* is damaged"):
        load(folder)
    for name in TOKENIZER:
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(ModelError, match=r"brings no tokeniser\. Put tokenizer\.json"):
        load(folder)


def test_it_comes_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = as_open_clip(tiny.clip(tmp_path / "clip"), tmp_path / "open")
    files = stand_in.files_of(folder)
    pickled = {**files, "open_clip_pytorch_model.bin": b"pickled"}
    del pickled["open_clip_model.safetensors"]
    foreign = json.dumps({"model_type": "custom", "auto_map": {}}).encode()
    with stand_in.serving() as hub:
        stand_in.point_to(hub, tmp_path / "hub", monkeypatch)
        commit = hub.repository("lab/bioclip").commit(files, "main")
        hub.repository("lab/pickled").commit(pickled, "main")
        hub.repository("lab/coded").commit({**files, "config.json": foreign}, "main")
        found = load("hf-hub:lab/bioclip").spec
        assert (found.name, found.revision) == ("lab/bioclip", commit)
        assert found.fingerprint == load(folder).spec.fingerprint
        assert load("lab/coded").spec.fingerprint == found.fingerprint
        with pytest.raises(ModelError, match="open_clip with pickled weights"):
            fetch(HubName("lab/pickled"))
