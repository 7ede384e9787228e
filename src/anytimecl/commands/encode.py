"""`anytimecl encode`: images to records, on many cores, GPUs or machines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anytimecl.commands import _common, _screen
from anytimecl.errors import AnytimeError, LabelError, reason

if TYPE_CHECKING:
    from anytimecl.backbone import Backbone
    from anytimecl.scale.encoding.blocks import Done
    from anytimecl.scale.encoding.finishing import Summary
    from anytimecl.scale.encoding.job import EncodingJob


def register(main: typer.Typer) -> None:
    """Add `anytimecl encode` to the program."""
    main.command("encode")(encode)


def encode(
    source: Annotated[
        str,
        typer.Argument(
            help="Folder or zip of <class>/<file>, Parquet files, WebDataset tars, or an address "
            "of such that fsspec knows (s3://bucket/photos)."
        ),
    ],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder for the records.")],
    model: _common.ModelOption = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of folders. Unless given: train, where there is one."),
    ] = None,
    codec: Annotated[str | None, typer.Option(metavar="C", help="How examples are stored.")] = None,
    sampler: Annotated[
        str | None, typer.Option(metavar="S", help="Which examples the memory will practise with.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of the memory, and of --shuffle.")
    ] = None,
    shuffle: Annotated[
        bool | None,
        typer.Option(
            help="In random order, as `learn` does. Parquet files and tars are read as they are."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the first N images.")
    ] = None,
    image_column: Annotated[str, typer.Option(help="Of Parquet files.")] = "image",
    label_column: Annotated[str, typer.Option(help="Of Parquet files.")] = "label",
    classes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="One name a line, for labels that are numbers."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes, or actors. Unless given: one a core.")
    ] = None,
    ray: Annotated[bool, typer.Option("--ray", help="Encode on a Ray cluster.")] = False,
    address: Annotated[
        str | None, typer.Option(help="Of the cluster; unless given: one made here.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Images in the trunk at once. Unless given: 1 on a CPU, else 32."),
    ] = None,
    block: Annotated[
        int, typer.Option(min=1, help="Images that a killed process has to encode again.")
    ] = 256,
) -> None:
    """Encode labelled images into records, to be learned with `anytimecl memory import`.

    The records are those that `learn` would store, bit for bit on a CPU. After Ctrl-C or a crash,
    the same command resumes, and encodes again only the blocks that were not finished.

    Ends with 1 if some image could not be used.
    """
    from anytimecl.scale.encoding.finishing import finish
    from anytimecl.scale.encoding.job import EncodingJob, begun, memory_meta
    from anytimecl.scale.encoding.sources import Reading

    backbone = _load(model, device)
    settings = _common.chosen_settings(_common.fitting_settings(backbone), codec, sampler, seed)
    names = None if classes is None else _names_in(classes)
    order = None if shuffle is False else settings.seed
    reading = Reading(split, order, bool(shuffle), image_column, label_column, names)
    where = source if "://" in source else str(Path(source).resolve())
    job = begun(EncodingJob(to, where, reading, memory_meta(backbone, settings), block, limit))
    if not job.whole:
        batch = batch or (1 if device == "cpu" else 32)
        _run(job, workers or os.cpu_count() or 1, device, batch, ray=ray, address=address)
    _tell(finish(job), job)


def _load(model: str | None, device: str) -> Backbone:
    """The model; on the CPU if the GPUs are on other machines."""
    import torch

    from anytimecl import backbone

    there = device if device == "cpu" or torch.cuda.is_available() else "cpu"
    return backbone.load(model or _common.EMBEDDED, device=there)


def _names_in(file: Path) -> tuple[str, ...]:
    """The label of each number: no line may be left out."""
    from anytimecl.labels import teachable

    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AnytimeError(f"The classes in {file} cannot be read: {reason(error)}.") from error
    names = []
    for number, line in enumerate(lines, 1):
        try:
            names.append(teachable(line))
        except LabelError as error:
            raise LabelError(f"{file}, line {number}: {error}") from error
    return tuple(names)


def _run(
    job: EncodingJob, workers: int, device: str, batch: int, *, ray: bool, address: str | None
) -> None:
    from anytimecl.scale.encoding import running

    left = running.missing(job)
    total = sum(place.images for place in job.places())
    done = total - sum(place.images for place in left)
    size = {place.number: place.images for place in left}
    work: Iterator[Done]
    workers = min(workers, max(1, len(left)))
    if ray:
        gpus = 0.0 if device == "cpu" else 1.0
        work = running.on_ray(
            job, left, workers, address=address, device=device, batch=batch, gpus=gpus
        )
    elif workers == 1:
        work = running.here(job, left, device=device, batch=batch)
    else:
        work = running.in_processes(job, left, workers, device=device, batch=batch)
    with _common.asked_to_stop() as stopping, _screen.progress("encode") as advance:
        for one in work:
            done += size[one.number]
            advance(done, total, "")
            if stopping() and done < total:
                typer.echo(
                    f"Stopped after {done:,} of {total:,} images: go on with the same command.",
                    err=True,
                )
                raise typer.Exit(_common.INTERRUPTED)


def _tell(summary: Summary, job: EncodingJob) -> None:
    facts = [("encoded", _screen.counted(summary.examples, "image"))]
    if summary.repeated:
        facts.append(("left out", f"{summary.repeated:,} that are there twice"))
    if summary.failures:
        facts.append(("unusable", f"{len(summary.failures):,}"))
    facts.append(("next", f"anytimecl memory import {job.folder} --to MEMORY"))
    _screen.show_facts(facts)
    _screen.report(summary.failures, "Not encoded")
    if summary.failures:
        raise typer.Exit(1)
