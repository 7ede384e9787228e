"""`anytimecl export`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.commands.conftest import Run

from anytimecl import backbone
from anytimecl.backbone.export import with_onnx


@pytest.mark.parametrize(("words", "limit"), [((), 1e-4), (("--int8",), 0.25)])
def test_the_file_gives_the_same_tokens(
    run: Run, model: Path, words: tuple[str, ...], limit: float
) -> None:
    result = run("export", "--model", model, "--to", "trunk.onnx", *words)
    assert result.exit_code == 0, result.output
    assert ("int8" if words else "fp32") in result.stdout
    own = backbone.load(model)
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    image = [Image.fromarray(noise)]
    expected, given = own.encode(image), with_onnx(own, "trunk.onnx").encode(image)
    assert float((given - expected).norm() / expected.norm()) < limit
    assert torch.isfinite(given).all()


def test_the_embedded_model_is_exported_from_its_float_weights(
    embedded: backbone.Backbone,  # never called: it has to be there
    tmp_path: Path,
) -> None:
    from typer.testing import CliRunner

    from anytimecl.cli import app

    for words, size in (((), 315e6), (("--int8",), 82e6)):
        result = CliRunner().invoke(app, ["export", "--to", str(tmp_path / "trunk.onnx"), *words])
        assert result.exit_code == 0, result.output
        assert "embedded-float" in result.stdout
        assert abs((tmp_path / "trunk.onnx").stat().st_size - size) < 5e6


def test_refused_before_a_model_is_loaded(run: Run, tmp_path: Path) -> None:
    for to in (tmp_path, "no/such/trunk.onnx"):
        result = run("export", "--model", "nonsense", "--to", to)
        assert result.exit_code == 2
        assert "--to" in result.stderr
