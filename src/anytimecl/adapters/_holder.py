"""Base of the adapters: a classifier that is opened lazily and pickled with the estimator.

Other libraries construct, copy, pickle and drop estimators freely, and call neither `open` nor
`close`. So a constructor only stores its arguments, the model is loaded once for all estimators,
and a classifier is closed when its estimator is garbage-collected.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
import weakref
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from anytimecl.backbone import Backbone
from anytimecl.backbone import load as load_backbone
from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import LabelError
from anytimecl.labels import clean_label
from anytimecl.memory.database import FILE
from anytimecl.settings import Settings


@lru_cache(maxsize=2)
def backbone(model: str | Path, device: str) -> Backbone:
    """The model, cached: a cross-validation constructs many estimators."""
    return load_backbone(model, device=device)


def label_text(value: Any) -> str:
    """The text of a label that another library may keep as a number.

    >>> label_text("  tabby cat"), label_text(3), label_text(3.0), label_text(True)
    ('tabby cat', '3', '3', 'True')
    """
    plain = value.item() if hasattr(value, "item") else value  # NumPy scalars
    if isinstance(plain, str):
        return clean_label(plain)
    if isinstance(plain, bool | int):
        return str(plain)
    if isinstance(plain, float) and plain.is_integer():
        return str(int(plain))
    raise LabelError(f"A label is a text, a whole number or a truth value, not {value!r}.")


class Holder:
    """Holds a classifier. Without a `memory` folder it is in RAM, and included in pickles."""

    model: str | Path
    memory: str | Path | None
    settings: Settings | None
    device: str

    @property
    def classifier(self) -> AnytimeClassifier:
        """The classifier, for everything that this interface lacks."""
        held: AnytimeClassifier | None = self.__dict__.get("_held")
        return self._open(self.__dict__.get("_packed")) if held is None else held

    def close(self) -> None:
        """Close the classifier; the next use opens it again.

        A memory in RAM is lost. An estimator that is garbage-collected is closed.
        """
        closing = self.__dict__.pop("_closing", None)
        self.__dict__.pop("_held", None)
        self.__dict__.pop("_packed", None)
        if closing is not None:
            closing()

    def _open(self, packed: bytes | None = None) -> AnytimeClassifier:
        model = backbone(self.model, self.device)
        if packed is None:
            opened = AnytimeClassifier.open(self.memory, model=model, settings=self.settings)
            closing: Callable[[], None] = opened.close
        else:
            opened, closing = _unpack(packed, model)
        self.close()  # only now, so that nothing is lost if opening fails
        self._held, self._closing = opened, weakref.finalize(self, closing)
        return opened

    def _remembers(self) -> bool:
        """Whether the folder contains a memory."""
        return self.memory is not None and (Path(self.memory) / FILE).exists()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__() or {})  # type: ignore[call-overload]
        state.pop("_closing", None)
        held = state.pop("_held", None)
        if held is not None and self.memory is None:
            state["_packed"] = _pack(held)
        return state


def _pack(classifier: AnytimeClassifier) -> bytes:
    """Serialise, memory included; the same state gives the same bytes."""
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as made, tarfile.open(fileobj=packed, mode="w") as tar:
        folder = Path(made, "saved")
        classifier.save_pretrained(folder)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
                entry.size = path.stat().st_size
                with path.open("rb") as file:
                    tar.addfile(entry, file)
    return packed.getvalue()


def _unpack(packed: bytes, model: Backbone) -> tuple[AnytimeClassifier, Callable[[], None]]:
    """The classifier in a temporary folder, and a function that closes and deletes it."""
    folder = Path(tempfile.mkdtemp(prefix="anytimecl-"))
    try:
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            tar.extractall(folder, filter="data")
        opened = AnytimeClassifier.from_pretrained(folder, model=model)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise

    def close() -> None:
        try:
            opened.close()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return opened, close
