"""Export of trunks to ONNX, in float or int8, verified against torch.

A float trunk must give the same tokens. An int8 trunk gives different ones; its weights must be the
model's up to rounding, and the image features after the tail must be similar on test pictures.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone import _pictures, hub_name
from anytimecl.backbone._graph import trunk_graph
from anytimecl.backbone.trunk import OnnxTrunk, TorchTrunk, block
from anytimecl.errors import ModelError
from anytimecl.files import move_into_place

if TYPE_CHECKING:
    from onnx import ModelProto

    from anytimecl.backbone import Backbone

Precision = Literal["fp32", "int8"]

_ONE_FILE = 1_500_000_000  # bytes of weights; more go to a second file: protobuf's limit is 2 GB
_TOKENS = 1e-4  # maximal relative difference of float tokens
# Minimal cosine of any picture's features. The embedded model's int8 trunks give 0.982 (exported)
# and 0.997 (its own). Features alone do not suffice: with one key projection shuffled, in float,
# the cosine is still 0.978. So weights are compared as well.
_COSINE = 0.95


@dataclass(frozen=True)
class ExportedTrunk:
    """An exported trunk, and its differences from the torch trunk."""

    file: Path
    precision: Precision
    max_difference: float  # largest absolute difference in any token
    relative_difference: float  # norm of the difference over the norm of the tokens
    cosine: float  # lowest cosine of image features after the tail


def export_trunk(
    backbone: Backbone, file: Path | str, precision: Precision = "fp32"
) -> ExportedTrunk:
    """Export a model's trunk to ONNX, and compare it with torch on a few pictures."""
    trunk, spec = backbone.trunk, backbone.spec
    if not isinstance(trunk, TorchTrunk):
        raise ModelError(f"The trunk of {spec.name} is not in torch, so it cannot be exported.")
    if precision not in ("fp32", "int8"):
        raise ModelError(f"precision is fp32 or int8, not {precision!r}.")
    file = Path(file)
    params = {name: value.detach().cpu() for name, value in trunk.params.items()}
    metadata = {
        "anytimecl.precision": precision,
        "anytimecl.model": hub_name.pinned(spec.name, spec.revision),
        "anytimecl.weights": spec.weights,
        "anytimecl.first": str(spec.tail.first),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    # Written to a temporary folder, and moved when verified.
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".export-") as folder:
        made = Path(folder) / file.name
        graph = trunk_graph(params, spec.tail, spec.preprocess)
        if precision == "fp32":
            _write(made, graph, metadata)
        else:
            _quantise(made, graph, metadata)
            _check_weights(made, params)
        exported = dataclasses.replace(_compare(made, backbone, precision), file=file)
        _refuse_broken(exported)
        for part in sorted(Path(folder).iterdir(), reverse=True):  # the .data file first
            move_into_place(part, file.parent / part.name)
    return exported


