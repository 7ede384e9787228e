"""What a recipe needs, computed before anything is encoded or learned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anytimecl.errors import ImageError
from anytimecl_lab.examples import whole_size
from anytimecl_lab.recipe import Recipe
from anytimecl_lab.studio import Studio
from anytimecl_lab.table import NONE, Table


def counted(studio: Studio) -> Table:
    """Images and labels of each data set, and their size on disk and device."""
    rows = []
    total = [0, 0]
    for name, own in studio.sets.items():
        train = studio.train.get(name)
        sizes = [len(train.chosen) if train else 0, len(studio.test[name].chosen)]
        total = [sum(pair) for pair in zip(total, sizes, strict=True)]
        wanted = studio.recipe.counts.get(name)
        rows.append([name, *map(_number, sizes), str(len(own.names)), _number(wanted or 0)])
    rows.append(["in all", *map(_number, total), "", _number(sum(_wanted(studio.recipe).values()))])
    headings = ["set", "to learn", "to ask about", "labels", "to learn, as published"]
    return Table(f"{studio.recipe.name}: what it will need", headings, rows, _room(studio, total))


def check_counts(studio: Studio) -> None:
    """Raise if a data set differs from the published one."""
    if wrong := list(_wrong(studio)):
        raise ImageError(
            f"The recipe {studio.recipe.name} asks for the published sets, and these differ: "
            f"{'; '.join(wrong)}. Put the published set into the data folder, laid out as "
            "<split>/<class>/<file>, or choose another group."
        )


def _wrong(studio: Studio) -> Iterator[str]:
    if studio.recipe.per_class is not None or studio.validation:
        return  # restricted on purpose
    for name, wanted in _wanted(studio.recipe).items():
        there = len(studio.train[name].chosen) if name in studio.train else 0
        if there != wanted:
            yield f"{name} has {there:,} training images, not {wanted:,}"


def _wanted(recipe: Recipe) -> dict[str, int]:
    return {name: count for name, count in recipe.counts.items() if name in recipe.tasks}


def _room(studio: Studio, total: Sequence[int]) -> str:
    spec = studio.backbone.spec
    size = whole_size(sum(total), spec) / 1e9
    return (
        f"Model: {spec.name}, {spec.tokens} tokens of width {spec.tail.width}. Tokens on disk: "
        f"{size:.1f} GB, in half precision, and as much on the device, or less "
        "where it has less room: then they are streamed. "
        f"Runs: {len(studio.recipe.methods)} methods, {len(studio.recipe.seeds)} seeds."
    )


def _number(count: int) -> str:
    return f"{count:,}" if count else NONE
