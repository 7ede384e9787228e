"""HTTP routes to start, list, follow and cancel jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.responses import StreamingResponse

from anytimecl.serve.answers import job_told
from anytimecl.serve.asking import ASKER
from anytimecl.serve.engine import Engine
from anytimecl.serve.events import HEARTBEAT, Listener, message
from anytimecl.serve.jobs import Job
from anytimecl.serve.problems import Problem
from anytimecl.serve.schemas import ConsolidateAsked, JobsTold, JobTold, problem_responses
from anytimecl.serve.uploads import json_body, parse, takes

JobId = Annotated[str, Path(max_length=64)]
EVENT_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


def add(router: APIRouter, picked: Any) -> None:
    """Add the routes; `picked` is the dependency that finds the memory of a request."""

    @router.post(
        "/consolidate",
        tags=["Jobs"],
        status_code=202,
        summary="Practise on the whole memory",
        **takes(ConsolidateAsked, required=False),
    )
    async def consolidate(request: Request, engine: Engine = picked) -> JobTold:
        """Starts a job and returns at once. Predictions continue; learn requests wait."""
        body = await json_body(request)
        asked = parse(ConsolidateAsked, body) if body else ConsolidateAsked()
        return job_told(engine.consolidate(asked.epochs))

    @router.get("/jobs", tags=["Jobs"], summary="Every job")
    async def jobs(engine: Engine = picked) -> JobsTold:
        """Newest first; jobs of this process only."""
        return JobsTold(jobs=[job_told(one) for one in engine.jobs.all()])

    @router.delete(
        "/jobs/{job}",
        tags=["Jobs"],
        status_code=202,
        summary="Cancel a job",
        responses=problem_responses(409),
    )
    async def cancel(job: JobId, engine: Engine = picked) -> JobTold:
        """It ends soon, and the model stays as it was before the job."""
        found = _found(engine, job)
        if found.over:
            raise Problem(409, f"The job is over: it is {found.state}.")
        engine.cancel(found)
        return job_told(found)

    @router.get("/jobs/{job}", tags=["Jobs"], summary="Where a job stands")
    async def job(job: JobId, engine: Engine = picked) -> JobTold:
        """Jobs of this process only."""
        return job_told(_found(engine, job))

    @router.get(
        "/jobs/{job}/events",
        tags=["Jobs"],
        summary="Follow a job",
        response_class=StreamingResponse,
        responses=EVENT_STREAM,
    )
    async def job_events(job: JobId, engine: Engine = picked) -> StreamingResponse:
        """An event for each change, until the job ends."""
        _found(engine, job)
        place = engine.broadcast.join()
        return StreamingResponse(_follow(engine, job, place), media_type="text/event-stream")


def _found(engine: Engine, identity: str) -> Job:
    if (job := engine.jobs.get(identity)) is None:
        raise Problem(404, "There is no such job; a restart forgets them.")
    return job


async def _follow(
    engine: Engine, identity: str, place: Listener, pause: float = 0.2
) -> AsyncIterator[bytes]:
    """`place` is held while this runs."""
    told, quiet, allowed = None, 0.0, ASKER.get().allowed
    while allowed() and (job := engine.jobs.get(identity)) is not None:
        if job != told:
            yield message("job", asdict(job))
            told, quiet = job, 0.0
        elif quiet >= HEARTBEAT:
            yield b": still here\n\n"
            quiet = 0.0
        if job.over or not engine.ready:
            return
        await asyncio.sleep(pause)
        quiet += pause
