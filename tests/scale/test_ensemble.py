"""Several models together: who is judged how, and that nothing is judged twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from tests import helpers

from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import ModelError
from anytimecl.scale.encoder import LAYER, join
from anytimecl.scale.encoder_classifier import EncoderClassifier
from anytimecl.scale.ensemble import Ensemble

CLIP = helpers.model()
DINO = join(helpers.model("dinov2", seed=3), CLIP)


def oracle(images: Sequence[PIL.Image.Image], labels: Sequence[str]) -> np.ndarray:
    """A scorer who knows the first hundred lessons by heart."""
    known = {helpers.picture(n).tobytes(): helpers.lesson(n)[1] for n in range(100)}
    rows = [[float(known.get(image.tobytes()) == label) for label in labels] for image in images]
    return np.array(rows)


def opened(folder: Path) -> Ensemble:
    settings = helpers.settings()
    first = AnytimeClassifier.open(folder / "clip", model=CLIP, settings=settings)
    dino = EncoderClassifier.open(folder / "dino", model=DINO, settings=settings)
    return Ensemble(first, {"dino": dino, "mine": oracle}, folder=folder)


def test_a_scorer_who_is_always_right_is_believed(tmp_path: Path) -> None:
    with opened(tmp_path) as ensemble:
        for number in range(40):
            ensemble.learn_one(*helpers.lesson(number))
        assert ensemble.estimates.overall[3].right == 1.0
        assert [mark.seen for mark in ensemble.estimates.overall] == [40] * 4
        found = ensemble.predict([helpers.picture(n) for n in range(50, 60)], helpers.LABELS)
    assert [one.label for one in found] == [helpers.lesson(n)[1] for n in range(50, 60)]
    assert found[0].models.keys() == {"original", "tuned", "dino", "mine"}


def test_it_resumes_and_a_repeated_key_is_not_judged_again(tmp_path: Path) -> None:
    with opened(tmp_path) as ensemble:
        for number in range(12):
            ensemble.learn_one(*helpers.lesson(number), key=str(number))
        state = ensemble.estimates.state()
        told = ensemble.predict(helpers.picture(99), helpers.LABELS).probabilities
    with opened(tmp_path) as ensemble:
        ensemble.learn_one(*helpers.lesson(3), key="3")
        assert ensemble.estimates.state() == state
        assert ensemble.predict(helpers.picture(99), helpers.LABELS).probabilities == told
        assert len(ensemble.first) == 12


def test_a_joined_encoder_is_the_same_after_reopening_and_after_a_replay(tmp_path: Path) -> None:
    settings = helpers.settings()
    with EncoderClassifier.open(tmp_path, model=DINO, settings=settings) as lived:
        for number in range(10):
            lived.learn_one(*helpers.lesson(number))
        lived.consolidate(epochs=1)
        lived.learn_one(*helpers.lesson(10))
        before = helpers.knowledge(lived)
        layer = before["tensors"][f"weights.{LAYER}"]
        assert not torch.equal(layer, DINO.tail[LAYER])
        lived.rebuild()
        assert not helpers.differing(before, helpers.knowledge(lived))
    with EncoderClassifier.open(tmp_path, model=DINO, settings=settings) as again:
        assert not helpers.differing(before, helpers.knowledge(again))


def test_refusals(tmp_path: Path) -> None:
    with AnytimeClassifier.open(model=CLIP, settings=helpers.settings()) as first:
        with pytest.raises(ModelError, match="no blend"):
            Ensemble(first, {"mine": oracle}, blend="none")
        with pytest.raises(ModelError, match="names of the first"):
            Ensemble(first, {"tuned": oracle})
        wrong = Ensemble(first, {"mine": lambda images, labels: [[1.0]]})
        with pytest.raises(ModelError, match="a probability for each of 1 images and 4 labels"):
            wrong.predict(helpers.picture(0), helpers.LABELS)


@pytest.mark.parametrize(
    "row",
    [
        [-0.1, -3.0, -4.0, -5.0],  # log-probabilities
        [0.0, 0.0, 9.0, 2.0],  # logits
        [0.0, 0.0, 0.0, 0.0],
        [1.5, -0.5, 0.0, 0.0],
        [float("nan"), 0.5, 0.5, 0.0],
    ],
)
def test_what_is_no_probability_is_refused_and_teaches_nothing(row: list[float]) -> None:
    with AnytimeClassifier.open(model=CLIP, settings=helpers.settings()) as first:
        scores = lambda images, labels: [row[: len(labels)]] * len(images)  # noqa: E731
        ensemble = Ensemble(first, {"mine": scores})
        with pytest.raises(ModelError, match="softmax first"):
            ensemble.predict(helpers.picture(0), helpers.LABELS)
        with pytest.raises(ModelError, match="softmax first"):
            ensemble.learn_one(*helpers.lesson(0))
        assert len(first) == 0
