"""How near one picture is to another."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def psnr(given: Tensor, wanted: Tensor) -> Tensor:
    """Peak signal to noise of each picture in dB, values from 0 to 1, [picture, 3, y, x]."""
    return -10 * (given - wanted).square().flatten(1).mean(1).clamp_min(1e-10).log10()


def ssim(given: Tensor, wanted: Tensor) -> Tensor:
    """Structural similarity of each picture: Gaussian window of 11 pixels, edges mirrored."""
    at = torch.arange(11, device=given.device, dtype=given.dtype) - 5
    line = (-at.square() / (2 * 1.5**2)).exp()
    line = line / line.sum()
    channels = given.shape[1]
    window = (line[:, None] * line).expand(channels, 1, 11, 11)

    def blur(values: Tensor) -> Tensor:
        return F.conv2d(F.pad(values, (5, 5, 5, 5), mode="reflect"), window, groups=channels)

    mean_g, mean_w = blur(given), blur(wanted)
    var_g = blur(given * given) - mean_g.square()
    var_w = blur(wanted * wanted) - mean_w.square()
    both = blur(given * wanted) - mean_g * mean_w
    light = (2 * mean_g * mean_w + 1e-4) / (mean_g.square() + mean_w.square() + 1e-4)
    form = (2 * both + 9e-4) / (var_g + var_w + 9e-4)
    return (light * form).flatten(1).mean(1)
