"""The HTTP API."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import Response, StreamingResponse

from anytimecl import __version__
from anytimecl.classifier import LabelStats
from anytimecl.prediction import Prediction
from anytimecl.serve import records
from anytimecl.serve.engine import Engine, Taught, job_data
from anytimecl.serve.events import HEARTBEAT, message
from anytimecl.serve.history import WINDOW
from anytimecl.serve.problems import Problem
from anytimecl.serve.records import RecordsAsked, RecordsTold
from anytimecl.serve.schemas import (
    KEY,
    ConsolidateAsked,
    ExamplesTold,
    ExampleTold,
    ForgotTold,
    JobTold,
    Label,
    LabelsTold,
    LabelTold,
    LearnAsked,
    LearnTold,
    OutcomeTold,
    PredictAsked,
    PredictionTold,
    PredictTold,
    Score,
    StatsTold,
    problem_responses,
)
from anytimecl.serve.uploads import body_schema, parse, read

SHOWN = 500  # outcomes that the chart draws
ExampleId = Annotated[int, Path(ge=1, le=2**63 - 1)]
JobId = Annotated[str, Path(max_length=64)]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=KEY,
        description="A retry with the same key teaches once.",
    ),
]
_STREAM: dict[str, Any] = {
    "description": "Server-sent events",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}


async def check_query(request: Request) -> None:
    """A parameter that is not known is a mistake, and not to be passed over in silence."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            raise Problem(422, f"There is no parameter {name[:60]!r}.")


def make_router(engine: Engine) -> APIRouter:
    """Every route under /v1."""
    router = APIRouter(prefix="/v1", dependencies=[Depends(check_query)])

    @router.post(
        "/predict",
        summary="Classify images",
        responses=problem_responses(409, 413, 415, 422),
        openapi_extra=dict(body_schema(PredictAsked, "images", many=True)),
    )
    async def predict(request: Request) -> PredictTold:
        """Choose among the labels given, or among all that were ever learned."""
        asked, images = await read(request, PredictAsked, "images", frozenset({"labels"}))
        found = await engine.predict(images, asked.labels, asked.threshold)
        return PredictTold(predictions=[_told(one, asked.top_k) for one in found])

    @router.post(
        "/learn",
        summary="Learn one labelled image",
        responses=problem_responses(409, 413, 415, 422),
        openapi_extra=dict(body_schema(LearnAsked, "image", many=False)),
    )
    async def learn(request: Request, key: Key = None) -> LearnTold:
        """The example is durable when this answers. The label needs no declaration."""
        asked, [image] = await read(request, LearnAsked, "image", frozenset({"candidates"}))
        taught = await engine.learn(image, asked.label, asked.candidates, key)
        return _learned(taught)

    @router.post(
        "/records",
        summary="Learn from compressed features",
        responses=problem_responses(409, 413, 415, 422),
        openapi_extra=records.body_schema(),
    )
    async def learn_records(request: Request) -> RecordsTold:
        """For edges that keep their images. What is answered `learned` is durable."""
        return await records.learn(engine, parse(RecordsAsked, await _json(request)))

    @router.get("/examples", summary="The latest examples", responses=problem_responses(422))
    async def examples(
        limit: Annotated[int, Query(ge=1, le=100)] = 24,
    ) -> ExamplesTold:
        """Newest first, as far as this process remembers."""
        return ExamplesTold(
            examples=[
                ExampleTold(id=entry.id, label=entry.label, thumbnail=entry.thumbnail is not None)
                for entry in engine.recent.entries(limit)
            ]
        )

    @router.get(
        "/examples/{example}/thumbnail",
        summary="A small picture of an example of this session",
        response_class=Response,
        responses=problem_responses(404, 422)
        | {200: {"description": "A JPEG", "content": {"image/jpeg": {}}}},
    )
    async def thumbnail(example: ExampleId) -> Response:
        """The memory keeps no images, so there is none after a restart."""
        found = engine.recent.thumbnail(example)
        if found is None:
            raise Problem(404, f"There is no picture of example {example}.")
        return Response(found, media_type="image/jpeg")

    @router.delete(
        "/examples/{example}",
        summary="Forget an example for good",
        responses=problem_responses(404, 422),
    )
    async def forget_example(example: ExampleId) -> ForgotTold:
        """Its record is overwritten; what the weights took from it wears off."""
        return ForgotTold(forgotten=await engine.forget_example(example))

    @router.get("/labels", summary="Every label learned", responses=problem_responses(422))
    async def labels() -> LabelsTold:
        """With examples and estimates, in order of first appearance."""
        return LabelsTold(labels=_labels(await engine.answer(engine.stats)))

    @router.delete(
        "/labels/{label:path}",
        summary="Forget every example of a label",
        responses=problem_responses(404, 422),
    )
    async def forget_label(label: Annotated[Label, Path()]) -> ForgotTold:
        """For good."""
        return ForgotTold(forgotten=await engine.forget_label(label))

    @router.get("/stats", summary="The service in numbers", responses=problem_responses(422))
    async def stats() -> StatsTold:
        """What the page shows."""
        return _stats(engine, await engine.answer(engine.stats))

    @router.post(
        "/consolidate",
        status_code=202,
        summary="Practise on the whole memory",
        responses=problem_responses(409, 413, 415, 422),
        openapi_extra={
            "requestBody": {
                "content": {
                    "application/json": {
                        "schema": ConsolidateAsked.model_json_schema(),
                        "example": {"epochs": 1},
                    }
                }
            }
        },
    )
    async def consolidate(request: Request) -> JobTold:
        """Begins a job and answers at once. Predictions go on; lessons wait for its end."""
        body = await _json(request)
        asked = parse(ConsolidateAsked, body) if body else ConsolidateAsked()
        return JobTold(**job_data(engine.consolidate(asked.epochs)))

    @router.get("/jobs/{job}", summary="Where a job stands", responses=problem_responses(404, 422))
    async def job(job: JobId) -> JobTold:
        """As long as this process remembers it."""
        found = engine.jobs.get(job)
        if found is None:
            raise Problem(404, "There is no such job; a restart forgets them.")
        return JobTold(**job_data(found))

    @router.get(
        "/jobs/{job}/events",
        summary="Follow a job",
        response_class=StreamingResponse,
        responses=problem_responses(404, 422) | {200: _STREAM},
    )
    async def job_events(job: JobId) -> StreamingResponse:
        """An event whenever it moved, until it is over."""
        if engine.jobs.get(job) is None:
            raise Problem(404, "There is no such job; a restart forgets them.")
        return StreamingResponse(_follow(engine, job), media_type="text/event-stream")

    @router.get(
        "/events",
        summary="Follow everything that happens",
        response_class=StreamingResponse,
        responses=problem_responses(422) | {200: _STREAM},
    )
    async def events() -> StreamingResponse:
        """`learned`, `forgotten` and `job`."""
        return StreamingResponse(engine.broadcast.listen(), media_type="text/event-stream")

    return router


