"""Reduces quantisation errors of the source's int8 trunk.

The source quantises activations to 8 bits, with one range for all tokens of an image. Outliers,
which make that imprecise, come from two places:

- some channels of a layer norm's output are ten times as large as the rest. Their scale can be
  moved into the next weights, which have a range for each output (SmoothQuant, Xiao et al. 2023);
- in two blocks one token's hidden activations are hundreds of times the others'. There, the
  product is computed in float.

The first costs no time, the second a tenth of the trunk's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

RANGES = Path(__file__).with_name("ranges.safetensors")  # made by recipes/embedded/ranges.py
SHARE = 0.65  # exponent: share of a channel's log-scale that is moved into the weights
IN_FLOAT = ("layers.6", "layers.7")  # blocks whose second MLP layer is in float
READERS = {
    "layer_norm1": ("self_attn/q_proj", "self_attn/k_proj", "self_attn/v_proj"),
    "layer_norm2": ("mlp/fc1",),
}


def smooth(trunk: ModelProto) -> ModelProto:
    """Modify a trunk cut from the source, in place."""
    graph = trunk.graph
    blocks = {node.name.split("/")[3] for node in _products(graph).values()}  # that it has
    for name, ranges in load_file(RANGES).items():  # "layers.3.layer_norm1": [width]
        block, norm = name.rsplit(".", 1)
        if block in blocks:
            readers = [f"/vision_model/encoder/{block}/{reader}" for reader in READERS[norm]]
            _shift_sizes(graph, f"vision_model.encoder.{name}", readers, ranges)
    for block in IN_FLOAT:
        if block in blocks:
            _keep_float(graph, f"/vision_model/encoder/{block}/mlp/fc2")
    return trunk


def _shift_sizes(
    graph: GraphProto, norm: str, readers: list[str], ranges: NDArray[np.float32]
) -> None:
    """Move scales from a norm's channels into the weights after it; products are unchanged."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    keys = [_weight_of(graph, reader) for reader in readers]
    weights = [_in_float(stored, key) for key in keys]  # [in, out]
    largest = np.max([np.abs(weight).max(1) for weight in weights], axis=0)
    sizes = ranges.clip(1e-5) ** SHARE / largest.clip(1e-5) ** (1 - SHARE)
    sizes = (sizes / np.exp(np.log(sizes).mean())).astype(np.float32)
    for part in ("weight", "bias"):
        _replace(stored[f"{norm}.{part}"], _array(stored[f"{norm}.{part}"]) / sizes)
    for key, weight in zip(keys, weights, strict=True):
        larger = weight * sizes[:, None]
        scale = (np.abs(larger).max(0) / 127).astype(np.float32)
        _replace(stored[f"{key}_quantized"], np.round(larger / scale).astype(np.int8))
        _replace(stored[f"{key}_scale"], scale)


def _keep_float(graph: GraphProto, product: str) -> None:
    """Replace a quantised product by one in float."""
    from onnx import helper, numpy_helper

    stored = {tensor.name: tensor for tensor in graph.initializer}
    key = _weight_of(graph, product)
    made_by = {name: node for node in graph.node for name in node.output}
    last = made_by[f"{product}/MatMul_output_0"]
    rounded = made_by[_products(graph)[product].input[0]]
    graph.initializer.append(numpy_helper.from_array(_in_float(stored, key), f"{key}_float"))
    plain = helper.make_node(
        "MatMul", [rounded.input[0], f"{key}_float"], last.output, f"{product}/MatMul"
    )
    nodes = [plain if node is last else node for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    prune(graph)


def prune(graph: GraphProto) -> None:
    """Drop nodes and weights that the graph's outputs do not need."""
    needed, nodes = {value.name for value in graph.output}, []
    for node in reversed(graph.node):  # ONNX nodes are in topological order
        if needed.intersection(node.output):
            needed.update(node.input)
            nodes.append(node)
    weights = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes[::-1])
    graph.initializer.extend(weights)


def _products(graph: GraphProto) -> dict[str, NodeProto]:
    """Quantised products by the layer's name."""
    return {
        node.name.removesuffix("/MatMul_quant"): node
        for node in graph.node
        if node.op_type == "MatMulInteger"
    }


def _weight_of(graph: GraphProto, product: str) -> str:
    return str(_products(graph)[product].input[1]).removesuffix("_quantized")


def _in_float(stored: Mapping[str, TensorProto], key: str) -> NDArray[np.float32]:
    """[in, out]"""
    values = _array(stored[f"{key}_quantized"]) * _array(stored[f"{key}_scale"])
    return values.astype(np.float32)


def _array(tensor: TensorProto) -> NDArray[np.float32]:
    from onnx import numpy_helper

    return numpy_helper.to_array(tensor)


def _replace(tensor: TensorProto, values: NDArray[np.generic]) -> None:
    from onnx import numpy_helper

    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
