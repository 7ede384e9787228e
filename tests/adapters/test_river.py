"""river's own checks where they apply, and images in a stream."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from river import checks, compose, evaluate, metrics
from tests.adapters.pictures import QUICK, images

from anytimecl import AnytimeClassifier, ImageError
from anytimecl.adapters.river import AnytimeRiverClassifier

ROWS = 30  # of each of river's data sets; what is checked shows in these as in two hundred


class Drawn(AnytimeRiverClassifier):
    """Features drawn as a picture, since river's checks know nothing but numbers."""

    def _image(self, x: dict[Hashable, Any]) -> Any:
        picture = np.zeros((8, 8))
        for name, value in x.items():  # each has a place of its own; any may be missing
            picture.flat[sum(map(ord, str(name))) % 64] += float(value)
        return np.rint(128 + 100 * np.tanh(picture)).astype(np.uint8)

    def _column(self, X: pd.DataFrame) -> list[Any]:  # noqa: N803
        return [self._image(row) for row in X.to_dict(orient="records")]


def river_checks() -> Iterator[Any]:
    """Every check of river, each on the first rows of its data set."""
    for number, check in enumerate(checks.yield_checks(Drawn())):
        if isinstance(check, functools.partial):
            data = list(itertools.islice(check.keywords["dataset"], ROWS))
            check = functools.partial(check.func, dataset=data)
        yield pytest.param(check, id=f"{number}-{getattr(check, 'func', check).__name__}")


@pytest.mark.parametrize("check", list(river_checks()))
def test_checks_of_river(check: Callable[..., None], model: Path) -> None:
    check(Drawn(model=str(model), settings=QUICK))


@pytest.fixture
def river(model: Path) -> AnytimeRiverClassifier:
    return AnytimeRiverClassifier(model=str(model), settings=QUICK)


def stream(count: int) -> list[tuple[dict[Hashable, Any], str]]:
    pictures, labels = images(count)
    return [({"image": p, "weight": 2.0}, y) for p, y in zip(pictures, labels, strict=True)]


def test_progressive_validation_learns_labels_nobody_declared(
    river: AnytimeRiverClassifier,
) -> None:
    pipeline = compose.Discard("weight") | river
    score = evaluate.progressive_val_score(stream(60), pipeline, metrics.Accuracy())
    assert score.get() > 0.8  # the two sorts are easy to tell apart
    assert set(river.predict_proba_one(stream(1)[0][0])) == {"cat", "dog"}


def test_named_labels_are_chosen_from_before_any_is_learned(model: Path) -> None:
    x = stream(1)[0][0]
    nothing = AnytimeRiverClassifier(model=str(model))
    assert nothing.predict_proba_one(x) == {}
    assert nothing.predict_one(x) is None
    named = AnytimeRiverClassifier(model=str(model), labels=["cat", "dog"])
    with AnytimeClassifier.open(model=model) as plain:
        expected = plain.predict(x["image"], ["cat", "dog"]).probabilities
    assert named.predict_proba_one(x) == pytest.approx(expected)


def test_labels_come_back_as_the_stream_has_them(
    river: AnytimeRiverClassifier, tmp_path: Path
) -> None:
    pictures, _ = images(3)
    for picture, label in zip(pictures, [True, 7, "dog"], strict=True):
        river.learn_one({"image": picture}, label)
    assert set(river.predict_proba_one({"image": pictures[0]})) == {True, 7, "dog"}
    assert river.classifier.labels == ["True", "7", "dog"]


def test_mini_batches_do_as_single_ones(river: AnytimeRiverClassifier) -> None:
    rows = stream(12)
    alone = river.clone()
    for x, y in rows:
        alone.learn_one(x, y)
    frame = pd.DataFrame([x for x, _ in rows], index=range(100, 112))
    river.learn_many(frame, pd.Series([y for _, y in rows]))
    many = river.predict_proba_many(frame)
    assert many.index.tolist() == frame.index.tolist()
    for (x, _), (_, row) in zip(rows, many.iterrows(), strict=True):
        assert row.to_dict() == pytest.approx(alone.predict_proba_one(x), rel=1e-5)
    assert river.predict_many(frame).tolist() == [alone.predict_one(x) for x, _ in rows]


def test_no_label_gives_a_table_without_columns(river: AnytimeRiverClassifier) -> None:
    frame = pd.DataFrame([x for x, _ in stream(2)])
    assert river.predict_proba_many(frame).shape == (2, 0)


def test_a_missing_image_is_named(river: AnytimeRiverClassifier) -> None:
    with pytest.raises(ImageError, match="no image under 'image', only weight, height"):
        river.learn_one({"weight": 1.0, "height": 2.0}, "cat")
    with pytest.raises(ImageError, match="only weight"):
        river.learn_many(pd.DataFrame({"weight": [1.0]}), pd.Series(["cat"]))
    assert len(river.classifier) == 0


def test_a_memory_outlives_its_model(model: Path, tmp_path: Path) -> None:
    rows = stream(6)
    first = AnytimeRiverClassifier(str(model), memory=str(tmp_path / "memory"), settings=QUICK)
    for x, y in rows:
        first.learn_one(x, y)
    expected = first.predict_proba_one(rows[0][0])
    again = first.clone()
    first.close()
    assert again.predict_proba_one(rows[0][0]) == expected
    again.close()


def test_a_pickle_carries_what_was_learned(river: AnytimeRiverClassifier) -> None:
    rows = stream(6)
    for x, y in rows:
        river.learn_one(x, y)
    copy = pickle.loads(pickle.dumps(river))
    assert copy.predict_proba_one(rows[0][0]) == river.predict_proba_one(rows[0][0])


def test_labels_learned_before_an_error_come_back_as_the_stream_has_them(
    river: AnytimeRiverClassifier,
) -> None:
    pictures, _ = images(2)
    frame = pd.DataFrame({"image": [*pictures, b"no image"]})
    with pytest.raises(ImageError):
        river.learn_many(frame, pd.Series([7, 8, 9]))
    assert set(river.predict_proba_one({"image": pictures[0]})) == {7, 8}
