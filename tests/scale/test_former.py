"""What an older version made with models joined to a label space, and trees, is still known."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.backbone import tiny
from tests.backbone.test_fingerprint import older

from anytimecl.backbone import load
from anytimecl.scale.encoder import join
from anytimecl.scale.tree import TreeClassifier


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))


def test_a_joined_model_is_known_by_its_former_fingerprint(tmp_path: Path) -> None:
    dino, clip = tiny.dinov2(tmp_path / "dinov2"), tiny.clip(tmp_path / "clip")
    before = join(older(dino, load(dino)), older(clip, load(clip))).spec
    told = [older(place, load(place)).spec.fingerprint for place in (dino, clip)]
    assert before.weights == hashlib.sha256(" ".join([*told, "0"]).encode()).hexdigest()
    now = join(load(dino), load(clip))
    assert now.spec.fingerprint != before.fingerprint
    assert now.known_as(before.fingerprint).spec.fingerprint == before.fingerprint


def test_a_tree_that_was_made_before_opens(tmp_path: Path) -> None:
    clip = tiny.clip(tmp_path / "clip")
    TreeClassifier.open(tmp_path / "tree", model=older(clip, load(clip))).close()
    TreeClassifier.open(tmp_path / "tree", model=clip).close()
