"""SigLIPs in the layout of open_clip; test_compare.py holds them to what open_clip said."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from tests import helpers
from tests.backbone import tiny
from tests.backbone.compare import kept

from anytimecl import AnytimeClassifier
from anytimecl.backbone import load
from anytimecl.backbone.hub_text import HubText
from anytimecl.backbone.open_clip_siglip import PROBE, is_one
from anytimecl.errors import ModelError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))
    return kept("open_clip_siglip", tmp_path / "model")


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "open_clip_config.json").read_text("utf-8"))
    return config


def canonical(text: str) -> str:
    """The reference: as open_clip writes it."""
    text = text.replace("_", " ").translate(str.maketrans("", "", string.punctuation))
    return " ".join(text.lower().split())


@pytest.mark.parametrize(
    "text",
    ["A photo, of the CAT.", " great_white\tshark ", "`dog`~{tabby}|[an]^", "", "...", "CAT"],
)
def test_texts_are_cleaned_as_open_clip_does_it(folder: Path, text: str) -> None:
    ours, tokenizer = load(folder).text, tiny.word_tokenizer()
    assert isinstance(ours, HubText)
    wanted = tokenizer([canonical(text)], padding="max_length", max_length=16)["input_ids"][0]
    assert ours.ids(text) == wanted


def test_it_learns_and_reopens_bit_equal(folder: Path, tmp_path: Path) -> None:
    with AnytimeClassifier.open(tmp_path / "memory", model=folder) as classifier:
        assert classifier.backbone.spec.none_logit is not None  # its bias was read
        assert 0 < classifier.predict(helpers.picture(0), ["cat", "dog"]).none_of_these < 1
        for number in range(4):
            classifier.learn_one(*helpers.lesson(number))
        knew = helpers.knowledge(classifier)
    with AnytimeClassifier.open(tmp_path / "memory") as classifier:
        assert not helpers.differing(helpers.knowledge(classifier), knew)


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("vision_cfg", "timm_model_name", "vit_base_patch16_siglip_gap_224"),
        ("vision_cfg", "timm_model_name", "convnext_base"),
        ("vision_cfg", "timm_proj", "linear"),
        ("text_cfg", "pool_type", "argmax"),
        ("text_cfg", "norm_kwargs", None),
        ("text_cfg", "hf_model_name", "facebook/nllb-200-distilled-600M"),
        ("text_cfg", "tokenizer_kwargs", {"strip_sep_token": True}),
    ],
)
def test_what_is_built_otherwise_is_refused(
    folder: Path, part: str, key: str, value: object
) -> None:
    config = config_of(folder)
    assert is_one(config["model_cfg"])
    config["model_cfg"][part][key] = value
    assert not is_one(config["model_cfg"])
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"whose image side is timm's .*, which is not read here"):
        load(folder)


def test_a_folder_without_the_tokenisers_own_file_says_so(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "vocab.json")
    with pytest.raises(ModelError, match=r"has no tokenizer\.json\. Put that of"):
        load(folder)


def test_a_missing_weight_is_named(folder: Path) -> None:
    file = folder / "open_clip_model.safetensors"
    weights = safetensors.torch.load_file(file)
    del weights[PROBE.replace("latent", "q.weight")]
    safetensors.torch.save_file(weights, file)
    with pytest.raises(ModelError, match=r"Missing: head\.attention\.in_proj_weight"):
        load(folder)
