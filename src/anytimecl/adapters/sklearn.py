"""Adapter for scikit-learn: an image classifier for pipelines and cross-validation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import InputTags, Tags, assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from anytimecl.adapters._holder import Holder, label_text
from anytimecl.errors import ImageError, StoreError
from anytimecl.settings import Settings

AT_ONCE = 64  # images predicted together: bounds the tokens in RAM; more is not faster


class AnytimeSklearnClassifier(Holder, ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Image classifier; `partial_fit` may add labels at any time.

    `X` is a list or array of images: paths, bytes, PIL images, arrays, or one array [image, height,
    width] or [image, height, width, channel] of uint8. `y` holds labels: texts, or numbers whose
    digits are the text. With a `memory` folder everything learned is durable, and a later estimator
    with the same folder continues from it.

    >>> from sklearn.base import clone
    >>> estimator = AnytimeSklearnClassifier(memory="shelf")
    >>> clone(estimator)
    AnytimeSklearnClassifier(memory='shelf')
    >>> estimator.fit(np.zeros((2, 64)), ["cat", "dog"])
    Traceback (most recent call last):
    anytimecl.errors.ImageError: X is a table of numbers of shape (2, 64), and a row is no image.
    If each is a picture, say its shape: X.reshape(len(X), height, width).astype("uint8").
    """

    def __init__(
        self,
        model: str | Path = "embedded",
        memory: str | Path | None = None,
        settings: Settings | None = None,
        device: str = "cpu",
    ) -> None:
        self.model = model
        self.memory = memory
        self.settings = settings
        self.device = device

    def fit(self, X: Any, y: Any) -> Self:  # noqa: N803
        """Learn from scratch, in one pass; `classifier.consolidate()` trains longer.

        Raises StoreError if the memory in `memory` has examples, which would be lost.
        """
        images, targets = self._images(X), _targets(y)
        _check_lengths(images, targets)
        if self._remembers() and len(self.classifier):
            raise StoreError(
                f"fit starts from nothing, but the memory in {self.memory} holds "
                f"{len(self.classifier)} examples. Go on with partial_fit, or name a new folder."
            )
        if self.memory is None:
            self._open()
        self.classes_ = np.unique(targets)
        return self._learn(images, targets)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:  # noqa: N803
        """Continue learning. Labels need not be declared; `classes` can be predicted at once."""
        images, targets = self._images(X), _targets(y)
        _check_lengths(images, targets)
        declared = [] if classes is None else [_targets(classes)]
        known = [self.classes_] if self._ready() else []
        self.classes_ = np.unique(np.concatenate([*known, *declared, targets]))
        return self._learn(images, targets)

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The most probable of `classes_` for each image."""
        best = self.predict_proba(X).argmax(axis=1)
        values: NDArray[Any] = self.classes_[best]
        return values

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """Probabilities [image, class] in the order of `classes_`, normalised to sum to one."""
        self._ready()
        check_is_fitted(self)
        images = self._images(X)
        labels = [label_text(value) for value in self.classes_]
        chunks = [
            self.classifier.predict_proba(images[start : start + AT_ONCE], labels)
            for start in range(0, len(images), AT_ONCE)
        ]
        values = np.concatenate(chunks).astype(np.float64)
        scaled: NDArray[np.float64] = values / values.sum(axis=1, keepdims=True)
        return scaled

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classes_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = InputTags(
            one_d_array=True, two_d_array=False, three_d_array=True, string=True
        )
        return tags

    def _ready(self) -> bool:
        """Whether there are labels, learned by this estimator or in the memory's folder."""
        if not hasattr(self, "classes_") and self._remembers() and self.classifier.labels:
            self.classes_ = np.unique(self.classifier.labels)
        return hasattr(self, "classes_")

    def _images(self, X: Any) -> list[Any]:  # noqa: N803
        """X as a list of images."""
        return image_list(X)

    def _learn(self, images: Sequence[Any], targets: NDArray[Any]) -> Self:
        self.classifier.learn_many(
            (image, label_text(target)) for image, target in zip(images, targets, strict=True)
        )
        return self


def image_list(X: Any) -> list[Any]:  # noqa: N803
    """The images of an array, a column, or any sequence.

    >>> len(image_list(np.zeros((5, 8, 8), dtype=np.uint8))), image_list(np.array(["a.png"]))
    (5, ['a.png'])
    """
    if isinstance(X, str | bytes | Path) or not hasattr(X, "__len__"):
        raise ImageError(f"X is a list of images, not one {type(X).__name__}: write [image].")
    images: list[Any]
    if hasattr(X, "__array__") and not hasattr(X, "getbands"):  # a PIL image is an array, too
        array = np.asarray(X)
        if array.dtype.kind in "OUS":
            if array.ndim == 2 and array.shape[1] == 1:  # a table's only column
                array = array[:, 0]
            wrong = array.ndim != 1
        else:
            wrong = array.ndim not in (3, 4)
        if wrong:
            raise ImageError(
                f"X is a table of {'objects' if array.dtype.kind in 'OUS' else 'numbers'} of shape "
                f"{array.shape}, and a row is no image. If each is a picture, say its shape: "
                'X.reshape(len(X), height, width).astype("uint8").'
            )
        images = array.tolist() if array.ndim == 1 else list(array)
    else:
        images = list(X)
    if not images:
        raise ImageError("X holds 0 images; at least one is needed.")
    return images


def _targets(y: Any) -> NDArray[Any]:
    """One label for each image; texts in their one spelling."""
    if y is None:
        raise ValueError("This estimator requires y to be passed, but the target y is None.")
    targets = column_or_1d(y, warn=True)
    assert_all_finite(targets, input_name="y")
    check_classification_targets(targets)
    texts = [label_text(value) for value in targets]  # refuses what cannot be one, before any use
    return np.array(texts) if targets.dtype.kind in "OUS" else targets


def _check_lengths(images: Sequence[Any], targets: NDArray[Any]) -> None:
    if len(images) != len(targets):
        raise ValueError(f"X holds {len(images)} images and y {len(targets)} labels.")
