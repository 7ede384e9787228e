"""Errors for people: what was wrong, with which input, and what to do about it."""

from __future__ import annotations


class AnytimeError(Exception):
    """Base of every error that the library raises on purpose; its text is meant to be shown."""


class ImageError(AnytimeError, ValueError):
    """An image could not be read, or is not one that can be trusted."""


class LabelError(AnytimeError, ValueError):
    """A label, or a set of labels, cannot be used."""


class ModelError(AnytimeError, RuntimeError):
    """A model is missing, broken, foreign, or asked for something it cannot do."""


class StoreError(AnytimeError, RuntimeError):
    """The memory on disk is locked, damaged, full, or belongs to another model."""


class CheckpointError(AnytimeError, RuntimeError):
    """A checkpoint is missing, damaged, foreign, or of another version."""
