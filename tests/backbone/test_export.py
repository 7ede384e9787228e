"""ONNX trunks are the torch ones, whatever the family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from tests.backbone import tiny

from anytimecl import AnytimeClassifier, tail
from anytimecl.backbone import Backbone, _graph, _pictures, export, load
from anytimecl.backbone.export import export_trunk, with_onnx
from anytimecl.backbone.trunk import OnnxTrunk
from anytimecl.errors import ModelError

Damage = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]

MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "clip": (tiny.clip, {}),
    "clip gelu": (tiny.clip, {"hidden_act": "gelu"}),
    "siglip": (tiny.siglip, {}),
    "dinov2 registers swiglu": (tiny.dinov2, {"registers": 3, "swiglu": True}),
    "dinov3": (tiny.dinov3, {}),
    "dinov3 wide": (tiny.dinov3, {"width": 48, "key_bias": True}),
}


@pytest.fixture(scope="module")
def backbones(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Backbone]:
    root = tmp_path_factory.mktemp("models")
    return {name: load(make(root / name, **how)) for name, (make, how) in MODELS.items()}


def some_pixels(backbone: Backbone, count: int = 4) -> torch.Tensor:
    prep = backbone.spec.preprocess
    generator = torch.Generator().manual_seed(9)
    return torch.randn(count, 3, prep.height, prep.width, generator=generator)


@pytest.mark.parametrize("name", MODELS)
def test_float_trunks_are_the_same_function(
    backbones: dict[str, Backbone], name: str, tmp_path: Path
) -> None:
    backbone = backbones[name]
    done = export_trunk(backbone, tmp_path / "deep" / "trunk.onnx")
    assert done.max_difference < 1e-4
    assert done.cosine > 0.9999
    onnx.checker.check_model(str(done.file), full_check=True)
    trunk = OnnxTrunk(done.file)
    for count in (0, 1, 4):  # the batch is free
        pixels = some_pixels(backbone, count)
        expected = backbone.trunk(pixels)
        got = trunk(pixels)
        assert got.shape == expected.shape
        assert got.dtype == torch.float32
        assert count == 0 or (got - expected).abs().max() < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_int8_trunks_are_near_and_treat_each_image_alone(
    backbones: dict[str, Backbone], name: str, tmp_path: Path
) -> None:
    backbone = backbones[name]
    done = export_trunk(backbone, tmp_path / "trunk.onnx", "int8")
    kinds = {node.op_type for node in onnx.load(str(done.file)).graph.node}
    assert "MatMulInteger" in kinds
    assert 0 < done.relative_difference < 0.05
    assert 0.99 < done.cosine < 0.99999
    trunk, pixels = OnnxTrunk(done.file), some_pixels(backbone)
    pixels[1] *= 50  # a loud neighbour would widen the range of a whole batch
    together = trunk(pixels)
    for number in range(len(pixels)):
        assert torch.equal(together[number : number + 1], trunk(pixels[number : number + 1]))
    in_one = OnnxTrunk(done.file, one_by_one=False)(pixels)
    assert not torch.equal(in_one, together)  # why it goes one by one


def test_all_blocks_in_the_tail_leave_a_trunk_of_none(tmp_path: Path) -> None:
    backbone = load(tiny.clip(tmp_path / "clip"), tail_blocks=tiny.BLOCKS)
    for precision in ("fp32", "int8"):
        done = export_trunk(backbone, tmp_path / "trunk.onnx", precision)
        assert done.max_difference < 1e-4


def test_an_int8_trunk_is_another_model(backbones: dict[str, Backbone], tmp_path: Path) -> None:
    backbone = backbones["clip"]
    same = with_onnx(backbone, export_trunk(backbone, tmp_path / "float.onnx").file)
    assert same.spec == backbone.spec
    other = with_onnx(backbone, export_trunk(backbone, tmp_path / "a.onnx", "int8").file)
    assert other.spec.fingerprint != backbone.spec.fingerprint
    again = with_onnx(backbone, export_trunk(backbone, tmp_path / "b.onnx", "int8").file)
    assert again.spec.fingerprint == other.spec.fingerprint  # the same export, made twice
    pixels = some_pixels(backbone)
    assert torch.equal(again.trunk(pixels), other.trunk(pixels))


def test_a_foreign_trunk_is_refused(backbones: dict[str, Backbone], tmp_path: Path) -> None:
    done = export_trunk(backbones["clip"], tmp_path / "trunk.onnx")
    with pytest.raises(ModelError, match=r"from .*clip, and is not the trunk of .*siglip"):
        with_onnx(backbones["siglip"], done.file)
    deeper = load(backbones["clip"].spec.name, tail_blocks=2)
    with pytest.raises(ModelError, match="2 tail blocks"):
        with_onnx(deeper, done.file)
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(ModelError, match=r"junk\.onnx cannot be run"):
        OnnxTrunk(tmp_path / "junk.onnx")
    with pytest.raises(ModelError, match="cannot be run"):
        OnnxTrunk(tmp_path / "missing.onnx")
    with pytest.raises(ModelError, match="not in torch"):
        export_trunk(with_onnx(backbones["clip"], done.file), tmp_path / "again.onnx")
    with pytest.raises(ModelError, match="fp32 or int8"):
        export_trunk(backbones["clip"], tmp_path / "x.onnx", "fp8")  # type: ignore[arg-type]


def test_large_weights_go_beside_the_file(
    backbones: dict[str, Backbone], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_ONE_FILE", 1000)
    for precision in ("fp32", "int8"):
        folder = tmp_path / precision
        done = export_trunk(backbones["clip"], folder / "trunk.onnx", precision)  # type: ignore[arg-type]
        assert sorted(part.name for part in folder.iterdir()) == ["trunk.onnx", "trunk.onnx.data"]
        moved = folder.rename(tmp_path / f"moved {precision}") / done.file.name
        backbone = with_onnx(backbones["clip"], moved)
        assert backbone.trunk(some_pixels(backbone)).isfinite().all()


def test_a_wrong_graph_is_never_left_behind(
    backbones: dict[str, Backbone], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trunk.onnx"
    file.write_bytes(b"what was there")
    monkeypatch.setattr(_graph, "_silu", lambda graph, at, x, gate: x)
    for precision in ("fp32", "int8"):
        with pytest.raises(ModelError, match="nothing was written"):
            export_trunk(backbones["clip"], file, precision)
    assert [part.name for part in tmp_path.iterdir()] == ["trunk.onnx"]
    assert file.read_bytes() == b"what was there"


def shuffled(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The columns of a weight, each under another's name."""
    return np.random.default_rng(0).permutation(weight, axis=1)


