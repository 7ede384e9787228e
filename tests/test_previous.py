"""A memory that the version before the experts wrote opens and goes on."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from tests.helpers import LABELS, differing, knowledge, lesson, measured, model, picture
from tests.test_trainer import assert_counted

from anytimecl.backbone import Backbone, Spec
from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import StoreError
from anytimecl.memory import open_memory

PREVIOUS = Path(__file__).parent / "fixtures" / "previous"  # of fixtures/make_previous.py


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(PREVIOUS, tmp_path / "memory")


@pytest.fixture(params=[model, measured])
def backbone(request: pytest.FixtureRequest, folder: Path) -> Backbone:
    """Known as the one that it was made with, however torch draws its random weights today."""
    shutil.copytree(folder, folder.with_name("looked at"))
    with open_memory(folder.with_name("looked at")) as memory:
        made_with = Spec.from_dict(json.loads(memory.meta["spec"]))
    spec = dataclasses.replace(request.param().spec, weights=made_with.weights)
    return dataclasses.replace(request.param(), spec=spec)


def test_it_opens_and_goes_on(folder: Path, backbone: Backbone) -> None:
    with pytest.raises(StoreError, match="older version 2"):
        AnytimeClassifier.open(folder, model=backbone, read_only=True)
    shutil.copytree(folder, folder.with_name("killed"))
    with AnytimeClassifier.open(folder, model=backbone) as classifier:
        trainer = classifier._trainer
        assert classifier.settings.blend == "pool"
        assert len(classifier) == 26
        assert classifier.labels == trainer.labels
        assert sum(trainer.model.estimates.of(y).seen for y in classifier.labels) == 26
        assert_counted(trainer)
        # The six examples after the checkpoint were lived through again, and are evidence.
        examples = [example for example, _ in classifier.memory.ids()]
        assert [seen.example for seen in trainer.model.evidence] == examples[-6:]
        found = classifier.predict([picture(50), picture(51)], [*LABELS, "itap"])
        assert all(sum(each.tuned.values()) == pytest.approx(1, abs=1e-5) for each in found)
        for number in range(27, 45):
            classifier.learn_one(*lesson(number))
        assert_counted(trainer)
        assert classifier.predict(picture(44), LABELS).label == lesson(44)[1]
        after = knowledge(classifier)
        told = classifier.predict([picture(50), picture(51)], LABELS)
    with AnytimeClassifier.open(folder, model=backbone) as again:
        assert differing(after, knowledge(again)) == []
        assert again.predict([picture(50), picture(51)], LABELS) == told
        assert again.forget(example_id=3) == 1
        assert_counted(again._trainer)
    # Killed before it wrote a checkpoint of its own, it starts from the old one once more.
    for killed in (True, False):
        classifier = AnytimeClassifier.open(folder.with_name("killed"), model=backbone)
        for number in range(27, 45):
            if killed and number == 36:
                break
            if number >= 36 or killed:
                classifier.learn_one(*lesson(number))
        if killed:
            classifier._checkpointer.close()
            classifier.memory.close()
        else:
            assert differing(after, knowledge(classifier)) == []
            classifier.close()
