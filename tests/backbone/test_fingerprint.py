"""A fingerprint says what decides features, and a memory of an older version is still known."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers
from tests import helpers
from tests.backbone import tiny

from anytimecl.backbone import Backbone, Preprocess, Spec, TailSpec, load, load_stored
from anytimecl.backbone.embedded import editions
from anytimecl.backbone.export import export_trunk, with_onnx
from anytimecl.backbone.spec import differences
from anytimecl.classifier import AnytimeClassifier
from anytimecl.commands import _common
from anytimecl.errors import ModelError, StoreError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {"clip": tiny.clip(root / "clip"), "siglip": tiny.siglip(root / "siglip")}


@pytest.fixture
def folder(made: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(made["clip"], tmp_path / "copy"))


def before(folder: Path) -> str:
    """The digest of weights as it was when tokenizer files counted, written out."""
    names = [
        "model.safetensors", "added_tokens.json", "merges.txt", "special_tokens_map.json",
        "spiece.model", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json",
    ]  # fmt: skip
    lines = [
        f"{name} {hashlib.sha256((folder / name).read_bytes()).hexdigest()}\n"
        for name in names
        if (folder / name).is_file()
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def fingerprint_before(spec: Spec, weights: str) -> str:
    """The fingerprint as it was when a `Spec` had no commit, precision or rotary positions."""
    plain = {**spec.to_dict(), "weights": weights}
    for new in ("name", "revision", "trunk", "names"):
        del plain[new]
    del plain["tail"]["rotary"]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def test_where_a_tokenizer_came_from_is_no_part_of_it(folder: Path) -> None:
    fingerprint = load(folder).spec.fingerprint
    tiny.edit(folder / "tokenizer_config.json", name_or_path="elsewhere", clean_up=False)
    assert load(folder).spec.fingerprint == fingerprint


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_what_a_tokenizer_does_is_part_of_it(
    made: dict[str, Path], tmp_path: Path, name: str
) -> None:
    folder = Path(shutil.copytree(made[name], tmp_path / "changed"))
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = ("a</w>", "o</w>") if name == "clip" else ("cat", "dog")
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(tokenizer))
    (folder / "vocab.json").unlink(missing_ok=True)
    assert load(folder).spec.fingerprint != load(made[name]).spec.fingerprint


def test_in_which_files_weights_lie_is_no_part_of_it(folder: Path) -> None:
    fingerprint = load(folder).spec.fingerprint
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    ids = {"text_model.embeddings.position_ids": torch.arange(20)[None]}
    safetensors.torch.save_file({**weights, **ids}, file, {"format": "pt", "by": "another"})
    assert load(folder).spec.fingerprint == fingerprint
    model = transformers.CLIPModel.from_pretrained(folder)
    file.unlink()
    model.save_pretrained(folder, max_shard_size="50KB")
    assert not file.exists()
    assert load(folder).spec.fingerprint == fingerprint


def test_weights_are_part_of_it(folder: Path) -> None:
    fingerprint = load(folder).spec.fingerprint
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    for name in ("text_model.final_layer_norm.bias", "visual_projection.weight"):
        changed = weights[name].clone()
        changed.view(-1)[0] += 1e-3
        safetensors.torch.save_file({**weights, name: changed}, file, {"format": "pt"})
        assert load(folder).spec.fingerprint != fingerprint, name


# --------------------------------------------------------------------- memories of older versions


def older(folder: Path, backbone: Backbone) -> Backbone:
    """The model as an older version knew it."""
    plain = backbone.spec.to_dict()
    del plain["revision"], plain["trunk"], plain["names"]
    spec = Spec.from_dict({**plain, "weights": before(folder)})
    assert spec.fingerprint == fingerprint_before(spec, before(folder))
    return dataclasses.replace(backbone, spec=spec, former_weights=None)


def test_a_model_is_known_by_its_former_fingerprint(folder: Path) -> None:
    backbone = load(folder, tail_blocks=2)
    former = fingerprint_before(backbone.spec, before(folder))
    assert former != backbone.spec.fingerprint
    assert backbone.known_as(former).spec.fingerprint == former
    assert backbone.former().spec.fingerprint == former
    assert backbone.known_as(backbone.spec.fingerprint) is backbone
    assert backbone.known_as("0123456789abcdef") is backbone
    another = load(folder, tail_blocks=1)
    assert another.known_as(former).spec.fingerprint == another.spec.fingerprint


def test_a_memory_that_was_made_before_opens_and_goes_on(folder: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    with AnytimeClassifier.open(
        memory, model=older(folder, load(folder)), settings=helpers.settings()
    ) as classifier:
        for number in range(6):
            classifier.learn_one(*helpers.lesson(number))
        knew = helpers.knowledge(classifier)
    with _common.owning(memory, None) as classifier:
        assert not helpers.differing(helpers.knowledge(classifier), knew)
        classifier.learn_one(*helpers.lesson(6))
    with _common.owning(memory, str(folder)) as classifier:
        assert len(classifier) == 7


def test_a_memory_of_an_exported_trunk_is_known_too(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "trunk.onnx"
    old = older(folder, load(folder))
    export_trunk(old, file, "int8")  # whose metadata holds the digest of that time
    stored = with_onnx(old, file).spec
    found = load(file)
    assert found.spec.trunk == "int8"
    assert found.known_as(stored.fingerprint).spec.fingerprint == stored.fingerprint


def test_a_description_has_the_fingerprint_it_always_had() -> None:
    """As the version wrote it that knew no commits, no precision and no rotary positions."""
    pixels = Preprocess(224, 224, "shortest", 224, "bicubic", (0.5,) * 3, (0.5,) * 3)
    tail = TailSpec(11, 1, 768, 12, "quick_gelu", 1e-5)
    spec = Spec("x", "clip", pixels, tail, 197, 512, 100.0, 0.0, "weights")
    assert spec.fingerprint == "2e5a8c83c363fe73"
    told = dataclasses.replace(spec, name="y", revision="a" * 40, trunk="int8")
    assert told.fingerprint == spec.fingerprint


def test_a_memory_of_an_earlier_edition_opens_and_goes_on(folder: Path, tmp_path: Path) -> None:
    """One whose text side, and the scale fitted with it, was another."""
    today = load(folder)
    earlier = dataclasses.replace(today.spec, weights="another text side", logit_scale=50.0)
    memory = tmp_path / "memory"
    with AnytimeClassifier.open(
        memory, model=dataclasses.replace(today, spec=earlier), settings=helpers.settings()
    ) as classifier:
        for number in range(4):
            classifier.learn_one(*helpers.lesson(number))
        knew = helpers.knowledge(classifier)
    with pytest.raises(StoreError, match="another logit scale"):
        AnytimeClassifier.open(memory, model=today)
    known = dataclasses.replace(today, former_specs=(earlier,))
    with AnytimeClassifier.open(memory, model=known) as classifier:
        assert classifier.backbone.spec == earlier
        assert not helpers.differing(helpers.knowledge(classifier), knew)
        classifier.learn_one(*helpers.lesson(5))


def test_earlier_editions_are_described_for_both_kinds_of_trunk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pixels = Preprocess(224, 224, "shortest", 224, "bicubic", (0.5,) * 3, (0.5,) * 3)
    tail = TailSpec(11, 1, 768, 12, "quick_gelu", 1e-5)
    spec = Spec("embedded", "clip", pixels, tail, 197, 512, 150.0, 0.0, "b", "3", "int8")
    (second,) = editions.former_specs(spec)
    assert (second.revision, second.logit_scale) == ("2", 150.0)
    monkeypatch.setattr(editions, "SAME_IMAGES", (editions.Edition("2", "a", 140.0),))
    (int8,) = editions.former_specs(spec)
    assert (int8.weights, int8.logit_scale, int8.revision) == ("a", 140.0, "2")
    (floating,) = editions.former_specs(dataclasses.replace(spec, trunk="float"))
    assert floating.weights == hashlib.sha256(b"a float").hexdigest()


# -------------------------------------------------------------------------------- exported trunks


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_exported_trunk_is_named_by_its_file(
    folder: Path, tmp_path: Path, blocks: int, precision: str
) -> None:
    own = load(folder, tail_blocks=blocks)
    export_trunk(own, tmp_path / "trunk.onnx", precision)  # type: ignore[arg-type]
    found = load(tmp_path / "trunk.onnx")
    assert found.spec.name == str(tmp_path / "trunk.onnx")
    assert found.spec.tail == own.spec.tail
    assert (found.spec.fingerprint == own.spec.fingerprint) == (precision == "fp32")
    stored = {
        "spec": json.dumps(found.spec.to_dict()),
        "fingerprint": found.spec.fingerprint,
    }
    assert load_stored(stored).spec == found.spec


def test_a_foreign_graph_is_no_trunk(folder: Path, tmp_path: Path) -> None:
    import onnx

    file = tmp_path / "trunk.onnx"
    export_trunk(load(folder), file)
    graph = onnx.load(str(file))
    del graph.metadata_props[:]
    onnx.save(graph, str(file))
    with pytest.raises(ModelError, match="not exported by anytimecl"):
        load(file)


# ----------------------------------------------------------------------------------- in words


def test_differences_are_named(folder: Path, tmp_path: Path) -> None:
    spec, two = load(folder).spec, load(folder, tail_blocks=2).spec
    assert differences(spec, spec) == []
    assert differences(spec, two) == ["a tail of 1 block, not 2"]
    export_trunk(load(folder), tmp_path / "trunk.onnx", "int8")
    int8 = load(tmp_path / "trunk.onnx").spec
    assert differences(int8, spec) == ["an int8 trunk, not a float one"]
    assert differences(spec, int8) == ["a float trunk, not an int8 one"]
    assert differences(int8, two) == ["an int8 trunk, not a float one", "a tail of 1 block, not 2"]
    plain = spec.to_dict()
    del plain["trunk"]  # as an older version wrote it, of either kind
    assert differences(Spec.from_dict({**plain, "weights": "?"}), int8) == [
        "other weights or another tokeniser"
    ]
    other = load(tiny.clip(tmp_path / "other", seed=1)).spec
    assert "another logit scale or bias" in differences(spec, other)
    other = dataclasses.replace(other, logit_scale=spec.logit_scale, revision="a" * 40)
    here = dataclasses.replace(spec, revision="b" * 40)
    [told] = differences(here, other)
    assert told == f"other weights or another tokeniser (commit {'b' * 12}, not {'a' * 12})"
    smaller = dataclasses.replace(spec, preprocess=dataclasses.replace(spec.preprocess, height=16))
    assert differences(spec, smaller) == ["other preprocessing of images"]
