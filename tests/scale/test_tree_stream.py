"""The tree over a whole stream is the tree that learns one by one."""

from __future__ import annotations

from pathlib import Path

import torch
from tests import helpers

from anytimecl.scale.leaf import image_vectors
from anytimecl.scale.tree import TreeClassifier
from anytimecl.scale.tree_stream import TreeStream
from anytimecl.settings import Settings

MODEL = helpers.model()
COUNT = 40


def stream(capacity: int | None) -> TreeStream:
    lessons = helpers.lessons(COUNT)
    tokens = MODEL.encode([image for image, _ in lessons])
    vectors = dict(zip(helpers.LABELS, MODEL.embed_labels(helpers.LABELS), strict=True))
    made = TreeStream(
        MODEL.spec,
        MODEL.tail,
        helpers.settings(),
        tokens,
        [label for _, label in lessons],
        vectors,
        image_vectors(MODEL, tokens),
        capacity,
    )
    made.learn(range(15))
    made.learn(range(15, COUNT))
    return made


def test_it_is_the_tree_that_learns_one_by_one(tmp_path: Path) -> None:
    asked = MODEL.encode([helpers.picture(number) for number in range(100, 110)])
    for capacity in (None, 9):
        made = stream(capacity)
        said = made.answers(
            [(asked, image_vectors(MODEL, asked))], helpers.LABELS, Settings().blend
        )
        folder = tmp_path / str(capacity)
        options = {"model": MODEL, "settings": helpers.settings(), "capacity": capacity}
        with TreeClassifier.open(folder, **options) as slow:
            for number in range(COUNT):
                slow.learn_one(*helpers.lesson(number))
            slow.settle()  # until it has split, a leaf answers for its children
            found = slow.predict_tokens(asked, helpers.LABELS)
            assert slow.routes.leaves() == made.routes.leaves()
        expected = torch.tensor([list(one.probabilities.values()) for one in found])
        torch.testing.assert_close(said, expected, atol=2e-4, rtol=1e-3)
