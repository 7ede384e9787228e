"""HTTP routes to start, list, follow and cancel jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import StreamingResponse

from anytimecl.serve.asking import ASKER
from anytimecl.serve.consolidating import job_data
from anytimecl.serve.engine import Engine
from anytimecl.serve.events import HEARTBEAT, Listener, message
from anytimecl.serve.problems import Problem
from anytimecl.serve.schemas import ConsolidateAsked, JobsTold, JobTold, problem_responses
from anytimecl.serve.uploads import json_body, parse

JobId = Annotated[str, Path(max_length=64)]
EVENT_STREAM: dict[str, Any] = {
    "description": "Server-sent events",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}


def add(router: APIRouter, picked: Any) -> None:
    """Add the routes; `picked` is the dependency that finds the memory of a request."""

    @router.post(
        "/consolidate",
        tags=["Jobs"],
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
    async def consolidate(request: Request, engine: Engine = picked) -> JobTold:
        """Starts a job and returns at once. Predictions continue; learn requests wait."""
        body = await json_body(request)
        asked = parse(ConsolidateAsked, body) if body else ConsolidateAsked()
        return JobTold(**job_data(engine.consolidate(asked.epochs)))

    @router.get("/jobs", tags=["Jobs"], summary="Every job", responses=problem_responses(422))
    async def jobs(engine: Engine = picked) -> JobsTold:
        """Newest first; jobs of this process only."""
        return JobsTold(jobs=[JobTold(**job_data(one)) for one in engine.jobs.all()])

    @router.delete(
        "/jobs/{job}",
        tags=["Jobs"],
        status_code=202,
        summary="Cancel a job",
        responses=problem_responses(404, 409, 422),
    )
    async def cancel(job: JobId, engine: Engine = picked) -> JobTold:
        """It ends soon, and the model stays as it was before the job."""
        found = engine.cancel(job)
        if found is None:
            raise Problem(404, "There is no such job; a restart forgets them.")
        if found.over:
            raise Problem(409, f"The job is over: it is {found.state}.")
        return JobTold(**job_data(found))

    @router.get(
        "/jobs/{job}",
        tags=["Jobs"],
        summary="Where a job stands",
        responses=problem_responses(404, 422),
    )
    async def job(job: JobId, engine: Engine = picked) -> JobTold:
        """Jobs of this process only."""
        found = engine.jobs.get(job)
        if found is None:
            raise Problem(404, "There is no such job; a restart forgets them.")
        return JobTold(**job_data(found))

    @router.get(
        "/jobs/{job}/events",
        tags=["Jobs"],
        summary="Follow a job",
        response_class=StreamingResponse,
        responses=problem_responses(404, 422) | {200: EVENT_STREAM},
    )
    async def job_events(job: JobId, engine: Engine = picked) -> StreamingResponse:
        """An event for each change, until the job ends."""
        if engine.jobs.get(job) is None:
            raise Problem(404, "There is no such job; a restart forgets them.")
        place = engine.broadcast.join()
        return StreamingResponse(_follow(engine, job, place), media_type="text/event-stream")


async def _follow(
    engine: Engine, identity: str, place: Listener, pause: float = 0.2
) -> AsyncIterator[bytes]:
    """`place` is held while this runs."""
    told, quiet, allowed = None, 0.0, ASKER.get().allowed
    while allowed() and (job := engine.jobs.get(identity)) is not None:
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
