"""Open-vocabulary image classification that learns from every single labelled image, at any time.

>>> from anytimecl import AnytimeClassifier, Prediction
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anytimecl.classifier import AnytimeClassifier, LabelStats
    from anytimecl.client import AsyncClient, Client
    from anytimecl.errors import (
        AnytimeError,
        CheckpointError,
        ImageError,
        KeyUsedError,
        LabelError,
        ModelError,
        PartError,
        StoreError,
    )
    from anytimecl.labels import NONE_OF_THESE
    from anytimecl.prediction import Prediction
    from anytimecl.protocol import Classifier
    from anytimecl.settings import LearnerConfig, Settings
    from anytimecl.trainer import Learned

__version__ = "0.1.0"
__all__ = [
    "NONE_OF_THESE",
    "AnytimeClassifier",
    "AnytimeError",
    "AsyncClient",
    "CheckpointError",
    "Classifier",
    "Client",
    "ImageError",
    "KeyUsedError",
    "LabelError",
    "LabelStats",
    "Learned",
    "LearnerConfig",
    "ModelError",
    "PartError",
    "Prediction",
    "Settings",
    "StoreError",
    "__version__",
]

_HOME = {
    "classifier": ("AnytimeClassifier", "LabelStats"),
    "client": ("AsyncClient", "Client"),
    "settings": ("LearnerConfig", "Settings"),
    "trainer": ("Learned",),
    "protocol": ("Classifier",),
    "labels": ("NONE_OF_THESE",),
    "prediction": ("Prediction",),
    "errors": (
        "AnytimeError",
        "CheckpointError",
        "ImageError",
        "KeyUsedError",
        "LabelError",
        "ModelError",
        "PartError",
        "StoreError",
    ),
}


def __getattr__(name: str) -> Any:
    """Public names come when they are asked for: `import anytimecl` does not import torch."""
    from importlib import import_module

    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
