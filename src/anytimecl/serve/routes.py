"""The HTTP routes of a memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.responses import Response, StreamingResponse

from anytimecl.errors import ImageError
from anytimecl.serve import job_routes, learning, records
from anytimecl.serve.answers import (
    batch_told,
    labels_told,
    learned_told,
    none_good,
    prediction_told,
    stats_told,
)
from anytimecl.serve.engine import Engine
from anytimecl.serve.job_routes import EVENT_STREAM
from anytimecl.serve.lessons import Lesson
from anytimecl.serve.problems import Problem
from anytimecl.serve.records import RecordsAsked, RecordsTold
from anytimecl.serve.schemas import (
    KEY,
    ChangesTold,
    ChangeTold,
    ForgotTold,
    ImageRefused,
    Label,
    LabelsTold,
    LearnAsked,
    LearnBatchAsked,
    LearnBatchTold,
    LearnTold,
    PredictAsked,
    PredictTold,
    StatsTold,
    content_response,
    problem_responses,
)
from anytimecl.serve.telling import key_of
from anytimecl.serve.uploads import base64_or_error, json_body, parse, read, takes

Pick = Callable[..., AsyncIterator[Engine]]
ExampleId = Annotated[int, Path(ge=1, le=2**63 - 1)]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=KEY,
        description="A retry with the same key is learned once, for ever. With other content: 409.",
    ),
]


async def check_query(request: Request) -> None:
    """Reject unknown query parameters: they are mistakes."""
    known = {field.alias for field in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            raise Problem(422, f"There is no parameter {name[:60]!r}.")


def new_router(prefix: str) -> APIRouter:
    """A router whose routes reject what they do not know, and say so in their description."""
    told = problem_responses(422)
    return APIRouter(prefix=prefix, dependencies=[Depends(check_query)], responses=told)


def make_router(prefix: str, pick: Pick) -> APIRouter:
    """Routes of a memory; `pick` is the dependency that finds the memory."""
    router = new_router(prefix)
    picked = Depends(pick)

    @router.post(
        "/predict",
        tags=["Predict"],
        summary="Classify images",
        **takes(PredictAsked, "images"),
    )
    async def predict(request: Request, engine: Engine = picked) -> PredictTold:
        """Predicts one of the given labels, or of all learned ones.

        An image that cannot be read gets an error; the others are predicted.
        """
        asked, images = await read(request, PredictAsked, "images")
        found = await engine.predict(images, asked.labels, asked.threshold, remember=asked.remember)
        errors = [
            ImageRefused(index=index, detail=str(one))
            for index, one in enumerate(found)
            if isinstance(one, ImageError)
        ]
        if len(errors) == len(found):
            raise none_good(errors)
        told = [
            None
            if isinstance(one, ImageError) or isinstance(image, ImageError)
            else prediction_told(one, asked.top_k, key_of(image) if asked.remember else None)
            for one, image in zip(found, images, strict=True)
        ]
        return PredictTold(predictions=told, errors=errors)

    @router.post(
        "/learn",
        tags=["Learn"],
        summary="Learn one labelled image",
        **takes(LearnAsked, "image"),
    )
    async def learn(request: Request, key: Key = None, engine: Engine = picked) -> LearnTold:
        """The example is durable when the response arrives. The label may be new."""
        asked, [image] = await read(request, LearnAsked, "image")
        lesson = Lesson(image, asked.label, asked.candidates, key, source=asked.source)
        return learned_told(await learning.learn_one(engine, lesson))

    @router.post(
        "/learn/batch",
        tags=["Learn"],
        summary="Learn several labelled images",
        **takes(LearnBatchAsked),
    )
    async def learn_batch(request: Request, engine: Engine = picked) -> LearnBatchTold:
        """In order, with a result for each image. `learned` examples are durable."""
        asked = parse(LearnBatchAsked, await json_body(request))
        lessons = [
            Lesson(base64_or_error(one.image), one.label, one.candidates, one.key)
            for one in asked.examples
        ]
        del asked  # frees the base64 text of the images
        return batch_told(await learning.learn_many(engine, lessons))

    @router.post(
        "/records",
        tags=["Learn"],
        summary="Learn from compressed features",
        **takes(RecordsAsked),
    )
    async def learn_records(request: Request, engine: Engine = picked) -> RecordsTold:
        """For edge devices that keep their images. `learned` examples are durable."""
        return await records.learn(engine, parse(RecordsAsked, await json_body(request)))

    @router.delete("/examples/{example}", tags=["Learn"], summary="Forget an example for good")
    async def forget_example(example: ExampleId, engine: Engine = picked) -> ForgotTold:
        """Its record is overwritten; its effect on the weights fades."""
        return ForgotTold(forgotten=await engine.forget_example(example))

    @router.get("/labels", tags=["Know"], summary="Every label learned")
    async def labels(engine: Engine = picked) -> LabelsTold:
        """With number of examples and estimates, in order of first appearance."""
        return LabelsTold(labels=await engine.answer(lambda: labels_told(engine)))

    @router.delete(
        "/labels/{label:path}",
        tags=["Learn"],
        summary="Forget every example of a label",
    )
    async def forget_label(label: Annotated[Label, Path()], engine: Engine = picked) -> ForgotTold:
        """Permanently."""
        return ForgotTold(forgotten=await engine.forget_label(label))

    @router.get("/stats", tags=["Know"], summary="The service in numbers")
    async def stats(engine: Engine = picked) -> StatsTold:
        """Statistics of the memory and the service."""
        return await engine.answer(lambda: stats_told(engine))

    job_routes.add(router, picked)

    @router.get(
        "/events",
        tags=["Know"],
        summary="Follow everything that happens",
        response_class=StreamingResponse,
        responses=EVENT_STREAM,
    )
    async def events(engine: Engine = picked) -> StreamingResponse:
        """`learned`, `changed`, `forgotten` and `job`."""
        return StreamingResponse(engine.broadcast.listen(), media_type="text/event-stream")

    @router.get("/changes", tags=["Know"], summary="What happened since the last time")
    async def changes(
        after: Annotated[int, Query(ge=0, le=2**53, description="The last number known.")] = 0,
        engine: Engine = picked,
    ) -> ChangesTold:
        """Returns at once, for polling: pages may be open in many tabs."""
        last, events, missed = engine.broadcast.since(after)
        told = [ChangeTold(number=one.number, kind=one.kind, data=one.data) for one in events]
        return ChangesTold(last=last, missed=missed, events=told)

    @router.get(
        "/audit",
        tags=["Operate"],
        summary="Who learned, changed and undid what",
        response_class=Response,
        responses=content_response("Lines of JSON", "application/x-ndjson"),
    )
    async def audit(
        after: Annotated[int, Query(ge=0, le=2**53, description="Lines known already.")] = 0,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000,
        engine: Engine = picked,
    ) -> Response:
        """Oldest first; examples are identified by number."""
        lines = await engine.look(lambda: engine.audit.read(after, limit))
        return Response(lines, media_type="application/x-ndjson")

    @router.get(
        "/backup",
        tags=["Operate"],
        summary="The whole memory as one file",
        response_class=StreamingResponse,
        responses=problem_responses(409) | content_response("A tar archive", "application/x-tar"),
    )
    async def backup(engine: Engine = picked) -> StreamingResponse:
        """A snapshot, while learning continues. The unpacked archive is a memory."""
        archive = await engine.look(engine.backups.make)
        engine.audit.add("copied", event=engine.classifier.memory.last)
        headers = {
            "content-length": str(archive.size),
            "content-disposition": 'attachment; filename="memory.tar"',
        }
        return StreamingResponse(archive.parts(), 200, headers, "application/x-tar")

    return router
