"""What encoders make of images is what the tree itself would."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests import helpers
from tests.backbone import tiny
from tests.scale.test_tree import opened

from anytimecl.errors import StoreError
from anytimecl.predicting import digest_of
from anytimecl.scale.leaf import image_vectors
from anytimecl.scale.record_host import RecordHost, RecordMaker

IMAGES = [helpers.picture(number) for number in range(3)]


def test_a_lesson_by_an_encoder_is_the_lesson(tmp_path: Path) -> None:
    with opened(tmp_path / "one") as one, opened(tmp_path / "two") as two:
        for made, image in zip(
            RecordMaker(one.backbone, one.settings).encoded(IMAGES), IMAGES, strict=True
        ):
            one.learn_one(image, "cat")
            vector = torch.tensor(made.vector)
            two.submit(made.record, "cat", content=made.content, vector=vector).result()
        first, second = (each.leaves.call(0, "lessons_after", 0) for each in (one, two))
        assert first == second
        looked = RecordMaker(two.backbone, two.settings).looked(IMAGES)
        told = two.predict_tokens(
            torch.tensor(looked.tokens), helpers.LABELS, vectors=torch.tensor(looked.vectors)
        )
        assert told == one.predict(IMAGES, helpers.LABELS)


def test_records_from_elsewhere_are_looked_at(tmp_path: Path) -> None:
    with opened(tmp_path) as tree:
        tokens = tree.encode(IMAGES[:1])
        record = tree.codec.encode(tokens[0])
        maker = RecordMaker(tree.backbone, tree.settings)
        found = maker.located(record)
        assert (found.record, found.content) == (record, None)
        expected = image_vectors(tree.backbone, tree.codec.decode([record]))[0]
        assert np.array_equal(found.vector, expected.numpy())
        assert maker.encoded(IMAGES[:1])[0].content == digest_of(tokens[0])
        with pytest.raises(StoreError):
            maker.located(b"nothing of the kind")


def test_an_encoder_with_another_model_does_not_begin(tmp_path: Path) -> None:
    model = str(tiny.clip(tmp_path))
    with pytest.raises(StoreError, match="another model"):
        RecordHost(model, "the fingerprint of another", helpers.settings().to_json())
