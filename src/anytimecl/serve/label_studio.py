"""A Label Studio ML backend, at <address>/label-studio.

It predicts tasks and handles webhooks: created annotations are learned, updated ones relabelled,
deleted ones forgotten. Pictures are fetched only from the Label Studio given to the service;
otherwise a task could make the service request any address in its network (SSRF).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree

from fastapi import APIRouter, Body, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field

from anytimecl import __version__
from anytimecl.errors import ImageError
from anytimecl.prediction import Prediction
from anytimecl.serve.curated import RelabelTold
from anytimecl.serve.curation import tell_change
from anytimecl.serve.engine import Engine
from anytimecl.serve.learning import learn_one
from anytimecl.serve.lessons import Lesson
from anytimecl.serve.problems import Problem
from anytimecl.serve.schemas import IMAGES, LABELS, problem_responses
from anytimecl.serve.studio_files import Allowance, LabelStudio, fetch, fetch_or_error
from anytimecl.serve.uploads import check_json

MODEL_VERSION = f"anytimecl-{__version__}"
CREATED, UPDATED = "ANNOTATION_CREATED", "ANNOTATION_UPDATED"
DELETED = ("ANNOTATION_DELETED", "ANNOTATIONS_DELETED")
LONGEST_CONFIG = 1_000_000  # characters
MOST = 1_000  # examples per annotation, annotations per message


class Control(NamedTuple):
    """The supported part of a labelling interface: choices about an image."""

    name: str
    to_name: str
    field: str  # of a task's data
    labels: tuple[str, ...]


class Task(BaseModel):
    """A task of a project."""

    data: dict[str, Any] = Field(default_factory=dict)


class PredictTasks(BaseModel):
    """A prediction request of Label Studio."""

    tasks: list[Task] = Field(max_length=IMAGES)
    label_config: str = Field(
        max_length=LONGEST_CONFIG, json_schema_extra={"format": "label-studio-config"}
    )


class LearnedTold(BaseModel):
    """An example, and whether it was learned before."""

    id: int
    label: str
    repeated: bool


class WebhookTold(BaseModel):
    """What a message changed."""

    learned: list[LearnedTold] = []
    relabelled: list[RelabelTold] = []
    forgotten: int = 0


class _Checked(APIRoute):
    """Checks JSON bodies before FastAPI parses them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Override of FastAPI's."""
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            check_json(await request.body())
            return await handle(request)

        return checked


def make_router(engine: Engine, studio: LabelStudio) -> APIRouter:
    """The routes of an ML backend."""
    router = APIRouter(prefix="/label-studio", tags=["Label Studio"], route_class=_Checked)
    responses = problem_responses(413, 422)

    @router.get("/health", summary="For Label Studio", responses=problem_responses())
    async def health() -> dict[str, str]:
        """Liveness."""
        return {"status": "UP", "model_class": "AnytimeClassifier"}

    @router.post("/setup", summary="For Label Studio", responses=responses)
    async def setup(project: dict[str, Any] = Body(default={})) -> dict[str, str]:  # noqa: B008
        """Returns the model's version. The token in the request is not stored."""
        return {"model_version": MODEL_VERSION}

    @router.post("/predict", summary="For Label Studio", responses=responses)
    async def predict(asked: PredictTasks) -> dict[str, Any]:
        """One result per task; empty for a picture that cannot be read."""
        control = find_control(asked.label_config)
        allowance = Allowance()
        addresses = [task.data.get(control.field) for task in asked.tasks]
        images = await asyncio.gather(
            *(fetch_or_error(studio, address, allowance) for address in addresses)
        )
        found = await engine.predict(images, control.labels, 1.0) if images else []
        results = [_result(control, one) for one in found]
        return {"results": results, "model_version": MODEL_VERSION}

    @router.post("/webhook", status_code=201, summary="For Label Studio", responses=responses)
    async def webhook(event: dict[str, Any] = Body()) -> WebhookTold:  # noqa: B008
        """Learns created, relabels updated and forgets deleted annotations.

        Idempotent. Other messages are ignored.
        """
        action = event.get("action")
        if action in DELETED:
            return WebhookTold(forgotten=await _forget(engine, _deleted(event)))
        if action not in (CREATED, UPDATED):
            return WebhookTold()
        control = find_control(str(_inside(event, "project", "label_config") or ""))
        annotation, choices = _inside(event, "annotation", "id"), chosen(event, control)
        taught = await _examples_of(engine, annotation) if action == UPDATED else []
        if not choices:
            gone = [annotation] if taught else []
            return WebhookTold(forgotten=await _forget(engine, gone))
        if taught:
            return WebhookTold(relabelled=await _relabel(engine, taught, choices[0]))
        address = _inside(event, "task", "data", control.field)
        image = await fetch(studio, address, Allowance())
        moment = _inside(event, "annotation", "updated_at") if action == UPDATED else ""
        told = f"{studio.url}|{annotation}|{choices[0]}|{moment}"
        key = "label-studio:" + hashlib.sha256(told.encode()).hexdigest()
        lesson = Lesson(
            image,
            choices[0],  # an image has one label: the first of several choices
            key=None if annotation is None else key,
            content=b"",  # the picture at this address may have changed
            source=_source(annotation, address),
        )
        done = await learn_one(engine, lesson)
        return WebhookTold(
            learned=[LearnedTold(id=done.id, label=done.label, repeated=done.repeated)]
        )

    return router


