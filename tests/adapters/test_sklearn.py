"""scikit-learn's own checks where they apply, and images in the ways it passes them on."""

from __future__ import annotations

import pickle
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import InputTags, Tags
from sklearn.utils.estimator_checks import parametrize_with_checks
from tests.adapters.pictures import QUICK, images

from anytimecl import AnytimeClassifier, ImageError, LabelError, StoreError
from anytimecl.adapters._holder import _unpack, backbone
from anytimecl.adapters.sklearn import AnytimeSklearnClassifier, image_list

TABLE = "X holds images, and nobody counts or names the features of an image"
EXPECTED = {
    "check_n_features_in": TABLE,
    "check_n_features_in_after_fitting": TABLE,
    "check_fit2d_predict1d": "asks for advice on reshaping a table; ours is on reshaping images",
    "check_estimators_empty_data_messages": "no images are refused; 'no features' has no meaning",
    "check_complex_data": "a pixel is no complex number; images.py refuses such arrays by its own",
    "check_estimators_nan_inf": "uint8 has neither; a float file's NaN counts as black",
    "check_estimator_sparse_tag": "an image is dense",
    "check_estimator_sparse_array": "an image is dense",
    "check_estimator_sparse_matrix": "an image is dense",
}
# These ask for seven digits, which float32 on other batches does not always give.
TO_SEVEN_DIGITS = {"check_methods_sample_order_invariance", "check_methods_subset_invariance"}


class Drawn(AnytimeSklearnClassifier):
    """Rows of numbers drawn as pictures, since scikit-learn's checks know nothing but tables."""

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        self._width = None
        return super().fit(X, y)

    def _images(self, X: Any) -> list[Any]:  # noqa: N803
        rows = np.asarray(X)
        if rows.ndim != 2:
            return super()._images(rows)
        if getattr(self, "_width", None) not in (None, rows.shape[1]):
            raise ValueError(f"Rows have {rows.shape[1]} numbers, and had {self._width}.")
        self._width = rows.shape[1]
        grey = np.clip(np.rint(128 + 24 * rows.astype(float)), 0, 255).astype(np.uint8)
        return super()._images(np.repeat(grey[:, None, :], rows.shape[1], axis=1))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = InputTags()
        return tags


@parametrize_with_checks([Drawn()], expected_failed_checks=lambda estimator: EXPECTED)
def test_checks_of_sklearn(estimator: Drawn, check: Callable[..., None], model: Path) -> None:
    try:
        check(estimator.set_params(model=str(model), settings=QUICK))
    except AssertionError as error:
        if getattr(check, "func", check).__name__ in TO_SEVEN_DIGITS:
            pytest.xfail(f"float32: {error}")
        raise


@pytest.fixture
def estimator(model: Path) -> AnytimeSklearnClassifier:
    return AnytimeSklearnClassifier(model=str(model), settings=QUICK)


def test_partial_fit_meets_new_labels_and_old_columns_keep_their_values(
    estimator: AnytimeSklearnClassifier,
) -> None:
    pictures, labels = images(8)
    estimator.partial_fit(pictures[:4], labels[:4])
    assert estimator.classes_.tolist() == ["cat", "dog"]
    estimator.partial_fit(pictures[4:5], ["  tabby \t cat"])
    assert estimator.classes_.tolist() == ["cat", "dog", "tabby cat"]
    found = estimator.predict_proba(pictures)
    expected = estimator.classifier.predict_proba(list(pictures), ["cat", "dog", "tabby cat"])
    np.testing.assert_allclose(found, expected / expected.sum(1, keepdims=True), rtol=1e-6)


def test_declared_classes_can_be_predicted_before_they_are_learned(
    estimator: AnytimeSklearnClassifier,
) -> None:
    pictures, _ = images(2)
    estimator.partial_fit(pictures, ["cat", "cat"], classes=["cat", "zebra"])
    assert estimator.predict_proba(pictures).shape == (2, 2)
    assert estimator.classifier.labels == ["cat"]


def test_numbers_come_back_as_numbers(estimator: AnytimeSklearnClassifier) -> None:
    pictures, _ = images(4)
    estimator.partial_fit(pictures, [3, 11, 3, 11]).partial_fit(pictures[:1], [7])
    assert estimator.classes_.tolist() == [3, 7, 11]
    assert estimator.predict(pictures).dtype.kind == "i"
    assert estimator.classifier.labels == ["3", "11", "7"]


def test_cross_validation_of_a_pipeline_on_paths(
    estimator: AnytimeSklearnClassifier, tmp_path: Path
) -> None:
    pictures, labels = images(40)
    paths = []
    for number, picture in enumerate(pictures):
        paths.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(picture).save(paths[-1])
    pipeline = make_pipeline(FunctionTransformer(lambda some: [Path(path) for path in some]))
    pipeline.steps.append(("classify", estimator))
    scores = cross_val_score(pipeline, paths, labels, cv=2, error_score="raise")
    assert scores.shape == (2,)
    assert scores.min() > 0.8  # the two sorts are easy to tell apart


