"""The interface shared by classifiers, trees of them, clusters and clients of the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Protocol, overload


class LearnedExample(Protocol):
    """Result of `learn_one`."""

    @property
    def id(self) -> int:
        """Number of the example."""
        ...


class Classified(Protocol):
    """Result of `predict` for one image."""

    @property
    def label(self) -> str:
        """The most probable label, or "none of these"."""
        ...

    @property
    def probability(self) -> float:
        """Probability of `label`."""
        ...

    @property
    def probabilities(self) -> Mapping[str, float]:
        """Probabilities by label."""
        ...


class Classifier(Protocol):
    """Protocol of a classifier, local or remote.

    Examples
    --------
    >>> def teach(classifier: Classifier, file: str, label: str) -> bool:
    ...     before = classifier.predict(file, [label, "something else"])
    ...     classifier.learn_one(file, label)
    ...     return before.label == label
    """

    def learn_one(
        self,
        image: str | PathLike[str] | bytes,
        label: str,
        *,
        candidates: Sequence[str] | None = None,
        key: str | None = None,
    ) -> LearnedExample:
        """Learn one labelled image; it is durable when this returns.

        Parameters
        ----------
        image
            A file, or its bytes.
        label
            Its label.
        candidates
            Candidate labels of the example, its own included: the classes of its loss.
        key
            Idempotency key: repeating a call with its key learns nothing more.

        Returns
        -------
        LearnedExample
            With the number of the example.
        """
        ...

    @overload
    def predict(
        self, images: str | PathLike[str] | bytes, labels: Sequence[str] | None = None
    ) -> Classified: ...

    @overload
    def predict(
        self,
        images: list[str | PathLike[str] | bytes],
        labels: Sequence[str] | None = None,
    ) -> Sequence[object]: ...

    def predict(self, images: Any, labels: Sequence[str] | None = None) -> Any:
        """Predict the label of one image, or of each in a list.

        Parameters
        ----------
        images
            A file or its bytes, or a list of them.
        labels
            Candidate labels; by default every label learned so far.

        Returns
        -------
        A `Classified` for one image; for a list, one or an error for each.
        """
        ...

    def forget(self, *, label: str) -> int:
        """Delete every example of a label, permanently.

        Parameters
        ----------
        label
            Label whose examples are forgotten.

        Returns
        -------
        int
            Number of deleted examples.
        """
        ...

    def consolidate(self, epochs: int = ...) -> object:
        """Train offline over all stored examples.

        Parameters
        ----------
        epochs
            Number of passes over all examples.

        Returns
        -------
        object
            For a client, the state of the job.
        """
        ...

    def stats(self) -> Mapping[str, Any]:
        """Statistics.

        Returns
        -------
        dict
            By label for a classifier; those of the service for a client.
        """
        ...
