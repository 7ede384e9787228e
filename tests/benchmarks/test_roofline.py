"""What a step must do is counted right, and drawn from a file of results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from benchmarks.gpu import main
from benchmarks.roofline import RANK, Size, latest, work
from benchmarks.step import make_spec, make_tail
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from anytimecl.fast import FastLearner, layers
from anytimecl.settings import LearnerConfig
from anytimecl.step import Batch
from anytimecl.tail import TailInput, Tokens

LINES = [
    {"card": "old", "torch": "1", "limits": {"copy TB/s": 1.0, "matrix TFLOP/s": 10.0}},
    {"card": "old", "torch": "1", "size": "ViT-B/16", "milliseconds": {"online step": 9.0}},
    {"card": "new", "torch": "2", "limits": {"copy TB/s": 4.0, "matrix TFLOP/s": 400.0}},
    {"card": "new", "torch": "2", "size": "ViT-B/32", "milliseconds": {"online step": 0.5}},
    {"card": "new", "torch": "2", "examples": 10, "seconds": 1.0},
]


def test_work_by_hand() -> None:
    """Three tokens of width 2, one head, dim 1; two examples, five labels; eight parts."""
    found = work(Size(tokens=3, width=2, heads=1, dim=1), batch=2, labels=5)
    weights = 4 * 4 + 8 * 2 + 2 * 8  # four of 2 x 2, then 8 x 2 and 2 x 8
    biases = 3 * 2 + 8 + 2 + 2 * 4  # query, value, output; both of the MLP; two norms
    assert weights == 48
    assert biases == 24
    image = 8 * 2 + 3 * 8  # parts, coefficients
    assert found.bytes == 6 * 4 * (48 + 24) + 2 * 2 * (2 + image) + 4 * (2 + 5) == 1924
    through = 2 * 2 * 48 * 3
    scores = 2 * 2 * image  # by parts, by coefficients
    parts = 2 * 2 * 2 * 8 * 2  # their gradient, in two sums
    answers = 2 * 2 * (2 + 5)
    assert found.flops == through + 4 * scores + parts + 2 * answers == 1400
    assert found.intensity == pytest.approx(1400 / 1924)


@pytest.mark.parametrize("size", [Size(5, 32, 2, 16), Size(10, 48, 4, 24)])
def test_flops_are_those_that_torch_counts(size: Size, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "_ONEDNN", None)  # torch does not count what goes there
    batch, labels = 6, 7
    spec = make_spec(*size)
    cls = torch.randn(batch, size.width)
    low = Tokens.low_rank(
        cls,
        torch.randn(batch, size.width),
        torch.randn(batch, RANK, size.width),
        torch.randn(batch, size.tokens - 1, RANK),
    )
    seen = TailInput(cls, low)
    vectors = F.normalize(torch.randn(labels, size.dim), dim=-1)
    target = torch.arange(batch)
    learner = FastLearner(spec, make_tail(spec), LearnerConfig())
    with FlopCounterMode(display=False) as counter:
        learner.look_ahead(Batch(seen, target, vectors, torch.arange(labels))).whole()
    assert work(size, batch, labels).flops == counter.get_total_flops()


def test_the_last_run_counts() -> None:
    found = latest(LINES)
    assert found.card == "new, torch 2"
    assert (found.copy, found.rate) == (4e12, 4e14)
    assert found.steps == {"ViT-B/32": 0.0005}
    with pytest.raises(SystemExit, match="no run"):
        latest(LINES[:1])


def test_a_plot_needs_no_gpu(tmp_path: Path) -> None:
    results, picture = tmp_path / "gpu.jsonl", tmp_path / "roofline.png"
    results.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    main([str(results), "--plot", str(picture), "--only-plot"])
    with Image.open(picture) as drawn:
        assert drawn.size[0] > 600
    assert results.read_text().count("\n") == len(LINES)  # nothing was measured
