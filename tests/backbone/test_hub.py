"""Models of every family give what transformers gives; anything unusual is refused."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
import safetensors.torch
import torch
import transformers
from tests.backbone import tiny

from anytimecl import AnytimeClassifier, tail
from anytimecl.backbone import Backbone, ModelCard, card_of, list_models, load
from anytimecl.backbone.embedded import assemble
from anytimecl.backbone.spec import Spec
from anytimecl.backbone.trunk import TorchTrunk
from anytimecl.errors import ImageError, ModelError

Maker = Callable[..., Path]

FAMILIES: dict[str, tuple[Maker, dict[str, Any]]] = {
    "clip": (tiny.clip, {}),
    "clip gelu": (tiny.clip, {"hidden_act": "gelu"}),
    "siglip": (tiny.siglip, {}),
    "siglip pieces": (tiny.siglip, {"pieces": True}),
    "dinov2": (tiny.dinov2, {}),
    "dinov2 swiglu": (tiny.dinov2, {"swiglu": True}),
    "dinov2 registers": (tiny.dinov2, {"registers": 4}),
    "dinov2 registers swiglu": (tiny.dinov2, {"registers": 2, "swiglu": True}),
    "dinov2 own size": (tiny.dinov2, {"image_size": 42}),
    "metaclip 2": (tiny.metaclip2, {}),
    "chinese clip": (tiny.chinese_clip, {}),
    "vit": (tiny.vit, {}),
    "vit classifier": (tiny.vit, {"classifier": True}),
    "dinov3": (tiny.dinov3, {}),
    "dinov3 wide": (tiny.dinov3, {"width": 48}),
    "dinov3 gated": (tiny.dinov3, {"use_gated_mlp": True, "hidden_act": "silu"}),
    "dinov3 key bias": (tiny.dinov3, {"key_bias": True, "registers": 0, "rope_theta": 40.0}),
}
WITH_TEXT = ["clip", "siglip", "siglip pieces", "metaclip 2", "chinese clip"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: make(root / name, **how) for name, (make, how) in FAMILIES.items()}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))


def copy(folders: dict[str, Path], name: str, to: Path) -> Path:
    return Path(shutil.copytree(folders[name], to / "copy"))


def reference(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        if hasattr(model, "get_image_features"):
            return model.get_image_features(pixel_values=pixels).pooler_output
        if model.config.model_type == "vit":  # whose pooler is of another task
            return model(pixels).last_hidden_state[:, 0]
        return model(pixels).pooler_output


def features(backbone: Backbone, pixels: torch.Tensor) -> torch.Tensor:
    return tail.embed(backbone.tail, backbone.spec.tail, backbone.trunk(pixels))


def some_pixels(backbone: Backbone) -> torch.Tensor:
    prep = backbone.spec.preprocess
    generator = torch.Generator().manual_seed(3)
    return torch.randn(5, 3, prep.height, prep.width, generator=generator)


@pytest.mark.parametrize("tail_blocks", [1, 2, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_image_features_are_those_of_transformers(
    folders: dict[str, Path], name: str, tail_blocks: int
) -> None:
    backbone = load(folders[name], tail_blocks=tail_blocks)
    pixels = some_pixels(backbone)
    expected = reference(folders[name], pixels)
    assert (features(backbone, pixels) - expected).abs().max() < 1e-4
    assert expected.std(0).min() > 1e-3  # images differ, so equality says something
    assert backbone.spec.tail.first == tiny.BLOCKS - tail_blocks
    assert backbone.trunk(pixels).shape == (5, backbone.spec.tokens, backbone.spec.tail.width)
    assert features(backbone, pixels).shape == (5, backbone.spec.dim)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_weight_of_the_tail_counts(folders: dict[str, Path], name: str) -> None:
    backbone = load(folders[name], tail_blocks=2)
    pixels = some_pixels(backbone)
    tokens = backbone.trunk(pixels)
    before = tail.embed(backbone.tail, backbone.spec.tail, tokens)
    last = backbone.spec.tail.last
    dropped = {"head.attention.k_proj.bias"}  # softmax drops a bias of the keys
    if backbone.spec.tail.rotary is None:  # unless it is turned
        dropped |= {f"layers.{index}.self_attn.k_proj.bias" for index in (last - 1, last)}
    for key, value in backbone.tail.items():
        changed = {**backbone.tail, key: value + torch.linspace(0, 1, value.numel()).view_as(value)}
        after = tail.embed(changed, backbone.spec.tail, tokens)
        assert ((after - before).abs().max() > 1e-5) == (key not in dropped), key


@pytest.mark.parametrize("name", WITH_TEXT)
def test_text_vectors_are_those_of_transformers(folders: dict[str, Path], name: str) -> None:
    folder = folders[name]
    backbone = load(folder)
    texts = ["a photo of a cat.", "the golden retriever", "a", "cat dog cat dog cat dog " * 9]
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    length = model.config.text_config.max_position_embeddings
    assert backbone.text is not None
    for text, got in zip(texts, backbone.text(texts), strict=True):
        # One at a time, so that only SigLIP's needs padding, which it was trained with.
        padding = "max_length" if name.startswith("siglip") else "do_not_pad"
        tokens = tokenizer(
            [text], padding=padding, truncation=True, max_length=length, return_tensors="pt"
        )
        with torch.no_grad():
            expected = model.get_text_features(input_ids=tokens["input_ids"]).pooler_output[0]
        assert (got - expected / expected.norm()).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["clip", "siglip", "metaclip 2", "chinese clip"])
def test_probabilities_are_those_of_transformers(folders: dict[str, Path], name: str) -> None:
    backbone = load(folders[name])
    model = transformers.AutoModel.from_pretrained(folders[name]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[name])
    labels, pixels = ["cat", "dog", "a cat"], some_pixels(backbone)
    inputs = tokenizer(
        [f"a photo of a {label}." for label in labels],
        padding="max_length", max_length=16, return_tensors="pt",
    )  # fmt: skip
    if name == "siglip":  # padding is a part of its texts
        del inputs["attention_mask"]
    with torch.no_grad():
        expected = model(
            input_ids=inputs["input_ids"],
            attention_mask=inputs.get("attention_mask"),
            pixel_values=pixels,
        ).logits_per_image
    spec = backbone.spec
    images = torch.nn.functional.normalize(features(backbone, pixels), dim=-1)
    names = backbone.embed_labels(labels, ["a photo of a {}."])
    logits = spec.logit_scale * images @ names.T + spec.logit_bias
    assert (logits - expected).abs().max() < 1e-4
    without_bias = (spec.logit_scale * images @ names.T).softmax(-1)
    assert (without_bias - expected.softmax(-1)).abs().max() < 1e-5


def test_logit_scale_and_bias_are_kept(folders: dict[str, Path]) -> None:
    weights = safetensors.torch.load_file(folders["siglip"] / "model.safetensors")
    spec = load(folders["siglip"]).spec
    assert spec.logit_scale == pytest.approx(math.exp(weights["logit_scale"].item()))
    assert spec.logit_bias == pytest.approx(weights["logit_bias"].item())
    weights = safetensors.torch.load_file(folders["clip"] / "model.safetensors")
    spec = load(folders["clip"]).spec
    assert spec.logit_scale == pytest.approx(math.exp(weights["logit_scale"].item()))
    assert spec.logit_bias == 0.0


@pytest.mark.parametrize("name", FAMILIES)
def test_spec_survives_json(folders: dict[str, Path], name: str) -> None:
    spec = load(folders[name], tail_blocks=2).spec
    again = Spec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.fingerprint == spec.fingerprint


def test_activation_comes_from_the_configuration(folders: dict[str, Path]) -> None:
    kinds = {name: load(folders[name]).spec.tail for name in FAMILIES}
    assert kinds["clip"].activation == "quick_gelu"
    assert kinds["clip gelu"].activation == "gelu"
    assert kinds["siglip"].activation == "gelu_tanh"
    assert (kinds["dinov2 swiglu"].activation, kinds["dinov2 swiglu"].mlp) == ("silu", "swiglu")


def test_fingerprint_is_of_the_model_and_not_of_its_place(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    moved = copy(folders, "clip", tmp_path)
    spec, again = load(folders["clip"]).spec, load(moved).spec
    assert spec.name != again.name
    assert spec.fingerprint == again.fingerprint
    assert load(moved, tail_blocks=2).spec.fingerprint != spec.fingerprint
    other = load(tiny.clip(tmp_path / "other", seed=1)).spec
    assert other.weights != spec.weights
    same_but = dataclasses.replace(spec, weights=other.weights)
    assert same_but.fingerprint != spec.fingerprint


def test_text_side_is_part_of_the_digest(folders: dict[str, Path], tmp_path: Path) -> None:
    changed = copy(folders, "clip", tmp_path)
    file = changed / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    weights["text_projection.weight"] += 1
    safetensors.torch.save_file(weights, file, {"format": "pt"})
    assert load(changed).spec.weights != load(folders["clip"]).spec.weights


def test_half_precision_and_shards_load(folders: dict[str, Path], tmp_path: Path) -> None:
    whole, folder = load(folders["clip"]), copy(folders, "clip", tmp_path)
    model = transformers.CLIPModel.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="50KB")
    assert not (folder / "model.safetensors").exists()
    pixels = some_pixels(whole)
    assert torch.equal(features(load(folder), pixels), features(whole, pixels))

    half = tmp_path / "half"
    shutil.copytree(folders["clip"], half)
    model.half().save_pretrained(half)
    backbone = load(half)
    assert {value.dtype for value in backbone.tail.values()} == {torch.float32}
    expected = reference_in_float(half, pixels)
    assert (features(backbone, pixels) - expected).abs().max() < 1e-4


def reference_in_float(folder: Path, pixels: torch.Tensor) -> torch.Tensor:
    model = transformers.CLIPModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model.get_image_features(pixel_values=pixels).pooler_output


def test_trunk_holds_only_its_own_blocks(folders: dict[str, Path]) -> None:
    backbone = load(folders["clip"], tail_blocks=2)
    assert isinstance(backbone.trunk, TorchTrunk)
    blocks = {key.split(".")[1] for key in backbone.trunk.params if key.startswith("layers.")}
    assert blocks == {"0"}
    in_tail = {key.split(".")[1] for key in backbone.tail if key.startswith("layers.")}
    assert in_tail == {"1", "2"}


def test_images_to_tokens_to_a_training_step(folders: dict[str, Path]) -> None:
    backbone = load(folders["clip"])
    images = [PIL.Image.new("RGB", (40 + n, 50), (n * 6, 99, 200 - n)) for n in range(40)]
    tokens = backbone.encode(images)  # more than one batch
    assert tokens.shape == (40, backbone.spec.tokens, 32)
    assert not tokens.requires_grad
    one = backbone.trunk(backbone.pixels(images[35:36]))
    assert (tokens[35:36] - one).abs().max() < 1e-5
    assert backbone.encode([]).shape == (0, backbone.spec.tokens, 32)
    assert backbone.pixels([]).shape == (0, 3, 32, 32)
    params = {key: value.clone().requires_grad_() for key, value in backbone.tail.items()}
    tail.embed(params, backbone.spec.tail, tokens).sum().backward()  # refused in inference mode
    assert params["layers.2.mlp.fc1.weight"].grad is not None
    with pytest.raises(ImageError, match=r"write \[image\]"):
        backbone.encode(images[0])  # type: ignore[arg-type]


def test_image_only_models_say_so(folders: dict[str, Path]) -> None:
    backbone = load(folders["dinov2"])
    assert backbone.text is None
    with pytest.raises(ModelError, match="images only"):
        backbone.embed_labels(["cat"])


@pytest.mark.parametrize("tail_blocks", [1, 3])
def test_an_image_tower_of_clip_loads_alone(tmp_path: Path, tail_blocks: int) -> None:
    folder = tiny.clip_vision(tmp_path / "tower")
    backbone = load(folder, tail_blocks=tail_blocks)
    pixels = some_pixels(backbone)
    model = transformers.CLIPVisionModelWithProjection.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = model(pixels).image_embeds
    assert (features(backbone, pixels) - expected).abs().max() < 1e-4
    with pytest.raises(ModelError, match="images only and cannot embed labels"):
        backbone.embed_labels(["cat"])


def test_a_text_side_of_another_version_is_refused(tmp_path: Path) -> None:
    folder = tiny.clip_vision(tmp_path / "tower")
    (folder / "text.safetensors").write_bytes(b"")
    (folder / "manifest.json").write_text(json.dumps({"weights": "older"}))
    with pytest.raises(ModelError, match="another version"):
        load(folder)
    (folder / "manifest.json").write_text(json.dumps({"weights": assemble.identity()}))
    text = load(folder).text  # read when a label needs it
    assert text is not None
    with pytest.raises(ModelError, match=r"damaged .*model fetch embedded"):
        text(["cat"])


@pytest.mark.parametrize("count", [0, -1, 4, True, 1.0, "1"])
def test_tail_blocks_out_of_range_are_refused(folders: dict[str, Path], count: Any) -> None:
    with pytest.raises(ModelError, match="tail"):
        load(folders["clip"], tail_blocks=count)


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("clip", {"model_type": "clipseg"}, "'clipseg'"),
        ("siglip", {"model_type": "siglip2"}, "one fixed resolution"),
        ("clip", {"model_type": None}, "no model_type"),
        ("clip", {"vision_config__hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("clip", {"vision_config__attention_dropout": 0.1}, "attention_dropout"),
        ("clip", {"vision_config__patch_size": [8, 8]}, "patch_size"),
        ("clip", {"vision_config__num_hidden_layers": 2}, r"Not understood: layers\.2\."),
        ("clip", {"vision_config__num_hidden_layers": 4}, r"Missing: layers\.3\."),
        ("clip", {"vision_config__image_size": 64}, "64 by 64"),
        ("clip", {"vision_config__hidden_size": 48}, "shape"),
        ("clip", {"vision_config__num_attention_heads": 0}, "do not fit together"),
        ("clip", {"vision_config__num_attention_heads": -4}, "num_attention_heads is -4"),
        ("clip", {"vision_config__num_hidden_layers": 10**9}, r"Missing: layers\."),
        ("clip", {"quantization_config": "x"}, "do not fit together"),
        ("clip", {"model_type": ["clip"]}, "do not fit together"),
        ("clip", {"vision_config__intermediate_size": "x"}, "config.json"),
        ("siglip", {"vision_config__vision_use_head": False}, "vision_use_head"),
        ("dinov2", {"qkv_bias": False}, "qkv_bias"),
        ("dinov2", {"drop_path_rate": 0.1}, "drop_path_rate"),
        ("dinov2", {"hidden_dropout_prob": 0.1}, "hidden_dropout_prob"),
        ("dinov2", {"use_swiglu_ffn": True}, "shape"),
        ("dinov2 registers", {"model_type": "dinov2"}, "register"),
    ],
)
def test_unusual_models_are_refused(
    folders: dict[str, Path], tmp_path: Path, name: str, changes: dict[str, Any], says: str
) -> None:
    folder = copy(folders, name, tmp_path)
    tiny.edit(folder / "config.json", **changes)
    with pytest.raises(ModelError, match=says):
        load(folder)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("preprocessor_config.json", {"resample": [3]}),
        ("processor_config.json", {"image_processor": "x"}),
        ("model.safetensors.index.json", {"weight_map": ["model.safetensors"]}),
        ("model.safetensors.index.json", {"weight_map": {"a": 1}}),
        ("tokenizer_config.json", []),
    ],
)
def test_files_of_another_shape_are_refused(
    folders: dict[str, Path], tmp_path: Path, file: str, content: Any
) -> None:
    folder = copy(folders, "clip", tmp_path)
    if file == "processor_config.json":
        (folder / "preprocessor_config.json").unlink()
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(ModelError, match="do not fit together"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("patch_embedding.weight", lambda value: value[..., :4]),
        ("patch_embedding.weight", lambda value: value[..., :0, :0]),
        ("logit_scale", lambda value: torch.zeros(3)),
        ("logit_scale", lambda value: torch.tensor(1e30)),
    ],
)
def test_weights_of_another_shape_are_refused(
    folders: dict[str, Path], tmp_path: Path, name: str, change: Callable[[Any], torch.Tensor]
) -> None:
    folder = copy(folders, "clip", tmp_path)
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    for key in [key for key in weights if key.endswith(name)]:
        weights[key] = change(weights[key]).contiguous()
    safetensors.torch.save_file(weights, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"do not fit together|has the shape"):
        load(folder)


def test_odd_weights_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(folders, "dinov2", tmp_path)
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)

    def save(changed: dict[str, torch.Tensor]) -> None:
        safetensors.torch.save_file(changed, file, {"format": "pt"})

    save({key: value for key, value in weights.items() if "layer_scale2" not in key})
    with pytest.raises(ModelError, match="layer_scale2"):
        load(folder)
    save({**weights, "encoder.layer.0.gate.weight": torch.zeros(2)})
    with pytest.raises(ModelError, match=r"Not understood: layers\.0\.gate"):
        load(folder)
    save({**weights, "layernorm.weight": torch.ones(32, dtype=torch.int8)})
    with pytest.raises(ModelError, match="quantised"):
        load(folder)
    save({**weights, "layernorm.weight": torch.full((32,), torch.nan)})
    with pytest.raises(ModelError, match="not finite"):
        load(folder)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ModelError, match="damaged"):
        load(folder)
    file.unlink()
    with pytest.raises(ModelError, match="Only safetensors"):
        load(folder)


def test_pickled_weights_are_never_read(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(folders, "clip", tmp_path)
    torch.save(
        safetensors.torch.load_file(folder / "model.safetensors"), folder / "pytorch_model.bin"
    )
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="can run code"):
        load(folder)


def test_an_incomplete_text_side_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(folders, "clip", tmp_path)
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    del weights["text_model.final_layer_norm.weight"]
    safetensors.torch.save_file(weights, file, {"format": "pt"})
    with pytest.raises(ModelError, match="incomplete"):
        load(folder)
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(ModelError, match="no tokeniser"):
        load(folder)


def test_a_missing_tokeniser_package_is_named(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacks(*_: object, **__: object) -> None:  # what transformers says
        raise ImportError("SiglipTokenizer requires the SentencePiece library but it was not found")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lacks)
    with pytest.raises(ModelError, match=r"sentencepiece: .*-c constraints.txt '\.\[siglip\]'"):
        load(folders["siglip"])


def test_broken_json_is_named(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(folders, "clip", tmp_path)
    (folder / "preprocessor_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"preprocessor_config\.json"):
        load(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"config\.json"):
        load(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"no config\.json"):
        load(folder)


def test_preprocessing_may_be_elsewhere_or_nowhere(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    expected = load(folders["siglip"]).spec.preprocess
    folder = copy(folders, "siglip", tmp_path)
    file = folder / "preprocessor_config.json"
    own = json.loads(file.read_text())
    file.unlink()
    assert load(folder).spec.preprocess == expected  # by the family's table
    (folder / "processor_config.json").write_text(
        json.dumps({"image_processor": {**own, "resample": 2}})
    )
    assert load(folder).spec.preprocess == dataclasses.replace(expected, resample="bilinear")


@pytest.mark.parametrize(
    ("name", "resize", "to"), [("vit", "exact", (32, 32)), ("clip", "shortest", 32)]
)
def test_older_and_newer_ways_to_write_preprocessing_mean_the_same(
    folders: dict[str, Path], tmp_path: Path, name: str, resize: str, to: object
) -> None:
    folder = copy(folders, name, tmp_path)
    expected = load(folder).spec.preprocess
    assert (expected.resize, expected.resize_to) == (resize, to)
    file = folder / "preprocessor_config.json"
    own = json.loads(file.read_text())
    old = {**own, "size": 32, "feature_extractor_type": "ViTFeatureExtractor"}
    file.write_text(json.dumps(old))
    assert load(folder).spec.preprocess == expected
    new = {**own, "resample": None, "do_convert_rgb": None, "data_format": "channels_first"}
    file.write_text(json.dumps(new))
    assert load(folder).spec.preprocess == expected


def test_unknown_names_say_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"Known by name: .*clip-vit-b-16, .*embedded"):
        load("no-such-model")
    with pytest.raises(ModelError, match="no model folder"):
        load(tmp_path / "missing")
    with pytest.raises(ModelError, match="no model folder"):
        load("./missing")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"model\.safetensors is a file\. Give the folder"):
        load(tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="device"):
        load("embedded", device="no-such-device")


def test_registry_is_whole() -> None:
    cards = {card.name: card for card in list_models()}
    assert isinstance(cards["embedded"], ModelCard)
    assert cards["embedded"].loader == "embedded"
    assert all(card.about and card.source for card in cards.values())
    assert {card.loader for card in cards.values()} == {"hub", "embedded", "wheel"}
    others = [name for card in cards.values() for name in card.also]
    assert len({*cards, *others}) == len(cards) + len(others)  # each name means one model
    assert card_of("ViT-B/32") == card_of("ViT-B-32") == cards["clip-vit-b-32"]


def test_half_precision_is_of_a_gpu_and_stays_with_its_memory(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    """A CPU has float32 either way, so that a memory made on a GPU opens without one."""
    plain = load(folders["clip"])
    half = {"name": str(folders["clip"]), "options": {"precision": "float16"}}
    model = load(half)
    pixels = model.pixels([PIL.Image.linear_gradient("L").convert("RGB")])
    assert torch.equal(model.trunk(pixels), plain.trunk(pixels))
    assert model.spec.fingerprint == plain.spec.fingerprint
    with AnytimeClassifier.open(tmp_path / "memory", model=half):
        pass
    with AnytimeClassifier.open(tmp_path / "memory") as again:
        assert isinstance(again.backbone.trunk, TorchTrunk)
        assert again.backbone.trunk.half


@pytest.mark.parametrize("precision", ["half", 16, None])
def test_a_precision_that_there_is_not(folders: dict[str, Path], precision: Any) -> None:
    with pytest.raises(ModelError, match="precision is one of float32, float16"):
        load({"name": str(folders["clip"]), "options": {"precision": precision}})