def with_onnx(backbone: Backbone, file: Path | str) -> Backbone:
    """The same model with an exported trunk.

    An int8 trunk gives different tokens, so the model gets another fingerprint: memories of one
    cannot be used with the other. With a float trunk the fingerprint is the same.
    """
    file, spec = Path(file), backbone.spec
    trunk = OnnxTrunk(file)
    of_weights, first = (trunk.metadata.get(f"anytimecl.{key}") for key in ("weights", "first"))
    former = backbone.former_weights
    same = of_weights == spec.weights or (former is not None and of_weights == former())
    if not same or first != str(spec.tail.first):
        of = trunk.metadata.get("anytimecl.model", "another model")
        raise ModelError(
            f"{file} was exported from {of}, and is not the trunk of {spec.name} with "
            f"{spec.tail.blocks} tail blocks. Load the model it came from, or export it again."
        )
    if trunk.metadata["anytimecl.precision"] == "fp32":
        return dataclasses.replace(backbone, trunk=trunk)

    def with_file(weights: str) -> str:
        digest = hashlib.sha256(weights.encode())
        for part in (file, _data(file)):
            if part.is_file():
                with part.open("rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
        return digest.hexdigest()

    return dataclasses.replace(
        backbone,
        spec=dataclasses.replace(spec, weights=with_file(spec.weights), trunk="int8"),
        trunk=trunk,
        former_weights=None if former is None else lambda: with_file(former()),
    )


def _compare(made: Path, backbone: Backbone, precision: Precision) -> ExportedTrunk:
    """Compare the exported trunk with the torch trunk."""
    pixels = backbone.pixels(_pictures.pictures()).to(backbone.device)
    expected, given = backbone.trunk(pixels), OnnxTrunk(made)(pixels)
    difference = given - expected
    return ExportedTrunk(
        made,
        precision,
        max_difference=float(difference.abs().max()),
        relative_difference=float(difference.norm() / expected.norm()),
        cosine=float(
            torch.cosine_similarity(_features(backbone, expected), _features(backbone, given)).min()
        ),
    )


@torch.no_grad()
def _features(backbone: Backbone, tokens: Tensor) -> Tensor:
    """Image features after the tail, [image, feature]; all tokens for a pooling head."""
    spec, params = backbone.spec.tail, backbone.tail
    for index in range(spec.first, spec.last + 1):
        tokens = block(params, spec, index, tokens)
    gain, shift = params["post_layernorm.weight"], params["post_layernorm.bias"]
    tokens = F.layer_norm(tokens, tokens.shape[-1:], gain, shift, spec.norm_eps)
    if spec.pool == "map":
        return tokens.flatten(1)
    projection = params.get("visual_projection.weight")
    return tokens[:, 0] if projection is None else tokens[:, 0] @ projection.T


def _check_weights(made: Path, params: Mapping[str, Tensor]) -> None:
    """Check that quantised weights are the model's to within half a step."""
    import onnx

    values = {tensor.name: tensor for tensor in onnx.load(str(made)).graph.initializer}
    for name, weight in params.items():
        if not name.endswith(("_proj.weight", "fc1.weight", "fc2.weight")):
            continue  # only linear layers are quantised
        if name + "_quantized" not in values:
            raise ModelError(f"{name} was left out of the int8 trunk; nothing was written.")
        integers, scale = (
            torch.from_numpy(onnx.numpy_helper.to_array(values[name + end]).copy())
            for end in ("_quantized", "_scale")  # [in, out], [out]
        )
        if not bool(((integers * scale - weight.T).abs() <= 0.501 * scale).all()):
            raise ModelError(f"{name} is another in the int8 trunk; nothing was written.")


def _refuse_broken(made: ExportedTrunk) -> None:
    # "not (good)" rather than "bad", so that NaN is refused.
    if made.precision == "fp32" and not made.relative_difference <= _TOKENS:
        raise ModelError(
            f"The fp32 trunk's tokens differ from torch's by {made.relative_difference:.2g} of "
            f"their length, and {_TOKENS} is the most; nothing was written."
        )
    if not made.cosine >= _COSINE:
        raise ModelError(
            f"Image features from the {made.precision} trunk agree with torch's to a cosine of "
            f"{made.cosine:.3f}, and {_COSINE} is the least; nothing was written."
        )


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
    """Quantise linear layers to int8: weights per column, activations dynamically."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole = file.with_name("whole-" + file.name)
    # The quantiser expects its own preprocessing, which is not needed here: this marks it as done.
    _write(whole, model, {"onnx.quant.pre_process": "onnxruntime.quant"})
    try:
        quantize_dynamic(
            whole,
            file,
            op_types_to_quantize=["MatMul"],  # the one convolution is cheap
            per_channel=True,
            # 7 bits: processors without VNNI add pairs of products in 16 bits, where 8 bits
            # silently overflow. The same file must give the same tokens on every machine.
            reduce_range=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
    except (AssertionError, ValueError, RuntimeError) as error:  # what the quantiser raises
        raise ModelError(f"The trunk cannot be made int8: {error}; nothing was written.") from error
    whole.unlink()
    _data(whole).unlink(missing_ok=True)
    model = onnx.load(str(file))
    del model.metadata_props[:]
    _write(file, model, metadata)