def overflowing(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As if sums of products had gone over the edge of a number and come back negative."""
    return np.where(np.abs(weight) > np.quantile(np.abs(weight), 0.9), -weight, weight)


def not_a_number(weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    spoilt = weight.copy()
    spoilt[0, 0] = np.nan
    return spoilt


def spoil(monkeypatch: pytest.MonkeyPatch, name: str, how: Damage) -> None:
    """Let every graph have one weight other than the model's."""

    def spoilt(*given: Any) -> onnx.ModelProto:
        model = trunk_graph(*given)
        (tensor,) = (one for one in model.graph.initializer if one.name == name)
        weight = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(how(weight), name))
        return model

    trunk_graph = export.trunk_graph
    monkeypatch.setattr(export, "trunk_graph", spoilt)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("how", [shuffled, overflowing, not_a_number])
@pytest.mark.parametrize("weight", ["layers.0.self_attn.v_proj", "layers.1.mlp.fc2"])
def test_one_wrong_weight_is_refused(
    backbones: dict[str, Backbone],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: export.Precision,
    how: Damage,
    weight: str,
) -> None:
    spoil(monkeypatch, weight + ".weight", how)
    with pytest.raises(ModelError, match="nothing was written"):
        export_trunk(backbones["clip"], tmp_path / "trunk.onnx", precision)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def floating(embedded: Backbone) -> Backbone:
    return load("embedded-float")