# Examples are found by their source, which is deleted with them.


def _source(annotation: Any, address: Any) -> str:
    """The source that a picture is stored under.

    >>> _source(11, "/data/upload/1-my%20cat.png?d=3")
    'label-studio/annotation-11/1-my cat.png'
    """
    plain = isinstance(address, str) and not address.startswith("data:")
    name = unquote(address.partition("?")[0].rpartition("/")[2]) if plain else ""
    return f"{_prefix(annotation)}{name[:100] or 'picture'}"


def _prefix(annotation: Any) -> str:
    return f"label-studio/annotation-{annotation}/"


async def _examples_of(engine: Engine, annotation: Any) -> list[int]:
    """Stored examples of an annotation."""
    if not isinstance(annotation, int):
        return []
    found = await engine.answer(
        lambda: engine.classifier.examples(source=_prefix(annotation), limit=MOST)
    )
    return [one.id for one in found.examples]


async def _relabel(engine: Engine, examples: Sequence[int], label: str) -> list[RelabelTold]:
    """Relabel examples with another label; idempotent."""

    def relabel() -> list[RelabelTold]:
        changed = []
        for example in examples:
            done = engine.classifier.relabel(example, label)
            if done.before != done.label:
                event = tell_change(engine, "relabelled", example=example)
                changed.append(RelabelTold(**done._asdict(), event=event))
        return changed

    return await engine.in_turn(relabel)


async def _forget(engine: Engine, annotations: Sequence[Any]) -> int:
    gone = 0
    for annotation in annotations:
        for example in await _examples_of(engine, annotation):
            gone += await engine.forget_example(example)
    return gone


def _deleted(event: Mapping[str, Any]) -> list[Any]:
    """Ids of the deleted annotations in a message."""
    several = event.get("annotations")
    found = several if isinstance(several, list) else [event.get("annotation")]
    return [_inside(one, "id") for one in found[:MOST]]


def find_control(config: str) -> Control:
    """The first <Choices> about an <Image> in a labelling interface.

    >>> find_control('<View><Image name="i" value="$url"/><Choices name="c" toName="i">'
    ...              '<Choice value="cat"/></Choices></View>')
    Control(name='c', to_name='i', field='url', labels=('cat',))
    """
    if "<!" in config.replace("<!--", ""):  # entities can expand without bound
        raise Problem(422, "A labelling interface has no declarations.")
    try:
        root = ElementTree.fromstring(config)
    except ElementTree.ParseError:
        raise Problem(422, "The labelling interface is not XML.") from None
    images = {
        element.get("name"): element.get("value", "").removeprefix("$")
        for element in root.iter("Image")
    }
    for choices in root.iter("Choices"):
        to_name = choices.get("toName", "")
        labels = [label for choice in choices.iter("Choice") if (label := choice.get("value"))]
        if to_name in images and 0 < len(labels) <= LABELS:
            return Control(choices.get("name", ""), to_name, images[to_name], tuple(labels))
    raise Problem(422, "The labelling interface has no <Choices> about an <Image>.")


def chosen(event: Mapping[str, Any], control: Control) -> list[str]:
    """The choices in an annotation."""
    found: list[str] = []
    result = _inside(event, "annotation", "result")
    for part in result if isinstance(result, list) else ():
        if isinstance(part, Mapping) and part.get("from_name") == control.name:
            choices = _inside(part, "value", "choices")
            found += [c for c in choices if isinstance(c, str)] if isinstance(choices, list) else []
    return found[:LABELS]


def _result(control: Control, prediction: Prediction | ImageError) -> dict[str, Any]:
    if isinstance(prediction, ImageError):
        return {"result": [], "score": 0.0, "model_version": MODEL_VERSION}
    return {
        "result": [
            {
                "from_name": control.name,
                "to_name": control.to_name,
                "type": "choices",
                "value": {"choices": [prediction.label]},
            }
        ],
        "score": prediction.probability,
        "model_version": MODEL_VERSION,
    }


def _inside(value: Any, *path: str) -> Any:
    """A nested value of a foreign message; None if it is missing."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
