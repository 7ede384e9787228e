"""Several models together: who is judged how, and that nothing is judged twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from tests import helpers

from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import ModelError, StoreError
from anytimecl.pool import weigh
from anytimecl.scale.encoder import LAYER, join
from anytimecl.scale.encoder_classifier import EncoderClassifier
from anytimecl.scale.ensemble import ABSENT, EVERY, Ensemble

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
        assert len(ensemble._evidence) == 40
        weights = ensemble.weights
        assert weights["mine"] > max(weights[name] for name in ("original", "tuned", "dino"))
        asked = [helpers.picture(n) for n in range(50, 60)]
        found = ensemble.predict(asked, helpers.LABELS, threshold=1.0)
    assert [one.label for one in found] == [helpers.lesson(n)[1] for n in range(50, 60)]
    experts = {"original", "tuned", "gaussian", "dino", "dino gaussian", "mine"}
    assert found[0].models.keys() == ensemble.weights.keys() == experts
    for one in found:
        for said in one.models.values():
            assert sum(said.values()) == pytest.approx(1, abs=1e-5)


def test_experts_are_weighed_by_what_they_said_before_they_learned(tmp_path: Path) -> None:
    """Each example's scores over the labels known by then; one that came later was not there."""
    with opened(tmp_path) as ensemble:
        told = []
        for number in range(EVERY):
            image, label = helpers.lesson(number)
            asked = list(dict.fromkeys([*ensemble.first.labels, label]))
            tokens = {"": ensemble.first.encode([image]), "dino": DINO.encode([image])}
            told.append((label, asked, ensemble._opinions([image], tokens, asked).everyone()))
            ensemble.learn_one(image, label)
        labels = told[-1][1]

        def spoken(said: dict[str, torch.Tensor], name: str, asked: list[str], y: str) -> float:
            if name not in said:
                return 0.0  # it had nothing to say before the first example
            return said[name][0, asked.index(y)].item() if y in asked else ABSENT

        assert "gaussian" not in told[0][2]
        scores = {
            name: torch.tensor(
                [[spoken(said, name, asked, y) for y in labels] for _, asked, said in told]
            )
            for name in told[-1][2]
        }
        target = torch.tensor([labels.index(label) for label, _, _ in told])
        assert ensemble.weights == pytest.approx(weigh(scores, target), rel=1e-4)


def test_it_resumes_and_a_repeated_key_is_not_judged_again(tmp_path: Path) -> None:
    with opened(tmp_path) as ensemble:
        for number in range(20):  # weighed once, and not again by reopening
            ensemble.learn_one(*helpers.lesson(number), key=str(number))
        evidence = list(ensemble._evidence)
        told = ensemble.predict(helpers.picture(99), helpers.LABELS).probabilities
    with opened(tmp_path) as ensemble:
        ensemble.learn_one(*helpers.lesson(3), key="3")
        assert json.loads(json.dumps(list(ensemble._evidence))) == json.loads(json.dumps(evidence))
        assert ensemble.predict(helpers.picture(99), helpers.LABELS).probabilities == told
        assert len(ensemble.first) == 20
        ensemble.learn_one(*helpers.lesson(3))  # nor an image, without its key or with a new label
        ensemble.learn_one(helpers.lesson(3)[0], "bird")
        assert len(ensemble._evidence) == len(evidence)


def test_what_could_not_be_learned_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError("The disk is full.")

    with opened(tmp_path) as ensemble:
        monkeypatch.setattr(ensemble.first.memory, "check_writable", full)
        with pytest.raises(StoreError, match="full"):
            ensemble.learn_one(*helpers.lesson(0))
        assert not ensemble._evidence


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
        for name in ("tuned", ""):
            with pytest.raises(ModelError, match="an expert of the first"):
                Ensemble(first, {name: oracle})
        (tmp_path / "ensemble.json").write_text("[")
        with pytest.raises(StoreError, match="delete it, or restore a backup"):
            Ensemble(first, {"mine": oracle}, folder=tmp_path)
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
