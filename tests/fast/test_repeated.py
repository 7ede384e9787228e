"""A stream's step as a CUDA graph is the step."""

from __future__ import annotations

import contextlib

import pytest
import torch
from tests.fast.test_cuda_graph import on_gpu
from tests.helpers import model, settings, taught
from tests.test_stream import COUNT, check_same, compressed, learned_from, streamed

from anytimecl.fast import repeated


@on_gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # the compiler's
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_learns_the_same_from_compressed_examples(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated, "_tensor_cores", contextlib.nullcontext)
    seen, _ = compressed()
    expected = learned_from(seen)
    found = learned_from(seen, "cuda", precision="float32", compiled=compiled)
    for name, value in found.items():
        torch.testing.assert_close(value.cpu(), expected[name], atol=1e-4, rtol=1e-3)


@on_gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # the compiler's
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_learns_nearly_the_same_in_bfloat16(compiled: bool) -> None:
    seen, _ = compressed()
    expected = learned_from(seen, precision="bfloat16")
    found = learned_from(seen, "cuda", precision="bfloat16", compiled=compiled)
    for name in (name for name in found if name.startswith("weights.layers")):
        start = model().tail[name.removeprefix("weights.")]
        moved, off = expected[name] - start, found[name].cpu() - expected[name]
        assert off.norm() < 0.5 * moved.norm() or name.endswith("k_proj.bias"), name


@on_gpu
def test_the_captured_graph_is_the_eager_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """In single precision; on tensor cores, small gradients may change sign."""
    monkeypatch.setattr(repeated, "_tensor_cores", contextlib.nullcontext)
    chosen = settings(seed=3)
    check_same(streamed(chosen, device="cuda"), taught(range(COUNT), settings=chosen)._trainer)
