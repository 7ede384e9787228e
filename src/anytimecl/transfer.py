"""Export, import and copying of memories, and re-encoding for another model or codec."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anytimecl import checkpoint as checkpoints
from anytimecl.backbone import Backbone, Spec
from anytimecl.checkpointer import CHECKPOINT
from anytimecl.classifier import AnytimeClassifier
from anytimecl.codec import Codec, ImageBytes, make_codec
from anytimecl.errors import ImageError, ModelError, StoreError
from anytimecl.files import DRAFT, move_into_place
from anytimecl.images import load_image
from anytimecl.labels import clean_label, teachable
from anytimecl.memory import Row, Store, backup, open_memory, rescue
from anytimecl.memory.contract import Progress
from anytimecl.memory.exporting import Features, export_memory
from anytimecl.memory.importing import Export, Imported, import_into, import_new
from anytimecl.memory.opening import refuse_to_replace
from anytimecl.memory.salvage import Rescued
from anytimecl.opening import PRIOR, way_out
from anytimecl.recording import Record
from anytimecl.registry import Choice
from anytimecl.settings import Settings
from anytimecl.tail import TailInput, embed

AT_ONCE = 32  # records decoded together
LEFT_OUT = "left out"  # event of an example that could not be read
COPY = "copy"  # event of an example whose image was learned before


# Features of stored examples


def image_embeddings(backbone: Backbone, codec: Codec) -> Features:
    """Features `embedding` [example, dim], fp16: unit embeddings of the original model."""

    @torch.no_grad()
    def look(records: Sequence[bytes]) -> Mapping[str, Tensor]:
        parts = []
        for start in range(0, len(records), AT_ONCE):
            tokens = codec.decode(records[start : start + AT_ONCE], backbone.device)
            vectors = embed(backbone.tail, backbone.spec.tail, tokens)
            parts.append(F.normalize(vectors, dim=-1).half())
        return {"embedding": torch.cat(parts)}

    return look


def image_tokens(backbone: Backbone, codec: Codec) -> Features:
    """Features `tokens` [example, token, width], fp16."""

    def look(records: Sequence[bytes]) -> Mapping[str, Tensor]:
        parts = []
        for start in range(0, len(records), AT_ONCE):
            tokens = codec.decode(records[start : start + AT_ONCE], backbone.device)
            if isinstance(tokens, TailInput):
                raise ModelError(
                    f"The codec {codec.name!r} keeps what the tail sees, and no tokens: export "
                    "embeddings instead."
                )
            parts.append(tokens.half())
        return {"tokens": torch.cat(parts)}

    return look


FEATURES = {"embeddings": image_embeddings, "tokens": image_tokens}


def attached(backbone: Backbone, choice: Choice[Codec]) -> Codec:
    """The codec; one that stores images is given the backbone to encode with."""
    codec = make_codec(choice, backbone.spec, backbone.tail)
    if isinstance(codec, ImageBytes):
        codec.attach(lambda files: backbone.encode([load_image(file) for file in files]))
    return codec


# Parquet


def export_classifier(
    folder: Path, to: Path, *, features: Features | None = None, progress: Progress | None = None
) -> int:
    """Export memory and checkpoint to the new folder `to`; returns the number of examples.

    Another process may learn meanwhile.
    """
    with open_memory(folder, read_only=True) as store:
        # Before the examples: a checkpoint may be behind the journal, not ahead of it.
        saved = checkpoints.load_beside_owner(folder / CHECKPOINT)

        def beside(part: Path) -> None:
            if saved is not None and not outdated(saved, store):
                checkpoints.save(saved, part / CHECKPOINT)
            _copy_prior(folder, part)

        return export_memory(store, to, features=features, beside=beside, progress=progress)


def copy_memory(folder: Path, to: Path) -> Path:
    """Copy the memory in `folder`, even while another process learns; returns the copy's file.

    The database comes last, and atomically: without its checkpoint and prior the copy is no memory.
    """
    to = Path(to)
    refuse_to_replace(to)
    if taken := [name for name in (CHECKPOINT, PRIOR) if (to / name).exists()]:
        raise StoreError(f"There is a {taken[0]} in {to} already: choose another folder.")
    part = to / f".copy{DRAFT}"
    try:
        shutil.rmtree(part, ignore_errors=True)  # left by a crash
        with open_memory(folder, read_only=True) as store:
            # Before the examples: a checkpoint may be behind the journal, not ahead of it.
            saved = checkpoints.load_beside_owner(folder / CHECKPOINT)
            made = backup(store, part)
            if saved is not None and not outdated(saved, store):
                checkpoints.save(saved, part / CHECKPOINT)
        _copy_prior(folder, part)
        for name in (CHECKPOINT, PRIOR, made.name):
            if (part / name).exists():
                move_into_place(part / name, to / name)
    except OSError as error:
        raise StoreError(f"{to} cannot be written: {error}.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return to / made.name


def rescue_memory(folder: Path, to: Path, *, progress: Progress | None = None) -> Rescued:
    """`rescue` the memory in `folder`; its prior comes along, and its checkpoint is made anew."""
    with open_memory(folder, read_only=True) as store:
        return rescue(store, to, beside=partial(_copy_prior, folder), progress=progress)


def _copy_prior(folder: Path, to: Path) -> None:
    """A memory keeps the prior that it was created with."""
    if (folder / PRIOR).exists():
        shutil.copyfile(folder / PRIOR, to / PRIOR)


def outdated(saved: checkpoints.Checkpoint, store: Store) -> bool:
    """Whether examples were forgotten since a checkpoint."""
    return any(event.kind == "forget" for event in store.events(saved.event))


def import_classifier(export: Export, to: Path, *, progress: Progress | None = None) -> Imported:
    """Import an export into the memory in `to`.

    A new memory is identical to the exported one, checkpoint included. To an existing memory the
    examples are added, and learned when it is next opened.
    """
    to = Path(to)
    if to.is_file():
        raise StoreError(f"{to} is a file: choose a folder.")
    check = _check_of(export.meta)
    if not to.exists() or not any(to.iterdir()):

        def beside(part: Path) -> None:
            saved = checkpoints.load(export.folder / CHECKPOINT)
            if saved is not None:
                checkpoints.save(saved, part / CHECKPOINT)
            _copy_prior(export.folder, part)

        return import_new(export, to, beside=beside, check=check, progress=progress)
    with open_memory(to) as store:
        _check_same_kind(export.meta, store, to)
        return import_into(export, store, check=check, progress=progress)


def _check_of(meta: Mapping[str, str]) -> Callable[[Row], None]:
    """A check of rows; a label that can be learned is imported as it is."""
    codec = None
    name = json.loads(meta.get("settings", "{}")).get("codec")
    if name in ("tokens-fp16", "tokens-fp32"):  # these need no model; others may not be registered
        codec = make_codec(name, Spec.from_dict(json.loads(meta["spec"])), {})

    def check(row: Row) -> None:
        teachable(row.label)
        for label in row.candidates or ():
            clean_label(label)
        if codec is not None:
            tokens = codec.decode([row.record])
            assert isinstance(tokens, Tensor)
            if not tokens.isfinite().all():
                raise StoreError("The record is damaged: it holds numbers that are not finite.")

    return check


def _check_same_kind(meta: Mapping[str, str], store: Store, to: Path) -> None:
    theirs, ours = _kind(meta), _kind(store.meta)
    if theirs != ours:
        raise StoreError(
            f"The export holds records of the model {theirs[1]!r} in the codec {theirs[2]!r}, and "
            f"the memory in {to} those of {ours[1]!r} in {ours[2]!r}. Import them into a new "
            "folder. " + way_out(theirs[2], "that folder")
        )


def _kind(meta: Mapping[str, str]) -> tuple[str, str, str]:
    try:
        name = Spec.from_dict(json.loads(meta["spec"])).name
        return meta["fingerprint"], name, str(json.loads(meta["settings"])["codec"])
    except KeyError as error:
        raise StoreError("It was not made by a classifier: it tells no model.") from error


# Another model, or another codec


class Reencoded(NamedTuple):
    """Number of learned examples, and ids in the old memory of those that could not be read."""

    examples: int
    left_out: tuple[int, ...]


def reencode(
    source: Store,
    to: Path,
    backbone: Backbone,
    *,
    codec: Choice[Codec] | None = None,
    progress: Progress | None = None,
) -> Reencoded:
    """Learn all examples in `source` again, with another model or codec, in a new folder.

    Everything but the numbers of examples is kept. An interrupted call is resumed by the next one;
    `to` appears when it is complete.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise StoreError(f"{to} is there already: choose a new folder.")
    to = to.resolve()  # "." has no name
    was = Settings.from_json(source.meta["settings"])
    settings = dataclasses.replace(was, codec=codec or was.codec)
    teach = _teacher(source, was, backbone)
    part = to.with_name(f".{to.name}.part")
    labels = list(source.ids())
    if not _is_beginning(part, source, labels, backbone, settings):
        shutil.rmtree(part, ignore_errors=True)
    with AnytimeClassifier.open(
        part, model=backbone, settings=settings, thumbnails=True
    ) as classifier:
        for done in range(classifier.memory.last, len(labels)):  # each is one event there
            example = labels[done][0]
            rows = source.rows([example])
            if not rows or not teach(classifier, rows[0][1]):
                classifier.memory.record_event(LEFT_OUT, {"example": example})
            if progress is not None:
                progress(done + 1, len(labels))
        events = classifier.memory.events()
        left_out = tuple(e.data["example"] for e in events if e.kind == LEFT_OUT)
        count = len(classifier)
    move_into_place(part, to)
    return Reencoded(count, left_out)


