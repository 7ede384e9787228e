"""Another encoder in place of the tuned one, and a tuned block for every part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.codec import tiny_tail
from tests.lab.worlds import CLASSES, NOVEL, asked, seen, tokens_of, world

from anytimecl.blend import blend
from anytimecl.errors import ModelError
from anytimecl_lab.methods.encoder import JoinedEncoder, PaperJointLearner
from anytimecl_lab.methods.online import Online
from anytimecl_lab.methods.partitions import Partitions
from anytimecl_lab.world import Second, World


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    """Methods are run as the lab runs them."""
    with torch.no_grad():
        yield


def two() -> World:
    """The tiny world, with a second encoder whose tail is another."""
    given = world()
    numbers = [n for n in range(len(CLASSES)) for _ in range(12)]
    second = Second(
        "other", tiny_tail.spec(weights="other"), tiny_tail.params(3), seen(tokens_of(numbers, 7))
    )
    return replace(given, second=second)


def test_estimates_and_answers_are_of_the_encoder_and_of_the_original_model() -> None:
    given = two()
    method = JoinedEncoder(given)
    order = np.random.default_rng(0).permutation(48).tolist()
    method.learn(order)
    assert isinstance(method.stream.learner, PaperJointLearner)
    # Original: the first model over the labels seen so far, the newcomer's among them.
    rows: dict[str, int] = {}
    right = dict.fromkeys(CLASSES, 0)
    for i in order:
        label = given.labels[i]
        rows.setdefault(label, len(rows))
        scores = given.original_vectors[i] @ given.label_vectors(list(rows)).T
        right[label] += int(scores.argmax()) == rows[label]
    for name in CLASSES:
        record = method.stream.estimates.of(name)
        assert record.seen == 12
        assert record.original == pytest.approx(right[name] / 12)
    tokens, _ = asked()
    images = given.image_vectors(given.tail, tokens)
    read = method.both(images, tokens, CLASSES)
    original = (100 * images @ given.label_vectors(CLASSES).T).softmax(1)
    torch.testing.assert_close(read["original"], original)
    opinions = method._opinions(images, tokens, CLASSES)
    assert torch.equal(read["ocw"], blend("ocw", opinions))
    assert not torch.equal(read["tuned"], read["original"])


def test_labels_never_seen_stay_the_original_models() -> None:
    given = two()
    method = JoinedEncoder(given)
    method.learn([0, 12, 24])
    tokens, _ = asked()
    images = given.image_vectors(given.tail, tokens)
    read = method.both(images, tokens, NOVEL)
    assert torch.equal(read["ocw"], read["original"])


def test_an_encoder_has_to_be_named() -> None:
    with pytest.raises(ModelError, match="needs an encoder"):
        JoinedEncoder(world())


def test_one_part_is_the_online_method() -> None:
    given = world()
    whole, online = Partitions(given, paper=True), Online(given, paper=True)
    order = list(range(0, 48, 3))
    whole.learn(order)
    online.learn(order)
    tokens, _ = asked()
    assert torch.equal(whole.predict(tokens, CLASSES), online.predict(tokens, CLASSES))


def test_parts_are_cut_at_their_capacity() -> None:
    method = Partitions(world(), paper=True, capacity=20)
    method.learn(list(range(48)))
    assert len(method.tree.leaves) > 1
    assert all(len(leaf.members) <= 20 for leaf in method.tree.leaves.values())
    told = method.predict(asked()[0], CLASSES)
    assert told.shape == (20, len(CLASSES))
    assert (told >= 0).all()
