"""The part of a classifier that predicts: images to tokens, scores and predictions."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, Literal, NamedTuple, TypeAlias, cast, overload

import numpy as np
import PIL.Image
import torch
from numpy.typing import NDArray
from torch import Tensor

from anytimecl.acceleration import DeviceStreams
from anytimecl.backbone import Backbone
from anytimecl.blend import Opinions, blend
from anytimecl.errors import ImageError, LabelError, ModelError, StoreError
from anytimecl.images import ImageSource, images_given, load_given, load_image
from anytimecl.journaled import JournaledTrainer
from anytimecl.labels import askable, clean_label, clean_labels
from anytimecl.lock import TurnLock
from anytimecl.memory import Store
from anytimecl.prediction import THRESHOLD, Prediction, predictions
from anytimecl.settings import Settings

OneImage: TypeAlias = (
    "str | os.PathLike[str] | bytes | bytearray | memoryview | IO[bytes]"
    " | PIL.Image.Image | Mapping[str, Any]"
)
KEPT_BYTES = 1 << 28  # largest set of label vectors that is cached between calls


class AskedLabels(NamedTuple):
    """Candidate labels of a call, as given and normalised, with their embeddings [label, dim]."""

    given: tuple[str, ...]
    labels: list[str]
    vectors: Tensor


def digest_of(tokens: Tensor) -> int:
    """Digest of an image's tokens [token, width], to recognise the image."""
    data = tokens.detach().half().cpu().contiguous().numpy().tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big", signed=True)


