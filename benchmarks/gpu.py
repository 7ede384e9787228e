"""Learning on a GPU, each figure beside a plain full-block step in the same run.

    python -m benchmarks.gpu OUT [--examples 226080] [--device cuda] [--plot PICTURE]
    python -m benchmarks.gpu benchmarks/results/gpu.jsonl --plot docs/img/roofline.png --only-plot

For ViT-B/32, B/16, L/14 and DINOv2 ViT-S/14 sizes (random weights; times do not depend on them):
the online step as a captured graph, `learn_many` from a resident compressed memory, `learn_one`
into a memory on disk, prediction, an offline step, and the plain reference. Before them, the limits
of the card: copying, multiplying, and so a step. Last, as many examples as the paper's eight tasks
have, learned one by one, estimates included. OUT gets one JSON line per figure. `--plot` draws its
last run against the card's limits (`roofline.py`); with `--only-plot` nothing is measured, and no
GPU needed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.roofline import RANK, SIZES, Size, draw, work
from benchmarks.step import BATCH, LABELS, make_spec, make_tail, plain_step
from torch import Tensor

from anytimecl.acceleration import OnlineLearner
from anytimecl.backbone import Backbone
from anytimecl.backbone.spec import Spec
from anytimecl.codec import make_codec
from anytimecl.consolidation import offline_step
from anytimecl.learner import Learner
from anytimecl.lock import TurnLock
from anytimecl.memory import open_memory
from anytimecl.settings import LearnerConfig, Precision, Settings
from anytimecl.step import Batch
from anytimecl.stream import StreamLearner
from anytimecl.tail import TailInput, Tokens
from anytimecl.trainer import Trainer

RESIDENT = 4096  # examples


def milliseconds(run: Callable[[], Any], device: str, rounds: int = 20, each: int = 1) -> float:
    """Median time per run, over rounds of `each` runs."""
    taken = []
    for number in range(rounds + 2):
        _wait(device)
        began = time.perf_counter()
        for _ in range(each):
            run()
        _wait(device)
        if number >= 2:
            taken.append(1000 * (time.perf_counter() - began) / each)
    return median(taken)


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


class Bench:
    """The benchmarks of one size on one device."""

    def __init__(self, size: Size, device: str, resident: int = RESIDENT) -> None:
        self.device, self.size = device, size
        self.spec: Spec = make_spec(size.tokens, size.width, size.heads, size.dim)
        self.tail = {n: p.to(device) for n, p in make_tail(self.spec).items()}
        self.vectors = F.normalize(self.draw(LABELS, size.dim), dim=-1)
        self.resident = resident

    def draw(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device)

    def compressed(self, count: int) -> TailInput:
        tokens, width = self.size.tokens, self.size.width
        shapes = ((count, width), (count, width), (count, RANK, width), (count, tokens - 1, RANK))
        low = Tokens.low_rank(*(self.draw(*shape).half() for shape in shapes))
        return TailInput(self.draw(count, width).half(), low)

    def stream(self, labels: int = LABELS, precision: Precision = "auto") -> StreamLearner:
        names = [f"label {i % labels}" for i in range(self.resident)]
        random = F.normalize(self.draw(labels, self.size.dim), dim=-1)
        vectors = {f"label {i}": random[i] for i in range(labels)}
        settings = Settings(codec="tokens-fp16", learner=LearnerConfig(precision=precision))
        examples = self.compressed(self.resident)
        return StreamLearner(
            self.spec, self.tail, settings, examples, names, vectors, compiled=True
        )

    def batch(self, count: int = BATCH) -> Batch:
        seen = self.compressed(count).map(Tensor.float)
        target = torch.arange(count, device=self.device) % LABELS
        rows = torch.arange(LABELS, device=self.device)
        return Batch(seen, target, self.vectors, rows)

    def figures(self) -> dict[str, float]:
        """Milliseconds."""
        found: dict[str, float] = {}
        with torch.enable_grad():
            tokens = self.draw(BATCH, self.size.tokens, self.size.width)
            target = torch.arange(BATCH, device=self.device)
            plain = plain_step(self.spec, self.tail, tokens, target, self.vectors)
            found["plain full-block step"] = milliseconds(plain, self.device)
        found["online step, in TF32"] = self.step(self.stream(precision="float32"))
        stream = self.stream()
        found["online step"] = self.step(stream)
        began = time.perf_counter()
        stream.learn(range(200, self.resident))
        count = self.resident - 200
        found["learn_many, an example"] = 1000 * (time.perf_counter() - began) / count
        found["learn_one, from tokens"] = self.learn_one()
        learner = OnlineLearner(self.spec, self.tail, LearnerConfig())
        one, many = self.batch(1), self.batch(256)
        for title, b in (("predict 1", one), ("predict 256", many)):
            found[title] = milliseconds(lambda b=b: self._answer(learner, b), self.device)
        large, optimiser = self.batch(2048), learner.fresh_optimiser()
        found["offline step of 2048"] = milliseconds(
            lambda: offline_step(learner, learner.look_ahead(large).whole(), optimiser, 0.5, 2048),
            self.device,
        )
        return found

    def step(self, stream: StreamLearner) -> float:
        """Time of a step; the stream learns its first examples for that."""
        stream.learn(range(200))
        assert stream._step is not None
        step = stream._step

        def again() -> None:
            stream._turn.zero_()
            for _ in range(100):
                step()

        return milliseconds(again, self.device) / 100

    def _answer(self, learner: Learner, batch: Batch) -> Tensor:
        tuned = learner.tuned_logits(batch.tokens, batch.vectors, batch.rows)
        return tuned.softmax(1) + learner.original_logits(batch.tokens, batch.vectors).softmax(1)

    def learn_one(self) -> float:
        """Time to compress, store durably, sample, decode, score and update: all but the trunk."""
        backbone = Backbone(self.spec, lambda pixels: pixels, self.tail, text=self._text)
        codec = make_codec("attention-pca", self.spec, self.tail)
        tokens = self.draw(self.size.tokens, self.size.width).cpu()
        numbers = iter(range(1_000_000))
        with (
            tempfile.TemporaryDirectory() as folder,
            open_memory(Path(folder) / "memory", create={}) as memory,
        ):
            trainer = Trainer(backbone, codec, memory, Settings(), TurnLock())

            def one() -> None:
                label, record = f"label {next(numbers) % LABELS}", codec.encode(tokens)
                trainer.teach(memory.append(label, record), label, record, None)

            for _ in range(LABELS):
                one()
            return milliseconds(one, self.device)

    def _text(self, texts: Any) -> Tensor:
        return F.normalize(torch.randn(len(texts), self.size.dim), dim=-1)


def ceilings(device: str) -> dict[str, float]:
    """The card's maximum rates."""
    size = 1 << (28 if device != "cpu" else 22)
    a, b = (torch.empty(size, device=device) for _ in range(2))
    copied = 2 * 4 * size / milliseconds(lambda: a.copy_(b), device) / 1e9
    width = 8192 if device != "cpu" else 512
    x, y = (torch.randn(width, width, device=device).bfloat16() for _ in range(2))
    rate = 2 * width**3 / milliseconds(lambda: x @ y, device) / 1e9
    return {"copy TB/s": copied, "matrix TFLOP/s": rate}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--examples", type=int, default=226_080)  # the paper's eight tasks
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--only-plot", action="store_true")
    given = parser.parse_args(words)
    if given.only_plot and not given.plot:
        parser.error("--only-plot needs --plot PICTURE")
    if not given.only_plot:
        measure(given.out, given.device, given.sizes.split(","), given.examples)
    if given.plot:
        draw(given.out, given.plot)


