"""One image to its embedding on a CPU, beside the source model alone in the same run.

    python -m benchmarks.encode [--images 30] [--limit 1.3]

"Ours" is the encoding part of a prediction: preprocessing, the int8 trunk, and the float tail. The
reference is the source ONNX model on preprocessed pixels, so the ratio includes all overhead. Both
alternate on every image, so that other load on the machine affects both.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import onnxruntime
import torch
from PIL import Image

from anytimecl import tail
from anytimecl.backbone import Backbone, embedded
from anytimecl.backbone.embedded.assemble import SOURCE, read_member
from anytimecl.backbone.embedded.fetch import catalogue

WARM_UP = 3
SETTLE = 0.1  # seconds; onnxruntime's threads spin after a run and would slow the next one


def main(words: Sequence[str] | None = None) -> None:
    """Print both medians and their ratio; fail if it exceeds the limit."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.encode", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--images", type=int, default=30)
    parser.add_argument("--limit", type=float, default=1.3)
    chosen = parser.parse_args(words)
    ours, reference = measure(chosen.images)
    ratio = float(np.median(np.array(ours) / np.array(reference)))
    print(f"source ONNX alone     {1000 * np.median(reference):8.1f} ms an image (median)")
    print(f"encode and tail       {1000 * np.median(ours):8.1f} ms an image (median)")
    print(f"ratio                 {ratio:8.2f}    (median of pairs; at most {chosen.limit})")
    if ratio > chosen.limit:
        sys.exit(f"The ratio {ratio:.2f} is over {chosen.limit}.")


def measure(count: int) -> tuple[list[float], list[float]]:
    """Seconds per image: ours, and the reference."""
    backbone = embedded.load()
    wheel = embedded.wheel_folder() / catalogue()[1][SOURCE].file
    source = onnxruntime.InferenceSession(read_member(wheel), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    ours: list[float] = []
    reference: list[float] = []
    for turn in range(WARM_UP + count):
        image = Image.fromarray(rng.integers(0, 256, (360, 480, 3), dtype=np.uint8))
        pixels = {"pixel_values": backbone.pixels([image]).numpy()}
        runs = [(ours, partial(_embed, backbone, image))]
        runs.append((reference, partial(source.run, ["image_embeds"], pixels)))
        for times, run in runs if turn % 2 else reversed(runs):
            time.sleep(SETTLE)
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
    return ours[WARM_UP:], reference[WARM_UP:]


@torch.no_grad()
def _embed(backbone: Backbone, image: Image.Image) -> torch.Tensor:
    return tail.embed(backbone.tail, backbone.spec.tail, backbone.encode([image]))


if __name__ == "__main__":
    main()
