"""What a classifier, a tree of them, a cluster and a client of the service have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Protocol, overload


class LearnedExample(Protocol):
    """What comes back of a lesson."""

    @property
    def id(self) -> int:
        """Number of the example."""
        ...


class Classified(Protocol):
    """What is said of one image."""

    @property
    def label(self) -> str:
        """The likeliest, or "none of these"."""
        ...

    @property
    def probability(self) -> float:
        """Of that."""
        ...

    @property
    def probabilities(self) -> Mapping[str, float]:
        """By label."""
        ...


class Classifier(Protocol):
    """Code that is written for it works with all of them.

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
            What it shows.
        candidates
            Candidate labels of the example, its own included: the classes of its loss.
        key
            The same key teaches once, so that a retry is harmless.

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
        A `Classified` for one image; for a list one of each, or what is wrong with it.
        """
        ...

    def forget(self, *, label: str) -> int:
        """Remove every example of a label, for good.

        Parameters
        ----------
        label
            Whose examples are forgotten.

        Returns
        -------
        int
            How many there were.
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
            Of a client, where the job stands.
        """
        ...

    def stats(self) -> Mapping[str, Any]:
        """In numbers.

        Returns
        -------
        dict
            Of a classifier by label; of the service, as it tells them.
        """
        ...