def measure(out: Path, device: str, sizes: Sequence[str], examples: int) -> None:
    """Run all benchmarks, and append a line for each to `out`."""
    torch.set_grad_enabled(False)
    card = torch.cuda.get_device_name(device) if device != "cpu" else "CPU"
    about = {"card": card, "torch": torch.__version__}

    def told(**figure: Any) -> None:
        print(json.dumps(figure), flush=True)
        with out.open("a") as file:
            file.write(json.dumps(about | figure) + "\n")

    limits = ceilings(device)
    told(limits=limits)
    for name in sizes:
        bench = Bench(SIZES[name], device)
        found = bench.figures()
        least = work(SIZES[name]).bytes / limits["copy TB/s"] / 1e9
        told(
            size=name,
            milliseconds={k: round(v, 4) for k, v in found.items()},
            times_faster=round(found["plain full-block step"] / found["online step"], 1),
            bound_by_copying=round(least, 4),
        )
    if examples:
        bench = Bench(SIZES["ViT-B/32"], device, examples)
        stream = bench.stream(labels=1000)
        began = time.perf_counter()
        stream.learn(range(examples))
        _wait(device)
        seconds = time.perf_counter() - began
        told(examples=examples, seconds=round(seconds, 1), right=stream.estimates.overall.tuned)


if __name__ == "__main__":
    main()