@pytest.mark.parametrize(
    "wrap",
    [
        lambda pictures: pictures,
        list,
        lambda pictures: [Image.fromarray(picture) for picture in pictures],
        lambda pictures: np.array([{"image": p} for p in pictures], dtype=object),
        lambda pictures: np.array([[{"image": p}] for p in pictures], dtype=object),
    ],
    ids=["array", "list of arrays", "PIL", "objects", "a table's only column"],
)
def test_images_come_in_many_ways(
    estimator: AnytimeSklearnClassifier, wrap: Callable[[NDArray[np.uint8]], Any]
) -> None:
    pictures, labels = images(4)
    estimator.fit(pictures, labels)
    expected = estimator.predict_proba(pictures)
    np.testing.assert_array_equal(estimator.predict_proba(wrap(pictures)), expected)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("a.png", "write \\[image\\]"),
        (Path("a.png"), "write \\[image\\]"),
        (Image.new("RGB", (4, 4)), "write \\[image\\]"),
        (np.zeros((3, 64)), "a row is no image"),
        (np.array([["a.png", "b.png"]]), "a row is no image"),
        ([], "0 images"),
        (3, "write \\[image\\]"),
    ],
)
def test_what_is_no_list_of_images_is_refused(wrong: Any, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        image_list(wrong)


@pytest.mark.parametrize("wrong", [["cat", " "], [None, None], ["cat", "\x00"]])
def test_a_label_that_cannot_be_one_is_refused_before_anything_is_learned(
    estimator: AnytimeSklearnClassifier, wrong: list[Any]
) -> None:
    pictures, labels = images(2)
    estimator.fit(pictures, labels)
    with pytest.raises((LabelError, ValueError)):
        estimator.partial_fit(pictures, wrong)
    assert len(estimator.classifier) == 2


def test_nothing_learned_is_not_fitted(estimator: AnytimeSklearnClassifier) -> None:
    with pytest.raises(NotFittedError):
        estimator.predict(images(1)[0])


def test_a_memory_outlives_its_estimator(model: Path, tmp_path: Path) -> None:
    pictures, labels = images(6)
    first = AnytimeSklearnClassifier(str(model), memory=str(tmp_path / "memory"), settings=QUICK)
    expected = first.fit(pictures, labels).predict_proba(pictures)
    again = clone(first)
    del first  # closes the memory, and so lets go of its folder
    np.testing.assert_array_equal(again.predict_proba(pictures), expected)
    assert again.classes_.tolist() == ["cat", "dog"]
    again.partial_fit(pictures[:1], ["bird"])  # which it is from now on
    assert again.classes_.tolist() == ["bird", "cat", "dog"]
    with pytest.raises(StoreError, match="holds 6 examples"):
        again.fit(pictures, labels)
    again.close()


def test_fit_starts_from_nothing(estimator: AnytimeSklearnClassifier) -> None:
    pictures, labels = images(6)
    first = estimator.fit(pictures, labels).predict_proba(pictures)
    estimator.partial_fit(pictures, ["bird"] * 6)
    np.testing.assert_array_equal(estimator.fit(pictures, labels).predict_proba(pictures), first)


def test_a_pickle_carries_what_was_learned_and_both_go_their_own_ways(
    estimator: AnytimeSklearnClassifier,
) -> None:
    pictures, labels = images(6)
    estimator.fit(pictures, labels)
    copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(estimator))))
    np.testing.assert_array_equal(copy.predict_proba(pictures), estimator.predict_proba(pictures))
    copy.partial_fit(pictures[:2], ["bird", "cat"])
    estimator.partial_fit(pictures[:2], ["bird", "cat"])
    np.testing.assert_array_equal(copy.predict_proba(pictures), estimator.predict_proba(pictures))
    folder = copy.classifier.memory.path.parent
    copy.close()
    assert not folder.exists()


def test_it_learns_as_the_classifier_itself_does(
    estimator: AnytimeSklearnClassifier, model: Path
) -> None:
    pictures, labels = images(10)
    with AnytimeClassifier.open(model=model, settings=QUICK) as plain:
        plain.learn_many(zip(pictures, labels, strict=True))
        expected = plain.predict_proba(list(pictures), ["cat", "dog"])
    found = estimator.fit(pictures, labels).predict_proba(pictures)
    np.testing.assert_allclose(found, expected / expected.sum(1, keepdims=True), rtol=1e-6)


def test_a_pickle_that_cannot_be_read_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(tarfile.ReadError):
        _unpack(b"no archive", backbone(str(model), "cpu"))
    assert not list(tmp_path.iterdir())
