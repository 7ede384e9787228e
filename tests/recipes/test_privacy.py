"""The attack on stored features: its measures are the published ones, and it can win."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from recipes.privacy.attacker import Attack, Config
from recipes.privacy.invert import main
from recipes.privacy.measures import psnr, ssim
from recipes.privacy.records import (
    ATTACKS,
    SIDE,
    View,
    describe,
    encode,
    records,
    split,
    view,
)
from torchmetrics.functional.image import (
    peak_signal_noise_ratio,
    structural_similarity_index_measure,
)

from anytimecl.backbone import Backbone, _pictures
from anytimecl.backbone.embedded import folder, weights

SMALL = Config(
    grid=4, batch=16, width=48, heads=2, reading=1, painting=1, dropout=0.0, lr=3e-3
)  # fmt: skip


def test_measures_are_those_of_torchmetrics() -> None:
    generator = torch.Generator().manual_seed(0)
    wanted = torch.rand(4, 3, 48, 48, generator=generator)
    noise = torch.randn(wanted.shape, generator=generator)
    given = (wanted + torch.tensor([0.0, 0.02, 0.2, 2.0]).view(4, 1, 1, 1) * noise).clamp(0, 1)
    for one, other, decibel, likeness in zip(
        given, wanted, psnr(given, wanted), ssim(given, wanted), strict=True
    ):
        theirs = structural_similarity_index_measure(one[None], other[None], data_range=1.0)
        assert float(likeness) == pytest.approx(float(theirs), abs=1e-5)
        if not torch.equal(one, other):
            theirs = peak_signal_noise_ratio(one[None], other[None], data_range=1.0)
            assert float(decibel) == pytest.approx(float(theirs), abs=1e-3)


def test_no_picture_is_in_two_parts() -> None:
    files = [f"align/{number:04d} name/{i}.jpg" for number in range(8) for i in range(5)]
    parts = split(files[::-1])
    assert {name: len(own) for name, own in parts.items()} == {
        "train": 32, "validation": 2, "test": 6,
    }  # fmt: skip
    assert sorted(file for own in parts.values() for file in own) == files


def squares(count: int, places: bool) -> tuple[View, torch.Tensor]:
    """Pictures of plain squares, and records in which each patch tells its colour.

    `places`: the patches come in any order, and each tells where it was.
    """
    generator = torch.Generator().manual_seed(1)
    colours = torch.rand(count, 3, SMALL.grid, SMALL.grid, generator=generator)
    targets = torch.nn.functional.interpolate(colours, scale_factor=8)
    patches = colours.flatten(2).mT  # [picture, patch, 3]
    if places:
        where = torch.eye(SMALL.grid**2).expand(count, -1, -1)
        patches = torch.cat([patches, where], dim=2)
        order = torch.rand(count, SMALL.grid**2, generator=generator).argsort(1)
        patches = patches.gather(1, order[:, :, None].expand_as(patches))
    view = View(torch.zeros(count, patches.shape[2]), patches, not places, 0.0)
    return view, (targets * 255).byte()


def rows(view: View, chosen: slice) -> View:
    return view._replace(cls=view.cls[chosen], patches=view.patches[chosen])


@pytest.mark.parametrize(("places", "steps"), [(False, 80), (True, 200)])
def test_the_attacker_finds_what_is_there(places: bool, steps: int) -> None:
    """Whether order was told or had to be read from the patches themselves."""
    seen, targets = squares(560, places)
    attack = Attack(rows(seen, slice(512)), targets[:512], SMALL)
    wanted, held = targets[512:].float() / 255, rows(seen, slice(512, None))
    floor = float(psnr(attack.model.mean_picture.expand_as(wanted), wanted).mean())
    attack.train(steps, lambda given: float(psnr(given, wanted).mean()), held)
    assert float(psnr(attack.pictures(held), wanted).mean()) > floor + 6


def test_without_places_the_order_of_patches_is_not_read() -> None:
    seen, targets = squares(4, places=True)
    attack = Attack(seen, targets, SMALL)
    turned = seen._replace(patches=seen.patches.flip(1))
    assert torch.allclose(attack.pictures(seen), attack.pictures(turned), atol=1e-5)
    told = Attack(seen._replace(ordered=True), targets, SMALL)
    assert not torch.allclose(told.pictures(seen), told.pictures(turned), atol=1e-5)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Four classes of two pictures."""
    file = tmp_path / "pictures.zip"
    with zipfile.ZipFile(file, "w") as opened:
        for number, picture in enumerate(_pictures.pictures()):
            raw = io.BytesIO()
            picture.save(raw, "PNG")
            opened.writestr(f"align/{number // 2:04d} name/{number % 2}.png", raw.getvalue())
    return file


def test_views_are_what_the_codecs_give_back(embedded: Backbone, archive: Path) -> None:
    spec = describe()
    assert spec.tail == embedded.spec.tail
    assert spec.preprocess == embedded.spec.preprocess
    with zipfile.ZipFile(archive) as opened:
        files = opened.namelist()[:2]
    trunk = weights.float_trunk(folder(), spec.tail, "cpu")
    tokens, targets = encode(archive, files, trunk, "cpu", mirrored=True)
    original = np.asarray(_pictures.pictures()[1].resize((SIDE, SIDE), PIL.Image.Resampling.BOX))
    assert abs(targets[1].permute(1, 2, 0).numpy().astype(int) - original).max() <= 1
    assert (targets[2:].int() - targets[:2].flip(-1).int()).abs().max() <= 1  # sums of floats
    assert not torch.equal(tokens[2:], tokens[:2])
    sizes = {}
    for attack in ATTACKS:
        made = view(attack, tokens, embedded.tail, workers=1)
        sizes[attack] = made.size
        assert made.ordered == (attack not in ("tokens, no order", "attention-pca"))
        assert made.patches.shape == (4, 0 if attack == "class token" else 196, 768)
        loose = 0.2 if attack == "pca-image-cls-int8" else 0.03  # the paper's codec costs it more
        assert (made.cls - tokens[:, 0]).norm() < loose * tokens[:, 0].norm()
    assert sizes["attention-pca"] < sizes["pca-image-cls-int8"] < sizes["tokens-fp16"]
    (alone,) = records("attention-pca", embedded.tail, tokens[:1], workers=1)
    (beside,) = records("attention-pca", embedded.tail, tokens[:1], workers=2)
    assert alone == beside


def test_the_whole_recipe_in_small(embedded: Backbone, archive: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [str(archive), str(out), "--steps", "1", "--batch", "2", "--workers", "1"]
    main([*words, "--attacks", "attention-pca", "class token"])
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [line["attack"] for line in lines] == ["mean picture", "attention-pca", "class token"]
    assert all(5 < line["psnr"] < 30 and line["pictures"] == 3 for line in lines)
    with PIL.Image.open(out / "sheet.png") as sheet:
        assert sheet.size == (3 * 88, 4 * 102)
    assert sorted(file.name for file in out.iterdir()) == ["results.jsonl", "sheet.png"]
