"""Idempotency keys: a retry must have the same image and label."""

from __future__ import annotations

from anytimecl.errors import KeyUsedError
from anytimecl.journaled import JournaledTrainer

ALIKE = 0.999  # cosine from which images are the same: another machine may round differently


def check_same(
    trainer: JournaledTrainer,
    example: int,
    key: str,
    label: str,
    record: bytes,
    content: int | None,
) -> None:
    """Raise KeyUsedError unless image and label match; earlier labels of the example match too."""
    memory = trainer.memory
    now = memory.label(example)
    brought = label == now or memory.came_with(key, label)
    if not brought and label not in memory.history().labels_of([example], [now or ""]):
        raise KeyUsedError(
            f"The key {key!r} has taught example {example} as {now!r}, and comes again with the "
            f"label {label!r}. Use another key, or change the label: relabel({example}, ...)."
        )
    if content is not None and content == memory.digest(example):
        return
    _, images = trainer.images([example])  # none, if it is damaged
    if len(images) and float(images[0] @ trainer.image(record)) < ALIKE:
        raise KeyUsedError(
            f"The key {key!r} has taught example {example}, and comes again with another image. "
            "Use another key for it."
        )
