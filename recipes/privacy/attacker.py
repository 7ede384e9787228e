"""Who paints pictures from records. One architecture for every form of record."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.privacy.measures import ssim
from recipes.privacy.records import GRID, View


@dataclass(frozen=True)
class Config:
    """The attacker."""

    steps: int = 2500
    grid: int = GRID
    batch: int = 128
    width: int = 384
    heads: int = 6
    reading: int = 4  # blocks over the record
    painting: int = 2  # blocks in which positions ask the record
    dropout: float = 0.1
    lr: float = 5e-4
    decay: float = 0.05
    ssim: float = 0.1  # of the loss; the rest is the squared error
    seed: int = 0


class Attacker(nn.Module):
    """A transformer reads the record, positions ask it what they show, convolutions paint.

    Where the record tells the order of patches, each position starts from its own patch, and each
    patch knows its position. Nothing else in it depends on the order.
    """

    cls_mean: Tensor
    cls_scale: Tensor
    patch_mean: Tensor
    patch_scale: Tensor
    mean_picture: Tensor

    def __init__(self, seen: View, mean_picture: Tensor, config: Config) -> None:
        super().__init__()
        width, entries = config.width, seen.cls.shape[1]
        for name, values in (("cls", seen.cls), ("patch", seen.patches[:512].flatten(0, 1))):
            values = values.float() if len(values) else torch.zeros(2, entries)
            self.register_buffer(f"{name}_mean", values.mean(0))
            self.register_buffer(f"{name}_scale", 1 / (values.std(0) + 1e-3))
        self.register_buffer("mean_picture", mean_picture)
        self.read_cls, self.read_patch = nn.Linear(entries, width), nn.Linear(entries, width)
        self.ordered = seen.ordered and seen.patches.shape[1] > 0
        self.canvas = nn.Parameter(0.2 * torch.randn(config.grid**2, width))
        how: Any = {"dropout": config.dropout, "batch_first": True, "norm_first": True}
        shape = (width, config.heads, 4 * width)
        self.reading = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*shape, **how),
            config.reading,
            nn.LayerNorm(width),
            enable_nested_tensor=False,
        )
        self.painting = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(*shape, **how), config.painting, nn.LayerNorm(width)
        )
        layers: list[nn.Module] = []
        for inner, outer in ((width, 64), (64, 32), (32, 16)):  # each doubles the side
            layers += [nn.Conv2d(inner, 4 * outer, 3, padding=1), nn.PixelShuffle(2), nn.GELU()]
        self.brush = nn.Sequential(*layers, nn.Conv2d(16, 3, 3, padding=1))

    def forward(self, cls: Tensor, patches: Tensor) -> Tensor:
        """Records to pictures [picture, 3, y, x]."""
        first = self.read_cls((cls.float() - self.cls_mean) * self.cls_scale)
        rest = self.read_patch((patches.float() - self.patch_mean) * self.patch_scale)
        canvas = self.canvas.expand(len(cls), -1, -1)
        if self.ordered:
            canvas = rest = rest + canvas
        record = self.reading(torch.cat([first.unsqueeze(1), rest], dim=1))
        canvas = self.painting(canvas, record)
        side = math.isqrt(len(self.canvas))
        square = canvas.mT.reshape(len(cls), -1, side, side)
        painted: Tensor = self.brush(square).float() + self.mean_picture
        return painted


class Attack:
    """One attacker in training on one form of record."""

    def __init__(self, seen: View, targets: Tensor, config: Config) -> None:
        torch.manual_seed(config.seed)
        self.seen, self.targets, self.config = seen, targets, config
        self.device = targets.device
        mean_picture = targets.float().mean(0) / 255
        self.model = Attacker(seen, mean_picture, config).to(self.device)
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), config.lr, weight_decay=config.decay
        )
        self.draw = torch.Generator().manual_seed(config.seed)

    def paint(self, cls: Tensor, patches: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            painted: Tensor = self.model(cls, patches)
        return painted

    def step(self, share: float) -> None:
        """One update, a `share` of the way through training."""
        warm = min(1.0, share / 0.05)
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.lr * warm * 0.5 * (1 + math.cos(math.pi * share))
        rows = torch.randint(len(self.targets), (self.config.batch,), generator=self.draw)
        rows = rows.to(self.device)
        wanted = self.targets[rows].float() / 255
        given = self.paint(self.seen.cls[rows], self.seen.patches[rows])
        loss = F.mse_loss(given, wanted) + self.config.ssim * (1 - ssim(given, wanted).mean())
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()

    @torch.no_grad()
    def pictures(self, seen: View) -> Tensor:
        """What it makes of other records, values from 0 to 1."""
        self.model.eval()
        painted = [
            self.paint(seen.cls[at : at + 250], seen.patches[at : at + 250])
            for at in range(0, len(seen.cls), 250)
        ]
        self.model.train()
        return torch.cat(painted).clamp(0, 1)

    def train(self, steps: int, chosen_by: Callable[[Tensor], float], held: View) -> None:
        """Keeps the weights that did best on pictures held out to choose by."""
        best, kept = -math.inf, self.model.state_dict()
        for number in range(steps):
            self.step(number / steps)
            if (number + 1) % max(1, steps // 10) == 0 or number + 1 == steps:
                score = chosen_by(self.pictures(held))
                if score > best:
                    best = score
                    kept = {k: v.clone() for k, v in self.model.state_dict().items()}
                print(f"  step {number + 1}: {score:.2f} dB held out, best {best:.2f}", flush=True)
        self.model.load_state_dict(kept)
