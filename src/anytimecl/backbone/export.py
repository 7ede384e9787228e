"""Trunks as ONNX files, in float or int8, each checked against torch as it is made.

The graph is written node by node instead of traced: all families have become one trunk of a dozen
kinds of node, and so no exporter, its dependencies, or its changes from release to release stand
between the weights and the file. What holds the two together is the comparison in `export_trunk`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from anytimecl.backbone.spec import Preprocess, TailSpec
from anytimecl.backbone.trunk import OnnxTrunk, TorchTrunk
from anytimecl.errors import ModelError

if TYPE_CHECKING:
    from onnx import ModelProto

    from anytimecl.backbone import Backbone

Precision = Literal["fp32", "int8"]

_OPSET, _IR = 20, 10  # the first with Gelu, and what went with it: old runtimes can read the file
_ONE_FILE = 1_500_000_000  # bytes of weights; protobuf ends at 2 GB, so larger ones go beside it
_CHECKED = 3  # images in the comparison
_LIMITS: dict[str, float] = {"fp32": 1e-4, "int8": 0.25}  # relative error beyond which it is broken


@dataclass(frozen=True)
class Exported:
    """A trunk that was written, and how far it is from the one in torch."""

    file: Path
    precision: Precision
    max_difference: float  # the largest of any number in any token
    relative_difference: float  # length of the difference over the length of the tokens


def export_trunk(backbone: Backbone, file: Path | str, precision: Precision = "fp32") -> Exported:
    """Write the trunk of a model as ONNX, and compare it with torch on random images."""
    trunk, spec = backbone.trunk, backbone.spec
    if not isinstance(trunk, TorchTrunk):
        raise ModelError(f"The trunk of {spec.name} is not in torch, so it cannot be exported.")
    if precision not in _LIMITS:
        raise ModelError(f"precision is fp32 or int8, not {precision!r}.")
    file = Path(file)
    params = {name: value.detach().cpu() for name, value in trunk.params.items()}
    metadata = {
        "anytimecl.precision": precision,
        "anytimecl.weights": spec.weights,
        "anytimecl.first": str(spec.tail.first),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    # Made in a folder beside its place and moved there when it is known to be right.
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".export-") as folder:
        made = Path(folder) / file.name
        graph = _graph(params, spec.tail, spec.preprocess)
        if precision == "fp32":
            _write(made, graph, metadata)
        else:
            _quantise(made, graph, metadata)
        exported = _compare(made, file, trunk, spec.preprocess, precision)
        for part in sorted(Path(folder).iterdir(), reverse=True):  # the .data before what needs it
            os.replace(part, file.parent / part.name)
    return exported


def with_onnx(backbone: Backbone, file: Path | str) -> Backbone:
    """The same model with an exported trunk instead of its own.

    In int8 the tokens are other tokens, so the model gets another fingerprint: what was stored or
    learned with the one cannot be mixed with the other. In float it stays the same model.
    """
    file, spec = Path(file), backbone.spec
    trunk = OnnxTrunk(file)
    own = trunk.metadata.get("anytimecl.weights"), trunk.metadata.get("anytimecl.first")
    if own != (spec.weights, str(spec.tail.first)):
        raise ModelError(
            f"{file} is not the trunk of {spec.name} with {spec.tail.blocks} tail blocks; "
            "export it again."
        )
    if trunk.metadata["anytimecl.precision"] != "fp32":
        digest = hashlib.sha256(spec.weights.encode())
        for part in (file, _data(file)):
            if part.is_file():
                with part.open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
        spec = dataclasses.replace(spec, weights=digest.hexdigest())
    return dataclasses.replace(backbone, spec=spec, trunk=trunk)


def _compare(
    made: Path, file: Path, trunk: TorchTrunk, prep: Preprocess, precision: Precision
) -> Exported:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(_CHECKED, 3, prep.height, prep.width, generator=generator)
    device = trunk.params["positions"].device
    expected = trunk(pixels.to(device)).cpu()
    difference = OnnxTrunk(made)(pixels) - expected
    relative = float(difference.norm() / expected.norm())
    if not relative <= _LIMITS[precision]:  # so that NaN is refused too
        raise ModelError(
            f"The {precision} trunk differs from torch by {relative:.2g} of its length, and "
            f"{_LIMITS[precision]} is the most; nothing was written."
        )
    return Exported(file, precision, float(difference.abs().max()), relative)


def _data(file: Path) -> Path:
    return file.with_name(file.name + ".data")


def _write(file: Path, model: ModelProto, metadata: Mapping[str, str]) -> None:
    import onnx

    onnx.helper.set_model_props(model, dict(metadata))
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    onnx.save_model(
        model,
        str(file),
        save_as_external_data=size > _ONE_FILE,
        location=_data(file).name,
    )


def _quantise(file: Path, model: ModelProto, metadata: Mapping[str, str]) -> None:
    """Weights of the linear layers to int8, one scale a column; activations as they come."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole = file.with_name("whole-" + file.name)
    # The quantiser asks for its own clean-up, and shapes, of what an exporter left behind. There
    # is nothing to clean up; this is how it is told.
    _write(whole, model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    quantize_dynamic(
        whole,
        file,
        op_types_to_quantize=["MatMul"],  # the one convolution sees raw pixels, and is cheap
        per_channel=True,
        # 7 bits: processors without VNNI add pairs of products in 16 bits, and 8 bits overflow
        # there in silence. The same file must give the same tokens on every machine.
        reduce_range=True,
        weight_type=QuantType.QInt8,
        extra_options={"MatMulConstBOnly": True},
    )
    whole.unlink()
    _data(whole).unlink(missing_ok=True)
    model = onnx.load(str(file))
    del model.metadata_props[:]
    _write(file, model, metadata)


# ------------------------------------------------------------------------------------ the graph


class _Graph:
    """Nodes and constants, each value known by its name."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, value: Tensor | Sequence[int] | float) -> str:
        import onnx

        array = (
            value.contiguous().numpy()
            if isinstance(value, Tensor)
            else np.asarray(value, dtype=np.float32 if isinstance(value, float) else np.int64)
        )
        self.constants.append(onnx.numpy_helper.from_array(array, name))
        return name

    def node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        import onnx

        self.nodes.append(onnx.helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name


def _graph(params: Mapping[str, Tensor], spec: TailSpec, prep: Preprocess) -> ModelProto:
    """The same steps as `trunk_tokens`, in the same order."""
    import onnx

    graph = _Graph()
    patch = params["patch_embedding.weight"].shape[-1]
    weights = [graph.constant("patch_embedding.weight", params["patch_embedding.weight"])]
    if "patch_embedding.bias" in params:
        weights.append(graph.constant("patch_embedding.bias", params["patch_embedding.bias"]))
    x = graph.node("Conv", "patches", "pixels", *weights, strides=[patch, patch])
    count = len(params["positions"])
    x = graph.node("Reshape", "rows", x, graph.constant("rows_shape", [0, spec.width, count]))
    x = graph.node("Transpose", "columns", x, perm=[0, 2, 1])
    x = graph.node("Add", "placed", x, graph.constant("positions", params["positions"]))
    if "prefix" in params:
        prefix = params["prefix"]  # [1, prefix, width]
        count += prefix.shape[1]
        batch = graph.node("Shape", "batch", "pixels", start=0, end=1)
        rest = graph.constant("prefix_rest", list(prefix.shape[1:]))
        shape = graph.node("Concat", "prefix_shape", batch, rest, axis=0)
        first = graph.node("Expand", "prefixes", graph.constant("prefix", prefix), shape)
        x = graph.node("Concat", "joined", first, x, axis=1)
    if "pre_layernorm.weight" in params:
        x = _norm(graph, params, spec, "pre_layernorm", x)
    graph.constant("heads_shape", [0, 0, spec.heads, spec.width // spec.heads])
    graph.constant("flat_shape", [0, 0, spec.width])
    graph.constant("attention_scale", float((spec.width // spec.heads) ** -0.5))
    if spec.activation == "quick_gelu":
        graph.constant("quick", 1.702)
    for index in range(spec.first):
        x = _block(graph, params, spec, f"layers.{index}.", x)
    graph.node("Identity", "tokens", x)
    value = onnx.helper.make_tensor_value_info
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            "trunk",
            [value("pixels", onnx.TensorProto.FLOAT, ["batch", 3, prep.height, prep.width])],
            [value("tokens", onnx.TensorProto.FLOAT, ["batch", count, spec.width])],
            graph.constants,
        ),
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
        producer_name="anytimecl",
    )
    model.ir_version = _IR
    return model


def _block(graph: _Graph, params: Mapping[str, Tensor], spec: TailSpec, at: str, x: str) -> str:
    node = graph.node
    normed = _norm(graph, params, spec, at + "layer_norm1", x)
    heads = {}
    for letter in "qkv":
        values = _linear(graph, params, f"{at}self_attn.{letter}_proj", normed)
        values = node("Reshape", f"{at}{letter}_heads", values, "heads_shape")
        # Keys with their tokens last, ready to be multiplied.
        perm = [0, 2, 3, 1] if letter == "k" else [0, 2, 1, 3]
        heads[letter] = node("Transpose", f"{at}{letter}", values, perm=perm)
    query = node("Mul", at + "query", heads["q"], "attention_scale")
    scores = node("MatMul", at + "scores", query, heads["k"])
    weights = node("Softmax", at + "weights", scores, axis=-1)
    mixed = node("MatMul", at + "mixed", weights, heads["v"])
    mixed = node("Transpose", at + "mixed_tokens", mixed, perm=[0, 2, 1, 3])
    mixed = node("Reshape", at + "mixed_flat", mixed, "flat_shape")
    attended = _linear(graph, params, at + "self_attn.out_proj", mixed)
    attended = _scale(graph, params, at + "layer_scale1.lambda1", attended)
    x = node("Add", at + "attended", x, attended)

    hidden = _norm(graph, params, spec, at + "layer_norm2", x)
    hidden = _linear(graph, params, at + "mlp.fc1", hidden)
    hidden = _activate(graph, spec, at + "mlp.act.", hidden)
    hidden = _linear(graph, params, at + "mlp.fc2", hidden)
    hidden = _scale(graph, params, at + "layer_scale2.lambda1", hidden)
    return node("Add", at + "done", x, hidden)


def _norm(graph: _Graph, params: Mapping[str, Tensor], spec: TailSpec, name: str, x: str) -> str:
    parts = [graph.constant(part, params[part]) for part in (name + ".weight", name + ".bias")]
    return graph.node("LayerNormalization", name, x, *parts, axis=-1, epsilon=spec.norm_eps)


def _linear(graph: _Graph, params: Mapping[str, Tensor], name: str, x: str) -> str:
    weight = graph.constant(name + ".weight", params[name + ".weight"].T)
    bias = graph.constant(name + ".bias", params[name + ".bias"])
    return graph.node("Add", name, graph.node("MatMul", name + ".matmul", x, weight), bias)


def _scale(graph: _Graph, params: Mapping[str, Tensor], name: str, x: str) -> str:
    if name not in params:
        return x
    return graph.node("Mul", name + ".mul", x, graph.constant(name, params[name]))


def _activate(graph: _Graph, spec: TailSpec, at: str, x: str) -> str:
    if spec.mlp == "swiglu":
        import onnx

        halves = [at + "gate", at + "value"]
        graph.nodes.append(onnx.helper.make_node("Split", [x], halves, axis=-1, num_outputs=2))
        return graph.node("Mul", at + "out", _silu(graph, at, halves[0], halves[0]), halves[1])
    if spec.activation == "quick_gelu":
        return _silu(graph, at, x, graph.node("Mul", at + "quick", x, "quick"))
    if spec.activation == "silu":
        return _silu(graph, at, x, x)
    approximate = "tanh" if spec.activation == "gelu_tanh" else "none"
    return graph.node("Gelu", at + "gelu", x, approximate=approximate)


def _silu(graph: _Graph, at: str, x: str, gate: str) -> str:
    """x * sigmoid(gate)."""
    return graph.node("Mul", at + "silu", x, graph.node("Sigmoid", at + "sigmoid", gate))
