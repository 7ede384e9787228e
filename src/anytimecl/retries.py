"""A key stands for one example: what comes under it again must be the same."""

from __future__ import annotations

from anytimecl.errors import KeyUsedError
from anytimecl.journaled import JournaledTrainer

ALIKE = 0.999  # cosine: another machine may round an image otherwise, and it is the same still


def check_same(
    trainer: JournaledTrainer,
    example: int,
    key: str,
    label: str,
    record: bytes,
    content: int | None,
) -> None:
    """KeyUsedError unless this is the image, under a label that it has or had, of the example."""
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