class Predicting:
    """Predicts with a trainer's model, while other threads learn."""

    backbone: Backbone
    memory: Store
    settings: Settings
    _trainer: JournaledTrainer
    _lock: TurnLock
    _streams: DeviceStreams
    _last_asked: AskedLabels | None

    @property
    def labels(self) -> list[str]:
        """Every label with a stored example, in order of first appearance."""
        return list(self.memory.labels())

    @overload
    def predict(  # type: ignore[overload-overlap]  # a text is one path, not many
        self,
        images: OneImage,
        labels: Iterable[str] | None = None,
        *,
        threshold: float = THRESHOLD,
        errors: Literal["raise"] = "raise",
    ) -> Prediction: ...

    @overload
    def predict(  # type: ignore[overload-overlap]  # one image or many, by its shape
        self,
        images: NDArray[Any] | Tensor,
        labels: Iterable[str] | None = None,
        *,
        threshold: float = THRESHOLD,
        errors: Literal["raise"] = "raise",
    ) -> Prediction | list[Prediction]: ...

    @overload
    def predict(
        self,
        images: Iterable[ImageSource],
        labels: Iterable[str] | None = None,
        *,
        threshold: float = THRESHOLD,
        errors: Literal["raise"] = "raise",
    ) -> list[Prediction]: ...

    @overload
    def predict(
        self,
        images: Iterable[ImageSource],
        labels: Iterable[str] | None = None,
        *,
        threshold: float = THRESHOLD,
        errors: Literal["return"],
    ) -> list[Prediction | ImageError]: ...

    def predict(
        self,
        images: Any,
        labels: Iterable[str] | None = None,
        *,
        threshold: float = THRESHOLD,
        errors: Literal["raise", "return"] = "raise",
    ) -> Prediction | list[Prediction] | list[Prediction | ImageError]:
        """Predict the label of one image, or of many.

        Parameters
        ----------
        images
            An image (see `images.load_image`), or many: a list, a generator, an array of paths, or
            an array or tensor [image, height, width, channel] of uint8.
        labels
            Candidate labels; by default every label learned so far.
        threshold
            An image whose probability of "none of these" is above it gets that label.
        errors
            Whether an unreadable image among many raises its error, or its error takes the place
            of its prediction in the list.

        Returns
        -------
        A `Prediction` for one image, a list of them for many.

        Raises
        ------
        ImageError
            An image cannot be read.
        LabelError
            There are no candidate labels, or one of them is invalid.
        ValueError
            `errors` is neither "raise" nor "return".
        """
        if errors not in ("raise", "return"):
            raise ValueError(f'errors is "raise" or "return", not {errors!r}.')
        asked = self._asked(labels)
        loaded, many = load_given(images, keep_errors=errors == "return")
        good = [image for image in loaded if not isinstance(image, ImageError)]
        with self._streams.predicting():
            found: list[Any] = self._answers(self._encode(good), asked, threshold) if good else []
        for place, each in enumerate(loaded):
            if isinstance(each, ImageError):
                found.insert(place, each)
        return found if many else cast("Prediction", found[0])

    def predict_tokens(
        self, tokens: Tensor, labels: Sequence[str] | None = None, *, threshold: float = THRESHOLD
    ) -> list[Prediction]:
        """`predict` for images that `encode` has already turned into tokens.

        Parameters
        ----------
        tokens
            [image, token, width], from `encode`.
        labels
            Candidate labels; by default every label learned so far.
        threshold
            An image whose probability of "none of these" is above it gets that label.

        Returns
        -------
        list of Prediction
            One for each image.

        Raises
        ------
        LabelError
            There are no candidate labels, or one of them is invalid.
        """
        asked = self._asked(labels)
        self._check_tokens(tokens)
        with self._streams.predicting():
            return self._answers(tokens, asked, threshold)

    def opinions(self, tokens: Tensor, labels: Sequence[str]) -> Opinions:
        """Scores of each expert for encoded images, before they are combined.

        Parameters
        ----------
        tokens
            [image, token, width], from `encode`.
        labels
            Candidate labels.

        Returns
        -------
        Opinions
            Probabilities and scores [image, label] by expert.

        Raises
        ------
        LabelError
            One of them is no label.
        """
        asked = self._asked(labels)
        self._check_tokens(tokens)
        with self._streams.predicting():
            return self._opinions(tokens, asked)

    def predict_proba(
        self, images: OneImage | Iterable[ImageSource], labels: Iterable[str] | None = None
    ) -> NDArray[np.float32]:
        """Probabilities in the order of `labels`: [label], or [image, label] for many.

        A label that is given twice has two columns. They sum to one if every label was learned, or
        none was; see `Prediction.probabilities`.

        Parameters
        ----------
        images
            One image, or many, as `predict` takes them.
        labels
            Candidate labels; by default every label learned so far.

        Returns
        -------
        numpy.ndarray
            [label] for one image, [image, label] for many.

        Raises
        ------
        ImageError
            The image cannot be read.
        LabelError
            There are no candidate labels, or one of them is invalid.
        """
        given, many = images_given(images)
        asked = self._asked(labels)
        with self._streams.predicting():
            opinions = self._opinions(self.encode(given), asked)
            values: NDArray[np.float32] = blend(self.settings.blend, opinions).cpu().numpy()
        if len(asked.given) != len(asked.labels):
            place = {label: at for at, label in enumerate(asked.labels)}
            values = values[:, [place[clean_label(label)] for label in asked.given]]
        return values if many else values[0]

    def encode(self, images: Sequence[ImageSource]) -> Tensor:
        """Tokens [image, token, width] from the frozen trunk: the slow part, without a lock.

        Parameters
        ----------
        images
            Any number.

        Returns
        -------
        torch.Tensor
            [image, token, width].

        Raises
        ------
        ImageError
            An image cannot be read.
        """
        return self._encode([load_image(image) for image in images_given(images)[0]])

    def _encode(self, loaded: Sequence[PIL.Image.Image]) -> Tensor:
        with self._streams.encoding():
            tokens = self.backbone.encode(loaded)
        if tokens.is_cuda:
            tokens.record_stream(torch.cuda.current_stream(tokens.device))  # it is read there
        return tokens

    def _check_tokens(self, tokens: Tensor) -> None:
        shape = [self.backbone.spec.tokens, self.backbone.spec.tail.width]
        given = list(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
        if given[1:] != shape:
            told = f"Tokens are a tensor [image, {shape[0]}, {shape[1]}], as `encode` gives them"
            raise ModelError(f"{told}, not {given}.")

    def _asked(self, labels: Iterable[str] | None) -> AskedLabels:
        """The candidate labels; the last list is cached, since a long one is often repeated."""
        if labels is None:
            given = tuple(self.labels)
            if not given:
                raise LabelError("Nothing is learned yet: say which labels to choose from.")
        else:
            listed = isinstance(labels, Iterable) and getattr(labels, "ndim", 1) == 1
            texts = isinstance(labels, str | bytes) or not listed
            given = tuple(clean_labels(labels) if texts else labels)  # which says what is wrong
        asked = self._last_asked
        if asked is None or asked.given != given:
            cleaned = clean_labels(given) if labels is None else askable(given)
            asked = AskedLabels(given, cleaned, self._trainer.embed(cleaned))
            self._last_asked = asked if asked.vectors.nbytes <= KEPT_BYTES else None
        if labels is not None:  # also if they are cached: one may have been renamed since
            self._check_taught(asked.labels)
        return asked

    def _check_taught(self, labels: Sequence[str]) -> None:
        """Raise LabelError for unseen labels of an image-only model, which knows no texts."""
        spec = self.backbone.spec
        if spec.names:
            return
        known = self._trainer.rows
        if unknown := [label for label in labels if label not in known]:
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            raise LabelError(
                f"{spec.name} knows images only, so it can tell no label that it was not taught: "
                f"{', '.join(map(repr, unknown[:3]))}{more}. Teach an image of each, leave them "
                "out, or use a model with a text side."
            )

    def _answers(self, tokens: Tensor, asked: AskedLabels, threshold: float) -> list[Prediction]:
        opinions = self._opinions(tokens, asked)
        return predictions(asked.labels, opinions, self.settings.blend, threshold)

    @torch.no_grad()
    def _opinions(self, tokens: Tensor, asked: AskedLabels) -> Opinions:
        """Scores of every expert."""
        with self._lock.reading():
            trainer = self._trainer
            learner = self._streams.still(trainer.learner, self._lock.turn)
            opinions = trainer.model.opinions(tokens, asked.labels, asked.vectors, learner)
        return self._known_again(tokens, asked.labels, opinions)

    def _known_again(self, tokens: Tensor, labels: Sequence[str], opinions: Opinions) -> Opinions:
        """Recognise learned images by their digest: k = 1 for the stored label, if a candidate."""
        if opinions.copy is None or opinions.copy_of is None:
            return opinions
        copy, copy_of, place = opinions.copy.clone(), opinions.copy_of.clone(), None
        for i, own in enumerate(tokens):
            try:
                found = self.memory.find_content(digest_of(own))
            except StoreError:  # closed, or damaged: predict without it
                break
            if found is None:
                continue
            place = place or {label: at for at, label in enumerate(labels)}
            if found[1] in place:
                copy[i], copy_of[i] = 1.0, place[found[1]]
        return dataclasses.replace(opinions, copy=copy, copy_of=copy_of)
