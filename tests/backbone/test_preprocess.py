"""Pixels are those of a slow reference, and of transformers' own Pillow processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import CLIPImageProcessorPil, SiglipImageProcessorPil
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil

from anytimecl.backbone.preprocess import from_config, pixels
from anytimecl.backbone.spec import Preprocess
from anytimecl.errors import ImageError, ModelError

MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
CLIP = {
    "size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24},
    "do_center_crop": True, "resample": 3, "image_mean": MEAN, "image_std": STD,
}  # fmt: skip
SIGLIP = {
    "size": {"height": 24, "width": 20}, "resample": 2,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip
DINOV2 = {**CLIP, "size": {"shortest_edge": 32}}


def noise(width: int, height: int, seed: int = 0) -> PIL.Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return PIL.Image.fromarray(values)


def slow(image: PIL.Image.Image, prep: Preprocess) -> torch.Tensor:
    """Resize all of it, cut out the middle, and do the arithmetic pixel by pixel."""
    if isinstance(prep.resize_to, tuple):
        height, width = prep.resize_to
    elif image.width <= image.height:
        width, height = prep.resize_to, int(prep.resize_to * image.height / image.width)
    else:
        width, height = int(prep.resize_to * image.width / image.height), prep.resize_to
    filters = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}
    resized = np.array(image.resize((width, height), PIL.Image.Resampling(filters[prep.resample])))
    top, left = (height - prep.height) // 2, (width - prep.width) // 2
    out = torch.empty(3, prep.height, prep.width, dtype=torch.float64)
    for row in range(prep.height):
        for column in range(prep.width):
            for channel in range(3):
                value = int(resized[top + row, left + column, channel]) / 255
                out[channel, row, column] = (value - prep.mean[channel]) / prep.std[channel]
    return out


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.sampled_from([CLIP, SIGLIP, DINOV2]),
    st.integers(0, 3),
)
def test_pixels_are_those_of_the_slow_reference(
    width: int, height: int, config: dict[str, Any], resample: int
) -> None:
    prep = from_config({**config, "resample": resample}, "test")
    image = noise(width, height)
    got, expected = pixels(image, prep), slow(image, prep)
    assert got.dtype == torch.float32
    assert got.shape == (3, prep.height, prep.width)
    # A very long image is not made whole, and may then be one level of 255 off.
    sliver = max(width, height) / min(width, height) > 8
    level = 1 / 255 / min(prep.std)
    assert (got - expected).abs().max() < (1.01 * level if sliver else 1e-6)


@pytest.mark.parametrize("size", [(24, 24), (37, 61), (200, 90), (7, 11), (24, 25)])
@pytest.mark.parametrize(
    ("processor", "config"),
    [
        (CLIPImageProcessorPil, CLIP),
        (SiglipImageProcessorPil, SIGLIP),
        (BitImageProcessorPil, DINOV2),
    ],
)
def test_pixels_are_those_of_transformers(
    size: tuple[int, int], processor: Any, config: dict[str, Any]
) -> None:
    image = noise(*size)
    expected = processor(**config)(image, return_tensors="np")["pixel_values"][0]
    got = pixels(image, from_config(config, "test")).numpy()
    assert np.abs(got - expected).max() < 1e-5


@pytest.mark.parametrize("size", [(60_000, 1), (1, 60_000), (3, 900)])
def test_a_sliver_needs_no_gigabytes(size: tuple[int, int]) -> None:
    prep = from_config(CLIP, "test")
    shade = PIL.Image.linear_gradient("L").resize(size).convert("RGB")
    assert pixels(shade, prep).shape == (3, 24, 24)
    if max(size) == 900:
        level = 1 / 255 / min(prep.std)
        assert (pixels(shade, prep) - slow(shade, prep)).abs().max() < 1.01 * level


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_other_modes_become_rgb(mode: str) -> None:
    image, prep = noise(30, 30).convert(mode), from_config(CLIP, "test")
    assert torch.equal(pixels(image, prep), pixels(image.convert("RGB"), prep))


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(ImageError, match="ndarray"):
        pixels(np.zeros((3, 3, 3)), from_config(CLIP, "test"))  # type: ignore[arg-type]
    with pytest.raises(ImageError, match="empty"):
        pixels(PIL.Image.new("RGB", (0, 4)), from_config(CLIP, "test"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"do_resize": False}, "do_resize"),
        ({"do_rescale": False}, "do_rescale"),
        ({"do_pad": True}, "do_pad"),
        ({"do_flip": True}, "do_flip"),
        ({"rescale_factor": 1 / 127.5}, "rescale_factor"),
        ({"rescale_offset": True}, "rescale_offset"),
        ({"do_center_crop": False}, "do_center_crop"),
        ({"crop_size": {"height": 25, "width": 24}}, "crop_size"),
        ({"size": {"longest_edge": 24}}, "size"),
        ({"size": {"shortest_edge": 24, "longest_edge": 30}}, "size"),
        ({"size": {"shortest_edge": 0}}, "size"),
        ({"size": None}, "size"),
        ({"size": True}, "size"),
        ({"resample": 4}, "resample"),
        ({"resample": None}, "resample"),
        ({"image_mean": [0.5]}, "image_mean"),
        ({"image_mean": 0.5}, "image_mean"),
        ({"image_mean": ["a", "b", "c"]}, "image_mean"),
        ({"image_std": [0.5, 0.0, 0.5]}, "image_std"),
    ],
)
def test_what_cannot_be_followed_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=f"test cannot be followed: {says} is"):
        from_config({**CLIP, **changes}, "test")


def test_old_and_idle_keys_are_understood() -> None:
    expected = from_config(CLIP, "test")
    old = {**CLIP, "size": 24, "crop_size": 24, "feature_extractor_type": "CLIPFeatureExtractor"}
    assert from_config(old, "test") == expected
    idle = {**CLIP, "do_pad": None, "do_convert_rgb": True, "data_format": "channels_first"}
    assert from_config(idle, "test") == expected
    bare = from_config({**CLIP, "do_normalize": False}, "test")
    assert (bare.mean, bare.std) == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
