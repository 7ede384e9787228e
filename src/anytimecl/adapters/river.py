"""Adapter for river: an online image classifier, for streams and progressive validation."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from river import base

from anytimecl.adapters._holder import Holder, label_text
from anytimecl.errors import ImageError
from anytimecl.settings import Settings

if TYPE_CHECKING:
    import pandas as pd
    from river.base.typing import ClfTarget


class AnytimeRiverClassifier(Holder, base.MiniBatchClassifier):
    """Image classifier for streams; each `x` has an image under `image_key`.

    The image is a path, bytes, a PIL image or an array; other features are ignored. Labels need not
    be declared; those in `labels` can be predicted before any is learned. With a `memory` folder
    everything learned is durable, and a later model with the same folder continues from it.

    >>> model = AnytimeRiverClassifier(image_key="photo")
    >>> model.clone().image_key
    'photo'
    >>> model.learn_one({"weight": 2.5}, "cat")
    Traceback (most recent call last):
    anytimecl.errors.ImageError: There is no image under 'photo', only weight. Set image_key.
    """

    def __init__(
        self,
        model: str | Path = "embedded",
        memory: str | Path | None = None,
        labels: Sequence[str] | None = None,
        image_key: str = "image",
        settings: Settings | None = None,
        device: str = "cpu",
    ) -> None:
        self.model = model
        self.memory = memory
        self.labels = labels
        self.image_key = image_key
        self.settings = settings
        self.device = device
        self._values: dict[str, ClfTarget] = {}  # label text -> label in the stream

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: dict[Hashable, Any], y: ClfTarget) -> None:
        """Learn one labelled image; the label may be new."""
        image, text = self._image(x), label_text(y)
        self.classifier.learn_one(image, text)
        self._values[text] = y

    def predict_proba_one(self, x: dict[Hashable, Any], **kwargs: Any) -> dict[ClfTarget, float]:
        """Probabilities by label; empty if there are no labels yet."""
        image, texts = self._image(x), self._texts()
        if not texts:
            return {}
        return dict(self._shares([image], texts)[0])

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:  # noqa: N803
        """Learn the rows one by one; the next image is encoded while one is learned."""
        texts = {label_text(value): value for value in y}
        images = self._column(X)
        self._values |= texts  # first: some are learned even if an image cannot be read
        self.classifier.learn_many(
            (image, label_text(value)) for image, value in zip(images, y, strict=True)
        )

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:  # noqa: N803
        """Probabilities, with a column for each label."""
        import pandas as pd

        images, texts = self._column(X), self._texts()
        rows = self._shares(images, texts) if texts and images else []
        return pd.DataFrame(map(dict, rows), index=X.index)

    def _texts(self) -> list[str]:
        """Candidate labels: learned ones, and those in `labels`."""
        named = map(label_text, self.labels or ())
        return list(dict.fromkeys([*self.classifier.labels, *named]))

    def _shares(self, images: list[Any], texts: list[str]) -> list[list[tuple[ClfTarget, float]]]:
        """Probabilities for each image, normalised to sum to one."""
        values = self.classifier.predict_proba(images, texts).astype(float)
        values /= values.sum(axis=1, keepdims=True)
        names = [self._values.get(text, text) for text in texts]
        return [list(zip(names, row, strict=True)) for row in values.tolist()]

    def _image(self, x: dict[Hashable, Any]) -> Any:
        if self.image_key not in x:
            raise ImageError(self._missing(x))
        return x[self.image_key]

    def _column(self, X: pd.DataFrame) -> list[Any]:  # noqa: N803
        if self.image_key not in X.columns:
            raise ImageError(self._missing(X.columns))
        images: list[Any] = X[self.image_key].tolist()
        return images

    def _missing(self, names: Iterable[Hashable]) -> str:
        found = ", ".join(map(str, names)) or "nothing"
        return f"There is no image under {self.image_key!r}, only {found}. Set image_key."
