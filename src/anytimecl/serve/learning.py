"""Learning images: they are encoded together, and each is learned in its turn."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

from anytimecl.errors import AnytimeError, ImageError, LabelError
from anytimecl.memory import RequestKey
from anytimecl.serve import tracing
from anytimecl.serve.engine import Engine
from anytimecl.serve.fair import Ticket
from anytimecl.serve.history import Outcome
from anytimecl.serve.lessons import Lesson, ReadyLesson, Taught, cleaned, known, request_key
from anytimecl.serve.problems import Busy, Problem
from anytimecl.trainer import Learned

Learn = Callable[..., Learned]  # of label, candidates and key; the image is already bound
Seen = tuple[Learn, bytes | None]  # what learns an image, and its thumbnail


async def learn_one(engine: Engine, lesson: Lesson) -> Taught:
    """Learn an image; durable when this returns."""
    [taught] = await learn_many(engine, [lesson])
    if isinstance(taught, Exception):
        raise taught
    return taught


async def learn_many(engine: Engine, lessons: Sequence[Lesson]) -> list[Taught | Exception]:
    """Learn images in order, each in its turn; a result or an error for each.

    If the queue is full or the time is over, the errors of the rest ask to send them again.
    """
    told: dict[int, Taught | Exception] = {}
    ready: dict[int, ReadyLesson] = {}
    with engine.intake.ticket() as ticket:
        for at, lesson in enumerate(lessons):
            try:
                found = await _prepare(engine, lesson)
            except (ImageError, LabelError, Problem) as error:
                told[at] = error
            else:
                if isinstance(found, Taught):  # already learned: nothing to encode
                    told[at] = found
                else:
                    ready[at] = found
        looked = await _look(engine, [one.image for one in ready.values()], ticket)
    end = time.monotonic() + engine.options.learn_seconds
    for (at, one), seen in zip(ready.items(), looked, strict=True):
        if isinstance(seen, ImageError):
            told[at] = seen
        elif told and time.monotonic() > end:
            told[at] = Busy("The examples before it took too long; send it again.", 1)
        else:
            told[at] = await _in_turn(engine, one, *seen)
    return [told[at] for at in range(len(lessons))]


async def learn_compressed(
    engine: Engine,
    record: bytes,
    fingerprint: str,
    label: str,
    candidates: Sequence[str] | None,
    key: str,
) -> Taught:
    """Learn an image that was encoded elsewhere; durable when this returns."""
    name, chosen = cleaned(label, candidates)
    await engine.name(chosen or ())
    learn = functools.partial(engine.classifier.learn_compressed, record, fingerprint=fingerprint)
    unique = request_key(key, record, name, chosen)
    return await engine.in_turn(lambda: _teach(engine, learn, name, chosen, unique, None))


async def _prepare(engine: Engine, lesson: Lesson) -> ReadyLesson | Taught:
    """Validate a request; returns the earlier result if its key was used before."""
    if isinstance(lesson.image, ImageError):
        raise lesson.image
    name, chosen = cleaned(lesson.label, lesson.candidates)
    content = lesson.image if lesson.content is None else lesson.content
    key = await engine.answer(lambda: request_key(lesson.key, content, name, chosen))
    taught = await engine.answer(lambda: known(engine.classifier.memory, key, name))
    if taught is not None:
        return taught
    await engine.name(chosen or ())
    return ReadyLesson(lesson.image, name, chosen, key, lesson.source)


async def _look(engine: Engine, images: Sequence[bytes], ticket: Ticket) -> list[Seen | ImageError]:
    if not images:
        return []
    decoded = await engine.intake.decode(images, ticket, thumbnail=True)
    good = [one[0] for one in decoded if not isinstance(one, ImageError)]
    # A codec that stores images encodes them itself, and the memory makes their thumbnails.
    plain = engine.keeps_images or not good
    tokens = iter([] if plain else await engine.intake.encode(good, ticket, lesson=True))
    looked: list[Seen | ImageError] = []
    for image, one in zip(images, decoded, strict=True):
        if isinstance(one, ImageError):
            looked.append(one)
            continue
        thumbnail = one[1]
        learn: Learn = functools.partial(engine.classifier.learn_one, image)
        if not engine.keeps_images:
            learn = functools.partial(
                engine.classifier.learn_tokens, next(tokens), thumbnail=thumbnail
            )
        looked.append((learn, thumbnail))
    return looked


async def _in_turn(
    engine: Engine, one: ReadyLesson, learn: Learn, thumbnail: bytes | None
) -> Taught | Exception:
    learn = functools.partial(learn, source=one.source)
    try:
        return await engine.in_turn(
            lambda: _teach(engine, learn, one.label, one.candidates, one.key, thumbnail)
        )
    except (Problem, AnytimeError) as error:
        return error


def _teach(
    engine: Engine,
    learn: Learn,
    label: str,
    candidates: Sequence[str] | None,
    key: RequestKey | None,
    thumbnail: bytes | None,
) -> Taught:
    memory = engine.classifier.memory
    if (taught := known(memory, key, label)) is not None:
        return taught
    began, before = time.monotonic(), memory.last
    with tracing.span("learn"):
        learned = learn(label, candidates=candidates, key=key)
    event = memory.last
    if event == before:  # already learned with this label
        return Taught(learned.id, label, repeated=True, outcome=None)
    engine.metrics.learn.observe(time.monotonic() - began)
    engine.metrics.steps.inc()
    outcome = Outcome(*learned[:4])
    engine.history.add(outcome)
    if thumbnail is not None:
        engine.recent.add(learned.id, thumbnail)
    engine.audit.add("learned", example=learned.id)
    engine.broadcast.send("learned", {"id": learned.id, "label": label})
    return Taught(learned.id, label, False, outcome, learned.replaced, event)
