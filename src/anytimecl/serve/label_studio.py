"""Label Studio talks to this service as to any of its ML backends: give it <address>/label-studio.

It asks for predictions of a project's tasks, and tells of annotations, which are learned.
Pictures are fetched from the one Label Studio that the service was told of, and from nowhere else:
a task could otherwise have the service ask its own network for anything.
"""

from __future__ import annotations

import asyncio
import hashlib
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit
from xml.etree import ElementTree

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field

from anytimecl import __version__
from anytimecl.errors import ImageError
from anytimecl.serve.engine import Engine
from anytimecl.serve.problems import Problem
from anytimecl.serve.schemas import IMAGES, LABELS, problem_responses
from anytimecl.serve.uploads import from_base64

MODEL_VERSION = f"anytimecl-{__version__}"
LEARNED = ("ANNOTATION_CREATED", "ANNOTATION_UPDATED")
LONGEST_CONFIG = 1_000_000  # characters
SECONDS = 20.0  # for one picture


@dataclass(frozen=True)
class Studio:
    """The Label Studio whose pictures may be fetched."""

    url: str | None = None
    key: str | None = None  # its access token

    def resolve(self, address: str) -> str:
        """The whole address of a picture, if it lies there."""
        if self.url is None:
            raise Problem(
                422, "Pictures in Label Studio are fetched after `anytimecl serve --label-studio`."
            )
        whole, own = urljoin(self.url.rstrip("/") + "/", address), urlsplit(self.url)
        found = urlsplit(whole)
        if (found.scheme, found.netloc) != (own.scheme, own.netloc):
            raise Problem(422, f"The picture is not on {self.url}, and others are not fetched.")
        return whole


class Control(NamedTuple):
    """The part of a project's labelling interface that is answered: choices about an image."""

    name: str
    to_name: str
    field: str  # of a task's data
    labels: tuple[str, ...]


class Task(BaseModel):
    """A task of a project."""

    id: int | None = None
    data: dict[str, Any] = Field(default_factory=dict)


class PredictTasks(BaseModel):
    """What Label Studio sends to have tasks predicted."""

    tasks: list[Task] = Field(max_length=IMAGES)
    label_config: str = Field(
        max_length=LONGEST_CONFIG, json_schema_extra={"format": "label-studio-config"}
    )


def make_router(engine: Engine, studio: Studio) -> APIRouter:
    """The routes that an ML backend has."""
    router = APIRouter(prefix="/label-studio", tags=["Label Studio"])
    responses = problem_responses(413, 422)

    @router.get("/health", summary="For Label Studio", responses=problem_responses())
    async def health() -> dict[str, str]:
        """Whether the backend is there."""
        return {"status": "UP", "model_class": "AnytimeClassifier"}

    @router.post("/setup", summary="For Label Studio", responses=responses)
    async def setup(project: dict[str, Any] = Body(default={})) -> dict[str, str]:  # noqa: B008
        """Tells the version of the model. The token that is sent along is not kept."""
        return {"model_version": MODEL_VERSION}

    @router.post("/predict", summary="For Label Studio", responses=responses)
    async def predict(asked: PredictTasks) -> dict[str, Any]:
        """One result for each task; a picture that cannot be read gets an empty one."""
        control = find_control(asked.label_config)
        results = await asyncio.gather(
            *(_predict(engine, studio, control, task.data) for task in asked.tasks)
        )
        return {"results": results, "model_version": MODEL_VERSION}

    @router.post("/webhook", status_code=201, summary="For Label Studio", responses=responses)
    async def webhook(event: dict[str, Any] = Body()) -> dict[str, Any]:  # noqa: B008
        """Learns a created or updated annotation; others are passed over.

        The same annotation with the same choice is learned once, however often it is told.
        """
        if event.get("action") not in LEARNED:
            return {"learned": []}
        control = find_control(str(_inside(event, "project", "label_config") or ""))
        choices = chosen(event, control)
        if not choices:
            return {"learned": []}
        image = await _fetch(studio, _inside(event, "task", "data", control.field))
        annotation = _inside(event, "annotation", "id")
        learned = []
        for choice in choices:
            told = f"{studio.url}|{annotation}|{choice}" if annotation is not None else None
            key = told and "label-studio:" + hashlib.sha256(told.encode()).hexdigest()
            taught = await engine.learn(image, choice, None, key)
            learned.append({"id": taught.id, "label": taught.label, "repeated": taught.repeated})
        return {"learned": learned}

    return router


def find_control(config: str) -> Control:
    """The first choices about an image in a labelling interface.

    >>> find_control('<View><Image name="i" value="$url"/><Choices name="c" toName="i">'
    ...              '<Choice value="cat"/></Choices></View>')
    Control(name='c', to_name='i', field='url', labels=('cat',))
    """
    if "<!" in config.replace("<!--", ""):  # entities grow without a bound
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
    """The choices that a person made."""
    found: list[str] = []
    result = _inside(event, "annotation", "result")
    for part in result if isinstance(result, list) else ():
        if isinstance(part, Mapping) and part.get("from_name") == control.name:
            choices = _inside(part, "value", "choices")
            found += [c for c in choices if isinstance(c, str)] if isinstance(choices, list) else []
    return found[:LABELS]


async def _predict(
    engine: Engine, studio: Studio, control: Control, data: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        image = await _fetch(studio, data.get(control.field))
        [prediction] = await engine.predict([image], control.labels, 1.0)
    except (ImageError, Problem) as error:
        if isinstance(error, Problem) and error.status != 422:
            raise  # not the picture's fault: ask again
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


async def _fetch(studio: Studio, address: Any) -> bytes:
    if not isinstance(address, str) or not address:
        raise Problem(422, "The task has no picture.")
    if address.startswith("data:"):
        return from_base64(address, 0)
    return await asyncio.to_thread(_download, studio.resolve(address), studio.key)


class _Stay(urllib.request.HTTPRedirectHandler):
    """A redirect could lead anywhere."""

    def redirect_request(self, *args: Any) -> None:
        return None


def _download(url: str, key: str | None, most: int = 32 << 20) -> bytes:
    request = urllib.request.Request(url, headers={"Authorization": f"Token {key}"} if key else {})
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=SECONDS) as response:
            data: bytes = response.read(most + 1)
    except (OSError, urllib.error.URLError) as error:
        why = getattr(error, "code", "") or getattr(error, "reason", error)
        raise Problem(422, f"The picture cannot be fetched from Label Studio: {why}.") from None
    if len(data) > most:
        raise Problem(413, f"A picture has at most {most:,} bytes.")
    return data


def _inside(value: Any, *path: str) -> Any:
    """A value deep inside a foreign message; None where it is not there."""
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