async def _json(request: Request) -> bytes:
    """A body that is JSON, or empty."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await request.body()
    if body and kind != "application/json":
        raise Problem(415, "Send application/json.", accept="application/json")
    return body


async def _follow(engine: Engine, identity: str, pause: float = 0.2) -> AsyncIterator[bytes]:
    told, quiet = None, 0.0
    while (job := engine.jobs.get(identity)) is not None:
        if job != told:
            yield message("job", job_data(job))
            told, quiet = job, 0.0
        elif quiet >= HEARTBEAT:
            yield b": still here\n\n"
            quiet = 0.0
        if job.over or not engine.ready:
            return
        await asyncio.sleep(pause)
        quiet += pause


def _told(prediction: Prediction, top_k: int) -> PredictionTold:
    return PredictionTold(
        label=prediction.label,
        probability=prediction.probability,
        none_of_these=prediction.none_of_these,
        spoke=prediction.spoke,
        scores=[
            Score(
                label=label,
                blended=blended,
                tuned=prediction.tuned.get(label),
                original=prediction.original[label],
            )
            for label, blended in prediction.top(top_k)
        ],
    )


def _learned(taught: Taught) -> LearnTold:
    before = None
    if taught.outcome is not None:
        _, blended, tuned, original = taught.outcome
        before = OutcomeTold(blended=blended, tuned=tuned, original=original)
    return LearnTold(id=taught.id, label=taught.label, repeated=taught.repeated, before=before)


def _labels(known: dict[str, LabelStats]) -> list[LabelTold]:
    return [LabelTold(label=label, **stats._asdict()) for label, stats in known.items()]


def _stats(engine: Engine, known: dict[str, LabelStats]) -> StatsTold:
    accuracy = engine.history.accuracy()
    job = engine.jobs.latest()
    return StatsTold(
        version=__version__,
        model=engine.classifier.backbone.spec.name,
        fingerprint=engine.classifier.backbone.spec.fingerprint,
        codec=engine.classifier.settings.codec,
        keeps_images=engine.keeps_images,
        examples=len(engine.classifier),
        labels=_labels(known),
        accuracy=None
        if accuracy is None
        else dict(zip(("blended", "tuned", "original"), accuracy, strict=True)),
        outcomes=[[int(value) for value in one] for one in engine.history.latest(SHOWN)],
        window=WINDOW,
        waiting_images=len(engine.encoder),
        waiting_changes=len(engine.turns),
        job=None if job is None else JobTold(**dataclasses.asdict(job)),
    )
