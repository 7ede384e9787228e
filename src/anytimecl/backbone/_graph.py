"""A trunk as an ONNX graph, built node by node.

All families share one trunk of a dozen node types, so this is simpler than tracing, and does not
depend on an exporter and its releases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone.spec import Preprocess, TailSpec
from anytimecl.backbone.trunk import angles

if TYPE_CHECKING:
    from onnx import ModelProto

_OPSET, _IR = 20, 10  # the first opset with Gelu, and its IR version, for old runtimes


class _Graph:
    """A builder of nodes and constants."""

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


def trunk_graph(params: Mapping[str, Tensor], spec: TailSpec, prep: Preprocess) -> ModelProto:
    """The graph of `trunk_tokens`."""
    import onnx

    graph = _Graph()
    patch = params["patch_embedding.weight"].shape[-1]
    weights = [graph.constant("patch_embedding.weight", params["patch_embedding.weight"])]
    if "patch_embedding.bias" in params:
        weights.append(graph.constant("patch_embedding.bias", params["patch_embedding.bias"]))
    x = graph.node("Conv", "patches", "pixels", *weights, strides=[patch, patch])
    count = (prep.height // patch) * (prep.width // patch)
    x = graph.node("Reshape", "rows", x, graph.constant("rows_shape", [0, spec.width, count]))
    x = graph.node("Transpose", "columns", x, perm=[0, 2, 1])
    if "positions" in params:
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
    if spec.rotary is not None:
        for name, table in zip(("cosine", "sine"), _turns(spec, count), strict=True):
            graph.constant(name, table)
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
        if spec.rotary is not None and letter != "v":
            values = _turned(graph, f"{at}{letter}_", values)
        # Keys transposed, with tokens last.
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


def _turns(spec: TailSpec, tokens: int) -> list[Tensor]:
    """Cosines and sines [token, 1, depth] of rotary embeddings; identity for the prefix."""
    assert spec.rotary is not None
    tables = angles(spec.rotary, spec.width // spec.heads, torch.device("cpu"))
    before = (0, 0, tokens - len(tables[0]), 0)
    return [
        F.pad(table, before, value=still).unsqueeze(1)
        for table, still in zip(tables, (1.0, 0.0), strict=True)
    ]


def _turned(graph: _Graph, at: str, x: str) -> str:
    """Apply rotary embeddings to queries or keys [batch, token, head, depth]."""
    import onnx

    halves = [at + "first", at + "second"]
    graph.nodes.append(onnx.helper.make_node("Split", [x], halves, axis=-1, num_outputs=2))
    minus = graph.node("Neg", at + "minus", halves[1])
    across = graph.node("Concat", at + "across", minus, halves[0], axis=-1)
    across = graph.node("Mul", at + "sine", across, "sine")
    along = graph.node("Mul", at + "cosine", x, "cosine")
    return graph.node("Add", at + "turned", along, across)


def _norm(graph: _Graph, params: Mapping[str, Tensor], spec: TailSpec, name: str, x: str) -> str:
    parts = [graph.constant(part, params[part]) for part in (name + ".weight", name + ".bias")]
    return graph.node("LayerNormalization", name, x, *parts, axis=-1, epsilon=spec.norm_eps)


def _linear(graph: _Graph, params: Mapping[str, Tensor], name: str, x: str) -> str:
    weight = graph.constant(name + ".weight", params[name + ".weight"].T)
    if name + ".bias" not in params:  # DINOv3's keys have none
        return graph.node("MatMul", name + ".matmul", x, weight)
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
