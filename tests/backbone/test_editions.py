"""A memory of the second edition, as that edition wrote it, on today's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.fixtures.make_edition import LABELS, shape

from anytimecl import AnytimeClassifier
from anytimecl.backbone import Backbone
from anytimecl.backbone import embedded as package

pytestmark = pytest.mark.real

MADE = Path(__file__).parents[1] / "fixtures" / "edition2"  # of fixtures/make_edition.py


def test_it_opens_predicts_the_same_labels_and_learns_on(
    embedded: Backbone, tmp_path: Path
) -> None:
    memory = shutil.copytree(MADE, tmp_path / "memory")
    # The prior is the same in both editions, and large.
    shutil.copy(Path(package.__file__).with_name("prior.safetensors"), memory)
    answers = json.loads((MADE / "answers.json").read_text())
    asked = [shape(label, number) for label in LABELS for number in range(3, 8)]
    with AnytimeClassifier.open(memory, model=embedded) as classifier:
        assert classifier.backbone.spec.revision == "2"
        assert classifier.backbone.spec.logit_scale == 150.0
        assert len(classifier) == 9
        assert [each.label for each in classifier.predict(asked, labels=LABELS)] == answers
        classifier.learn_one(shape(LABELS[0], 9), "a label of today")
        told = classifier.predict(asked[0], labels=[*LABELS, "a label of today"])
    with AnytimeClassifier.open(memory) as again:
        assert len(again) == 10
        assert again.predict(asked[0], labels=[*LABELS, "a label of today"]) == told
