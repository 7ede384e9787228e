"""Learning from records of edge devices: images that were encoded and compressed there."""

from __future__ import annotations

import time
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from anytimecl.errors import LabelError
from anytimecl.recording import RecordError
from anytimecl.serve.engine import Engine
from anytimecl.serve.learning import learn_compressed
from anytimecl.serve.problems import Problem
from anytimecl.serve.schemas import CANDIDATES, Asked, ItemLabel, ItemLabels, ItemState, example

RECORDS = 64  # per request
KEY = 200  # characters
EXAMPLE: dict[str, JsonValue] = {
    "fingerprint": "0123456789abcdef",
    "codec": "attention-pca",
    "examples": [{"key": "edge-7-1", "label": "tabby cat", "record": "AQjFAAADAAAA"}],
}
Name = Annotated[str, Field(min_length=1, max_length=100)]


class RecordAsked(Asked):
    """One example."""

    model_config = ConfigDict(val_json_bytes="base64")

    key: str = Field(
        min_length=1, max_length=KEY, description="A retry with the same key is learned once."
    )
    label: ItemLabel
    record: bytes = Field(
        min_length=1,
        description="What the codec made of the image, in base64.",
        json_schema_extra={"format": "byte"},
    )
    candidates: ItemLabels | None = CANDIDATES


class RecordsAsked(Asked):
    """A batch of one model and one codec; GET /v1/stats has those of this memory."""

    model_config = example(EXAMPLE)

    fingerprint: Name = Field(
        description="Of the model that encoded the images.",
        json_schema_extra={"format": "model-fingerprint"},
    )
    codec: Name = Field(
        description="That compressed them.", json_schema_extra={"format": "codec-name"}
    )
    examples: list[RecordAsked] = Field(min_length=1, max_length=RECORDS)


class RecordTold(BaseModel):
    """Result of one example."""

    key: str
    state: ItemState
    id: int | None
    detail: str | None = Field(description="Why it was refused.")


class RecordsTold(BaseModel):
    """In the order of the request."""

    examples: list[RecordTold]


async def learn(engine: Engine, asked: RecordsAsked) -> RecordsTold:
    """Learn the examples in order, each in its turn, so that other changes can be in between.

    If the queue is full or the time is over, the rest is `later`; if nothing was accepted, the
    error is raised.
    """
    _check_same(engine, asked)
    end = time.monotonic() + engine.options.learn_seconds
    told: list[RecordTold] = []
    for one in asked.examples:
        try:
            if told and time.monotonic() > end:
                break
            told.append(await _learn_one(engine, asked.fingerprint, one))
        except Problem as problem:
            if problem.status == 409:  # the key was used with another label
                told.append(_refused(one, problem))
            elif told:
                break
            else:
                raise
    rest = asked.examples[len(told) :]
    told += [RecordTold(key=one.key, state="later", id=None, detail=None) for one in rest]
    return RecordsTold(examples=told)


async def _learn_one(engine: Engine, fingerprint: str, one: RecordAsked) -> RecordTold:
    try:
        taught = await learn_compressed(
            engine, one.record, fingerprint, one.label, one.candidates, one.key
        )
    except (RecordError, LabelError) as error:
        return _refused(one, error)
    state: ItemState = "repeated" if taught.repeated else "learned"
    return RecordTold(key=one.key, state=state, id=taught.id, detail=None)


def _refused(one: RecordAsked, why: Exception) -> RecordTold:
    return RecordTold(key=one.key, state="refused", id=None, detail=str(why))


def _check_same(engine: Engine, asked: RecordsAsked) -> None:
    """Reject records of another model or codec."""
    spec, codec = engine.classifier.backbone.spec, engine.classifier.settings.name_of("codec")
    if engine.keeps_images:
        raise Problem(
            409,
            "This memory keeps images, and records hold none: send images to /v1/learn, or start "
            "a service on a memory made with another codec.",
        )
    if asked.fingerprint != spec.fingerprint:
        raise Problem(
            409,
            f"These records were made with another model than this memory, which is of "
            f"{spec.name} (fingerprint {spec.fingerprint}). Features of one model cannot be turned "
            "into those of another: encode the images again with that model.",
        )
    if asked.codec != codec:
        raise Problem(
            409,
            f"This memory takes records of the codec {codec!r} alone: compress the images again "
            "with that one.",
        )
