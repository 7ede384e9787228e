"""Regions: which patches they are, that only those are attended to, and that they teach."""

from __future__ import annotations

import numpy as np
import PIL.Image
import pytest
import torch
from tests import helpers

from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import ImageError
from anytimecl.scale.regions import (
    coverage,
    grid,
    learn_region,
    predict_regions,
    region_tokens,
)
from anytimecl.tail import TailInput, Tokens, embed, normalise

MODEL = helpers.model()
SPEC = MODEL.spec
ROWS, COLUMNS = grid(SPEC)
SIDE = SPEC.preprocess.height


def test_boxes_and_masks_cover_the_same_patches() -> None:
    size = (SIDE, SIDE)
    box = (0.0, 0.0, SIDE / 2, float(SIDE))
    cover = coverage(box, size, SPEC).view(ROWS, COLUMNS)
    expected = torch.zeros(ROWS, COLUMNS)
    expected[:, : COLUMNS // 2] = 1
    assert torch.equal(cover.round(), expected)
    mask = np.zeros((SIDE, SIDE), bool)
    mask[:, : SIDE // 2] = True
    assert torch.equal(coverage(mask, size, SPEC), cover.flatten())


def test_boxes_follow_the_image_through_resize_and_crop() -> None:
    wide = (4 * SIDE, 2 * SIDE)  # the middle half of it is seen, at half size
    box = (2.0 * SIDE, 0.0, 3.0 * SIDE, 2.0 * SIDE)  # the right half of what is seen
    cover = coverage(box, wide, SPEC).view(ROWS, COLUMNS)
    assert cover[:, COLUMNS // 2 :].min() > 0.9
    assert cover[:, : COLUMNS // 2].max() < 0.1


def test_attention_is_restricted_to_the_region() -> None:
    """With every patch repeated alike, the reference is attention with multiplied weights."""
    (tokens,) = MODEL.encode([helpers.picture(0)])
    count = ROWS * COLUMNS
    chosen = list(range(count // 2))  # half of the patches, so each counts twice
    cover = torch.zeros(count)
    cover[chosen] = 1.0
    made = region_tokens(tokens, cover)
    assert made.shape == tokens.shape
    kept = {tuple(row.tolist()) for row in tokens[1:][chosen]}
    assert {tuple(row.tolist()) for row in made[1:]} == kept
    twice = torch.cat([tokens[:1], tokens[1:][chosen].repeat_interleave(2, 0)])
    eps = SPEC.tail.norm_eps
    seen = TailInput(tokens[:1], Tokens(normalise(twice, eps)[None]))
    with torch.no_grad():
        slow = embed(MODEL.tail, SPEC.tail, seen)
        fast = embed(MODEL.tail, SPEC.tail, made[None])
    torch.testing.assert_close(fast, slow)


def test_what_lies_outside_does_not_matter_but_a_small_region_does() -> None:
    (tokens,) = MODEL.encode([helpers.picture(0)])
    cover = torch.zeros(ROWS * COLUMNS)
    cover[1] = 0.2  # less than half of the one patch that it touches
    changed = tokens.clone()
    changed[3:] += 1.0
    assert torch.equal(region_tokens(tokens, cover), region_tokens(changed, cover))


def test_a_mask_from_an_image_file_is_a_mask() -> None:
    mask = np.zeros((40, 40), bool)
    mask[:13, :29] = True
    expected = coverage(mask, (40, 40), SPEC)
    for made in (mask * np.uint8(255), mask * np.uint8(128), mask.astype(np.float32)):
        assert torch.equal(coverage(made, (40, 40), SPEC), expected)


def test_a_corrected_region_teaches() -> None:
    two = PIL.Image.new("RGB", (2 * SIDE, 2 * SIDE))
    two.paste(helpers.picture(1).resize((SIDE, 2 * SIDE)), (0, 0))
    two.paste(helpers.picture(2).resize((SIDE, 2 * SIDE)), (SIDE, 0))
    left = (0.0, 0.0, float(SIDE), 2.0 * SIDE)
    right = (float(SIDE), 0.0, 2.0 * SIDE, 2.0 * SIDE)
    with AnytimeClassifier.open(model=MODEL, settings=helpers.settings()) as classifier:
        for turn in range(120):
            learn_region(classifier, two, left if turn % 2 else right, "cat" if turn % 2 else "dog")
        found = predict_regions(classifier, two, [left, right], ["cat", "dog"])
    assert [one.label for one in found] == ["cat", "dog"]


def test_refusals() -> None:
    (tokens,) = MODEL.encode([helpers.picture(0)])
    with pytest.raises(ImageError, match="covers nothing"):
        coverage((50.0, 50.0, 60.0, 60.0), (40, 40), SPEC)
    with pytest.raises(ImageError, match="shape of its image"):
        coverage(np.ones((3, 3), bool), (40, 40), SPEC)
    with pytest.raises(ImageError, match="outside of what the model sees"):
        region_tokens(tokens, torch.zeros(ROWS * COLUMNS))
