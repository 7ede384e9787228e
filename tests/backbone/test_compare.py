"""Every family gives what its own library gives, from pictures to answers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from tests.backbone.compare import FAMILIES, FOREIGN, compare, compare_kept, kept

from anytimecl.backbone import layout

NEAR = 1e-4


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "tail_blocks"),
    [  # as it is by default, which of a SigLIP is its head alone, and with more blocks
        *itertools.product(FAMILIES, [None, 2]),
        *((name, 1) for name in FAMILIES if name.startswith("SigLIP")),
    ],
)
def test_pictures_to_answers(tmp_path: Path, name: str, tail_blocks: int | None) -> None:
    make, how = FAMILIES[name]
    found = compare(make(tmp_path / "model", **how), tail_blocks)
    assert found.pixels is not None
    assert found.tokens is not None
    assert max(found.pixels, found.tokens, found.features) < NEAR
    assert (found.text is None) == (found.logits is None)
    assert found.text is None or found.text < NEAR
    assert found.logits is None or found.logits < NEAR
    assert found.same_answers


@pytest.mark.parametrize("tail_blocks", [None, 2])
@pytest.mark.parametrize("name", sorted(folder.name for folder in FOREIGN.iterdir()))
def test_what_timm_and_open_clip_said(tmp_path: Path, name: str, tail_blocks: int | None) -> None:
    found = compare_kept(kept(name, tmp_path / "model"), tail_blocks)
    numbers = [value for value in found[:5] if value is not None]
    of_timm = 1 if tail_blocks else 2
    assert len(numbers) == (3 if name.startswith("open_clip") else of_timm)
    assert max(numbers) < NEAR
    assert found.same_answers


def test_every_table_is_compared(tmp_path: Path) -> None:
    kinds = set()
    for number, (make, how) in enumerate(FAMILIES.values()):
        folder = make(tmp_path / str(number), **how)
        kinds.add(json.loads((folder / "config.json").read_text())["model_type"])
    assert kinds == set(layout.tables())


def test_the_page_has_a_row_of_each() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    for name in (*FAMILIES, *(folder.name for folder in FOREIGN.iterdir())):
        assert f"\n| {name} | " in page, name
