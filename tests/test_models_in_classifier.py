"""The classifier with models of every kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests import helpers
from tests.backbone import tiny
from tests.backbone.test_fingerprint import older

from anytimecl.backbone import load
from anytimecl.backbone.codes import CodeText
from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import LabelError, StoreError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYTIMECL_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(("blocks", "codec"), [(None, "attention-pca"), (1, "tokens-fp16")])
def test_siglip_works_by_default_and_reopens_bit_equal(
    tmp_path: Path, blocks: int | None, codec: str
) -> None:
    """Its head alone learns; memories that tuned a block, as all did once, go on so."""
    folder = tiny.siglip(tmp_path / "siglip")
    model = load(folder, tail_blocks=blocks)
    with AnytimeClassifier.open(model=model) as classifier:
        said = classifier.predict(helpers.picture(0), ["cat", "dog"])
        assert 0 < said.none_of_these < 1  # before anything was taught
    with AnytimeClassifier.open(tmp_path / "memory", model=model) as classifier:
        assert classifier.settings.codec == codec
        for number in range(4):
            classifier.learn_one(*helpers.lesson(number))
        knew = helpers.knowledge(classifier)
        learner = classifier._trainer.learner
        tuned = {n for n, p in learner.params.items() if not torch.equal(p, learner.original[n])}
        prefix = "layers.2." if blocks else "head."
        assert tuned
        assert all(name.startswith(prefix) for name in tuned)
        said = classifier.predict(helpers.picture(9))
    with AnytimeClassifier.open(tmp_path / "memory") as classifier:  # its own model
        assert not helpers.differing(helpers.knowledge(classifier), knew)
        assert classifier.predict(helpers.picture(9)) == said


def test_a_memory_brings_its_own_tail(tmp_path: Path) -> None:
    folder = tiny.clip(tmp_path / "clip")
    AnytimeClassifier.open(tmp_path / "memory", model=load(folder, tail_blocks=2)).close()
    for model in (None, folder):
        with AnytimeClassifier.open(tmp_path / "memory", model=model) as classifier:
            assert classifier.backbone.spec.tail.blocks == 2
    with pytest.raises(StoreError, match="a tail of 2 blocks, not 1"):
        AnytimeClassifier.open(tmp_path / "memory", model=load(folder))


def test_a_memory_of_a_siglip_names_its_model_to_whoever_brings_another(tmp_path: Path) -> None:
    """Whose tail cannot be without a block."""
    AnytimeClassifier.open(tmp_path / "memory", model=tiny.siglip(tmp_path / "siglip")).close()
    with pytest.raises(StoreError, match=r"was made with the model '.*siglip', whose features"):
        AnytimeClassifier.open(tmp_path / "memory", model=tiny.clip(tmp_path / "clip"))


def test_a_memory_that_was_made_before_opens(tmp_path: Path) -> None:
    folder = tiny.clip(tmp_path / "clip")
    AnytimeClassifier.open(tmp_path / "memory", model=older(folder, load(folder))).close()
    for model in (None, folder, load(folder)):
        AnytimeClassifier.open(tmp_path / "memory", model=model).close()


@pytest.mark.parametrize("make", [tiny.dinov2, tiny.dinov3, tiny.vit])
def test_a_model_of_images_only_learns_labels_as_codes(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    folder = make(tmp_path / "model")
    with AnytimeClassifier.open(tmp_path / "memory", model=folder) as classifier:
        with pytest.raises(LabelError, match=r"knows images only.*taught: 'cat', 'dog'\. Teach"):
            classifier.predict(helpers.picture(0), ["cat", "dog"])
        for number in range(12):
            learned = classifier.learn_one(*helpers.lesson(number))
            assert not learned.original
        for number in range(12):
            picture, label = helpers.lesson(number)
            assert classifier.predict(picture).label == label
        said = classifier.predict(helpers.picture(50))
        assert len(set(said.original.values())) == 1  # it has nothing to say
        with pytest.raises(LabelError, match="not taught: 'itap'"):
            classifier.predict(helpers.picture(50), [*classifier.labels, "itap"])
        knew = helpers.knowledge(classifier)
    with AnytimeClassifier.open(tmp_path / "memory") as classifier:
        assert not helpers.differing(helpers.knowledge(classifier), knew)
        assert classifier.predict(helpers.picture(50)) == said
    with AnytimeClassifier.open(tmp_path / "memory", model=load(folder)) as classifier:
        assert len(classifier) == 12


def test_a_renamed_label_is_none_that_a_model_of_images_was_taught(tmp_path: Path) -> None:
    """Although the same labels were asked about just before."""
    with AnytimeClassifier.open(model=tiny.dinov2(tmp_path / "model")) as classifier:
        for number in range(4):
            classifier.learn_one(*helpers.lesson(number))
        asked = classifier.labels
        classifier.predict(helpers.picture(50), asked)
        classifier.rename_label(asked[0], "itap")
        with pytest.raises(LabelError, match=f"not taught: {asked[0]!r}"):
            classifier.predict(helpers.picture(50), asked)


def test_codes_stay_what_they_are() -> None:
    """Memories keep them."""
    vectors = CodeText(20)(["cat", "dog"])
    signs = ["".join("+" if value > 0 else "-" for value in row) for row in vectors.tolist()]
    assert signs == ["+---+--+-+-+--+-++++", "+---+-+----++++---++"]
    assert vectors.norm(dim=1).tolist() == pytest.approx([1, 1])
