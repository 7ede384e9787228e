"""Synthetic test pictures for comparing trunks.

White noise would not do: to a trained model all of it looks the same. These have smooth areas,
edges, shapes of all sizes and regular patterns, in two colours each, with the 1/f spectrum of
photographs.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import PIL.Image
import PIL.ImageDraw

_SIDE = 224
Array = np.ndarray[Any, np.dtype[np.float64]]


def pictures() -> list[PIL.Image.Image]:
    """Eight pictures.

    >>> [picture.size for picture in pictures()] == [(224, 224)] * 8
    True
    """
    rng = np.random.default_rng(0)
    down, across = np.mgrid[:_SIDE, :_SIDE] / _SIDE
    layouts = [  # each [down, across], about -1 to 1
        2 * down - 1,
        _cloud(rng) / 2,
        _shapes(rng, "ellipse", 6),
        _shapes(rng, "rectangle", 40),
        np.sign(np.sin(40 * across + 8 * down)),
        np.cos(50 * np.hypot(across - 0.5, down - 0.5)),
        _shapes(rng, "ellipse", 300),
        np.sign(np.sin(25 * across) * np.sin(25 * down)),
    ]
    return [_coloured(rng, layout) for layout in layouts]


def _coloured(rng: np.random.Generator, layout: Array) -> PIL.Image.Image:
    dark, light = rng.uniform(0, 255, (2, 3))
    share = (layout + 1) / 2 + 0.05 * _cloud(rng)
    colours = dark + (light - dark) * share[:, :, None]
    return PIL.Image.fromarray(colours.clip(0, 255).astype(np.uint8))


def _cloud(rng: np.random.Generator) -> Array:
    """1/f noise with variance 1."""
    frequency = np.hypot(np.fft.fftfreq(_SIDE)[:, None], np.fft.rfftfreq(_SIDE)[None])
    frequency[0, 0] = np.inf  # no constant part
    noise = np.fft.rfft2(rng.standard_normal((_SIDE, _SIDE)))
    cloud: Array = np.fft.irfft2(noise / frequency, s=(_SIDE, _SIDE))
    cloud /= cloud.std()
    return cloud


def _shapes(rng: np.random.Generator, kind: Literal["ellipse", "rectangle"], count: int) -> Array:
    """Overlapping grey shapes, the largest at the bottom."""
    image = PIL.Image.new("L", (_SIDE, _SIDE), int(rng.integers(256)))
    pen = PIL.ImageDraw.Draw(image)
    draw = pen.ellipse if kind == "ellipse" else pen.rectangle
    for radius in np.linspace(_SIDE / 3, _SIDE / 40, count):
        x, y = rng.uniform(0, _SIDE, 2)
        box = (x - radius, y - radius, x + radius, y + radius)
        draw(box, fill=int(rng.integers(256)))
    return np.asarray(image) / 127.5 - 1
