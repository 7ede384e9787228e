"""Exceptions; messages say what was wrong, with which input, and what to do about it."""

from __future__ import annotations


class AnytimeError(Exception):
    """Base of the library's exceptions; the message is meant for the user.

    Examples
    --------
    >>> try:
    ...     raise LabelError("A label needs a letter or a digit.")
    ... except AnytimeError as error:
    ...     print(error)
    A label needs a letter or a digit.
    """


class ImageError(AnytimeError, ValueError):
    """An image could not be read, or is not safe to decode.

    Examples
    --------
    >>> issubclass(ImageError, ValueError)
    True
    """


class LabelError(AnytimeError, ValueError):
    """A label, or a set of labels, cannot be used.

    Examples
    --------
    >>> issubclass(LabelError, ValueError)
    True
    """


class UnknownLabelError(LabelError):
    """There is no example of a label.

    Examples
    --------
    >>> issubclass(UnknownLabelError, LabelError)
    True
    """


class LabelTakenError(LabelError):
    """The new name is another label's already: merge the two instead of renaming.

    Examples
    --------
    >>> issubclass(LabelTakenError, LabelError)
    True
    """


class ModelError(AnytimeError, RuntimeError):
    """A model is missing, damaged, unknown, or lacks a capability.

    Examples
    --------
    >>> issubclass(ModelError, RuntimeError)
    True
    """


class StoreError(AnytimeError, RuntimeError):
    """The memory on disk is locked, damaged, full, or belongs to another model.

    Examples
    --------
    >>> issubclass(StoreError, RuntimeError)
    True
    """


class CheckpointError(AnytimeError, RuntimeError):
    """A checkpoint is missing, damaged, of another model or memory, or of another version.

    Examples
    --------
    >>> issubclass(CheckpointError, RuntimeError)
    True
    """


class PartError(ModelError, ValueError):
    """There is no such codec, sampler, expert, blend, backbone or store, or no such option.

    Examples
    --------
    >>> issubclass(PartError, ModelError)
    True
    """


class KeyUsedError(AnytimeError, ValueError):
    """A key was used before with another image or label.

    Examples
    --------
    >>> issubclass(KeyUsedError, ValueError)
    True
    """


def reason(error: Exception) -> str:
    """The message of an error, without the errno and path of an OSError.

    >>> reason(FileNotFoundError(2, "No such file or directory", "a.toml"))
    'No such file or directory'
    >>> reason(ValueError("Invalid value (at end of document)"))
    'Invalid value (at end of document)'
    """
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
