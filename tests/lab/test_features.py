"""Tokens on disk: encoded once, some or all, and taken up where a run was cut short."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from anytimecl import backbone as backbones
from anytimecl.backbone import Backbone
from anytimecl.tail import embed
from anytimecl_lab.data import Split, open_set
from anytimecl_lab.features import features, original_vectors, trunk_key


@pytest.fixture
def split(data: Path) -> Split:
    train = open_set("pets", data).train
    assert train is not None
    return train


def counting(model: Path) -> tuple[Backbone, list[int]]:
    """The tiny model, and how many images its trunk was given at a time."""
    loaded = backbones.load(model)
    given: list[int] = []
    trunk: Callable[[Tensor], Tensor] = loaded.trunk

    def counted(pixels: Tensor) -> Tensor:
        given.append(len(pixels))
        return trunk(pixels)

    return dataclasses.replace(loaded, trunk=counted), given


def test_tokens_are_those_of_the_model(split: Split, model: Path) -> None:
    backbone, _ = counting(model)
    found = features(split, backbone)
    expected = backbone.encode([split.load(i) for i in range(len(split))]).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-3, rtol=2e-3)


def test_images_are_encoded_once(split: Split, model: Path) -> None:
    backbone, given = counting(model)
    trunk_key(backbone)
    given.clear()
    features(split, backbone, wanted=[3, 1])
    assert given == [2]
    first = features(split, backbone, wanted=[1, 3])
    assert given == [2]
    whole = features(split, backbone)
    assert given == [2, len(split) - 2]
    np.testing.assert_array_equal(first[[1, 3]], whole[[1, 3]])


def test_a_run_that_was_cut_short_resumes(
    split: Split, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, given = counting(model)
    trunk_key(backbone)
    given.clear()
    monkeypatch.setattr("anytimecl_lab.features.AT_ONCE", {"cpu": 4})
    load, calls = split.load, []

    def failing(i: int) -> Image.Image:
        calls.append(i)
        if i == 9:
            raise OSError("the disk is gone")
        return load(i)

    with pytest.raises(OSError, match="the disk is gone"):
        features(dataclasses.replace(split, load=failing), backbone)
    assert given == [4, 4]
    features(split, backbone)
    assert given == [4, 4, 4, 3]


def test_another_model_has_its_own(split: Split, model: Path, tmp_path: Path) -> None:
    from tests.backbone import tiny

    other = backbones.load(tiny.clip(tmp_path / "other", seed=1))
    assert trunk_key(other) != trunk_key(backbones.load(model))


def test_vectors_are_those_of_the_models_own_weights(split: Split, model: Path) -> None:
    backbone, given = counting(model)
    tokens = backbone.encode([split.load(i) for i in range(len(split))]).half().float()
    expected = (
        F.normalize(embed(backbone.tail, backbone.spec.tail, tokens), dim=-1).detach().numpy()
    )
    trunk_key(backbone)
    given.clear()
    some = original_vectors(split, backbone, wanted=[4, 2])
    assert given == [2]  # no more than is wanted
    np.testing.assert_allclose(some[[4, 2]], expected[[4, 2]], atol=2e-3)
    np.testing.assert_allclose(original_vectors(split, backbone), expected, atol=2e-3)
    assert given == [2, len(split) - 2]
    original_vectors(split, backbone)
    assert given == [2, len(split) - 2]
