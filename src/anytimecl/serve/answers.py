"""Results of the classifier as response models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from anytimecl import __version__
from anytimecl.errors import AnytimeError
from anytimecl.prediction import Prediction
from anytimecl.serve.engine import Engine
from anytimecl.serve.history import WINDOW
from anytimecl.serve.jobs import Job
from anytimecl.serve.lessons import Taught
from anytimecl.serve.problems import Problem, of_error
from anytimecl.serve.schemas import (
    ImageRefused,
    JobTold,
    LabelTold,
    LearnBatchTold,
    LearnTold,
    LessonTold,
    OutcomeTold,
    PredictionTold,
    Score,
    StatsTold,
)

SHOWN = 500  # outcomes in the page's chart


def prediction_told(prediction: Prediction, top_k: int, image: str | None = None) -> PredictionTold:
    """The `top_k` best labels, with each model's probability."""
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
        image=image,
    )


def learned_told(taught: Taught) -> LearnTold:
    """Result of learning one image."""
    before = None
    if taught.outcome is not None:
        _, blended, tuned, original = taught.outcome
        before = OutcomeTold(blended=blended, tuned=tuned, original=original)
    return LearnTold(
        id=taught.id,
        label=taught.label,
        repeated=taught.repeated,
        replaced=taught.replaced,
        event=taught.event,
        before=before,
    )


def batch_told(taught: Sequence[Taught | Exception]) -> LearnBatchTold:
    """Results of a batch; raises if nothing was accepted because the queue was full."""
    failed = [_problem(one) for one in taught if isinstance(one, Exception)]
    if len(failed) == len(taught) and failed[0].status in (429, 503):
        raise failed[0]
    return LearnBatchTold(examples=[_lesson(index, one) for index, one in enumerate(taught)])


def _lesson(index: int, taught: Taught | Exception) -> LessonTold:
    if isinstance(taught, Exception):
        problem = _problem(taught)
        return LessonTold(
            index=index,
            state="later" if problem.status in (429, 503) else "refused",
            id=None,
            label=None,
            before=None,
            status=problem.status,
            detail=problem.detail,
        )
    learned = learned_told(taught)
    return LessonTold(
        index=index,
        state="repeated" if taught.repeated else "learned",
        id=learned.id,
        label=learned.label,
        before=learned.before,
        status=None,
        detail=None,
    )


def _problem(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, AnytimeError):
        return of_error(error)
    raise error


def none_good(errors: list[ImageRefused]) -> Problem:
    """The problem that none of several images can be decoded."""
    problem = Problem(422, errors[0].detail)
    problem.more["errors"] = [one.model_dump() for one in errors]
    return problem


def labels_told(engine: Engine) -> list[LabelTold]:
    """In order of first appearance."""
    known = engine.classifier.stats()
    return [LabelTold(label=label, **stats._asdict()) for label, stats in known.items()]


def job_told(job: Job) -> JobTold:
    """State of a job."""
    return JobTold(**dataclasses.asdict(job))


def stats_told(engine: Engine) -> StatsTold:
    """Statistics of a memory and the service."""
    accuracy = engine.history.accuracy()
    job = engine.jobs.latest()
    return StatsTold(
        version=__version__,
        model=engine.classifier.backbone.spec.name,
        fingerprint=engine.classifier.backbone.spec.fingerprint,
        codec=engine.classifier.settings.name_of("codec"),
        keeps_images=engine.keeps_images,
        examples=len(engine.classifier),
        labels=labels_told(engine),
        accuracy=None
        if accuracy is None
        else dict(zip(("blended", "tuned", "original"), accuracy, strict=True)),
        outcomes=[[int(value) for value in one] for one in engine.history.latest(SHOWN)],
        window=WINDOW,
        waiting_images=len(engine.intake.encoder),
        waiting_changes=len(engine.turns),
        job=None if job is None else job_told(job),
    )