def _teacher(
    source: Store, settings: Settings, backbone: Backbone
) -> Callable[[AnytimeClassifier, Row], bool]:
    """A function that learns a stored example; returns whether it could be read."""
    codec = settings.name_of("codec")
    if codec == ImageBytes.name:
        return _teach_image
    if source.meta["fingerprint"] != backbone.spec.fingerprint:
        raise StoreError(
            f"The memory was made with another model than {backbone.spec.name!r}, in the codec "
            f"{codec!r}. {way_out(codec, 'it')}"
        )
    decoder = make_codec(settings.codec, backbone.spec, backbone.tail)

    def teach(classifier: AnytimeClassifier, row: Row) -> bool:
        try:
            tokens = decoder.decode([row.record])
        except StoreError:
            return False
        if isinstance(tokens, TailInput):
            raise ModelError(
                f"The codec {codec!r} keeps what the tail sees, and no tokens: nothing else can be "
                "made of its records."
            )
        made = classifier._compressed(tokens[0])
        if row.content is not None:  # decoded tokens are lossy: keep the original's digest
            made = made._replace(content=row.content)
        _learn(classifier, made._replace(source=row.source), row)
        return True

    return teach


def _teach_image(classifier: AnytimeClassifier, row: Row) -> bool:
    try:
        [file] = ImageBytes().images([row.record])
        load_image(file)
    except (StoreError, ImageError):
        return False
    _learn(classifier, classifier._record(file, row.source), row)
    return True


def _learn(classifier: AnytimeClassifier, made: Record, row: Row) -> None:
    """Learn a record, with the other fields of its row."""
    before = classifier.memory.last
    candidates = None if row.candidates is None else tuple(row.candidates)
    made = made._replace(thumbnail=row.thumbnail, time=row.time)
    classifier._learn(made, row.label, candidates, row.key)
    if classifier.memory.last == before:
        classifier.memory.record_event(COPY, {})


def _is_beginning(
    part: Path,
    source: Store,
    labels: Sequence[tuple[int, str]],
    backbone: Backbone,
    settings: Settings,
) -> bool:
    """Whether a folder holds an interrupted run of this call that can be resumed."""
    try:
        with open_memory(part, read_only=True) as store:
            if store.meta["fingerprint"] != backbone.spec.fingerprint:
                return False
            if store.meta["settings"] != settings.to_json() or store.last > len(labels):
                return False
            for number, label in store.ids():
                example, its = labels[number - 1]
                made, given = store.records.place(number), source.records.place(example)
                times = {made.time, given.time} - {None}  # None in old memories
                if label != its or made.key != given.key or len(times) > 1:
                    return False
            return True
    except (StoreError, KeyError):
        return False