def test_an_int8_trunk_whose_features_are_off_is_refused(
    backbones: dict[str, Backbone], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a processor that overflows: right weights, wrong products."""

    class Overflowing(OnnxTrunk):
        def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
            return super().__call__(pixels).clamp(max=0.1)

    monkeypatch.setattr(export, "OnnxTrunk", Overflowing)
    with pytest.raises(ModelError, match=r"cosine of .* nothing was written"):
        export_trunk(backbones["clip"], tmp_path / "trunk.onnx", "int8")
    assert list(tmp_path.iterdir()) == []


def test_pictures_differ_by_more_than_int8_may(floating: Backbone) -> None:
    """Else a trunk that gives one answer to everything would pass."""
    tokens = floating.encode(_pictures.pictures())
    features = F.normalize(export._features(floating, tokens), dim=1)
    expected = tail.embed(floating.tail, floating.spec.tail, tokens)  # the obvious reference
    assert torch.allclose(features, F.normalize(expected, dim=1), atol=1e-5)
    alike = features @ features.T - 2 * torch.eye(len(features))
    assert alike.max() < 0.92  # 0.903 measured


def test_the_embedded_trunk_in_int8_can_be_learned_with(
    floating: Backbone, embedded: Backbone, tmp_path: Path
) -> None:
    done = export_trunk(floating, tmp_path / "trunk.onnx", "int8")
    assert done.cosine > 0.97  # 0.982 measured
    assert done.file.stat().st_size < 100e6
    with pytest.raises(ModelError, match="from embedded-float, and is not the trunk of embedded"):
        with_onnx(embedded, done.file)
    for image in _pictures.pictures()[2:4]:  # made, and opened again
        backbone = with_onnx(floating, done.file)
        with AnytimeClassifier.open(tmp_path / "memory", model=backbone) as classifier:
            classifier.learn_one(image, "discs")
            assert classifier.predict(image, ["discs", "a cat"]).label == "discs"
    assert len(AnytimeClassifier.open(tmp_path / "memory", model=backbone, read_only=True)) == 2


def test_the_embedded_trunk_with_one_wrong_weight_is_refused(
    floating: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the 66 matrices the one whose damage changes features least: their cosine stays at 0.978.
    spoil(monkeypatch, "layers.1.self_attn.k_proj.weight", shuffled)
    with pytest.raises(ModelError, match="nothing was written"):
        export_trunk(floating, tmp_path / "trunk.onnx", "int8")


@pytest.mark.parametrize("vnni", [None, False])
def test_int8_products_are_exact_on_every_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vnni: bool | None
) -> None:
    """Sums that do not fit 16 bits, as large weights and bright pixels give them."""
    if vnni is not None:
        monkeypatch.setattr("anytimecl.backbone.trunk._has_vnni", lambda: vnni)
    weight = np.full((12, 2), 127, dtype=np.int8)
    nodes = [
        onnx.helper.make_node("Flatten", ["pixels"], ["flat"]),
        onnx.helper.make_node("DynamicQuantizeLinear", ["flat"], ["bytes", "step", "zero"]),
        onnx.helper.make_node("MatMulInteger", ["bytes", "weight", "zero"], ["sums"]),
        onnx.helper.make_node("Cast", ["sums"], ["floats"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Mul", ["floats", "step"], ["tokens"]),
    ]
    floats = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes,
        "int8",
        [onnx.helper.make_tensor_value_info("pixels", floats, ["batch", 3, 2, 2])],
        [onnx.helper.make_tensor_value_info("tokens", floats, ["batch", 2])],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    opset = onnx.helper.make_opsetid("", 17)
    file = tmp_path / "int8.onnx"
    onnx.save_model(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9), file)
    tokens = OnnxTrunk(file)(torch.ones(1, 3, 2, 2))
    assert torch.allclose(tokens, torch.tensor(12 * 127.0))
