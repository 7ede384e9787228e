"""HTTP routes to browse and correct the stored examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response, StreamingResponse

from anytimecl.classifier import AnytimeClassifier
from anytimecl.errors import ImageError, StoreError
from anytimecl.inbox import export_labels
from anytimecl.labels import clean_labels
from anytimecl.review import StoredExample
from anytimecl.serve.curated import (
    CURSOR,
    PAGE,
    ChangedTold,
    ChoicesAsked,
    ChoicesTold,
    ExamplesTold,
    ExampleTold,
    Format,
    LikeAsked,
    MergeAsked,
    OrderAsked,
    OrderTold,
    RelabelAsked,
    RelabelTold,
    RenameAsked,
    SaidTold,
    UndoAsked,
    UndoneTold,
    UndoTold,
)
from anytimecl.serve.engine import Engine
from anytimecl.serve.leaving import OpenFile, scratch
from anytimecl.serve.problems import Problem
from anytimecl.serve.routes import ExampleId, Pick, new_router
from anytimecl.serve.schemas import Label, content_response, problem_responses
from anytimecl.serve.uploads import json_body, parse, read, takes


def make_router(prefix: str, pick: Pick) -> APIRouter:
    """Routes about a memory's examples; `pick` is the dependency that finds the memory."""
    router = new_router(prefix)
    picked = Depends(pick)
    conflict = problem_responses(409)

    @router.get("/examples", tags=["Know"], summary="Look through the examples", responses=conflict)
    async def examples(
        label: Annotated[Label | None, Query()] = None,
        source: Annotated[str | None, Query(min_length=1, max_length=200)] = None,
        suspicious: bool = False,
        after: Annotated[str | None, Query(pattern=CURSOR, description="A page's `next`.")] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE)] = 50,
        engine: Engine = picked,
    ) -> ExamplesTold:
        """Newest first or most suspicious first, in pages."""
        asked = {"label": label, "source": source, "suspicious": suspicious}
        return await _page(engine, after=after, limit=limit, **asked)

    @router.post(
        "/examples/like",
        tags=["Know"],
        summary="Examples like an image",
        **takes(LikeAsked, "image"),
    )
    async def examples_like(request: Request, engine: Engine = picked) -> ExamplesTold:
        """Most similar first."""
        asked, [image] = await read(request, LikeAsked, "image")
        with engine.intake.ticket() as ticket:
            [looked] = await engine.intake.decode([image], ticket)
            if isinstance(looked, ImageError):
                raise looked
            [tokens] = await engine.intake.encode([looked[0]], ticket)
        rest = {"label": asked.label, "after": asked.after, "limit": asked.limit}
        return await _page(engine, like=tokens, **rest)

    @router.post(
        "/order", tags=["Predict"], summary="Which images to label first", **takes(OrderAsked)
    )
    async def order(request: Request, engine: Engine = picked) -> OrderTold:
        """By active learning: the most informative image first, as in the inbox."""
        asked = parse(OrderAsked, await json_body(request))
        labels = clean_labels(asked.labels) if asked.labels else []
        await engine.name(labels)
        found = await engine.look(lambda: engine.looked_at.order(asked.images, labels))
        known = set(found)
        unknown = [key for key in dict.fromkeys(asked.images) if key not in known]
        return OrderTold(images=found, unknown=unknown)

    @router.get(
        "/examples/{example}/thumbnail",
        tags=["Know"],
        summary="A small picture of an example",
        response_class=Response,
        responses=content_response("A WebP file", "image/webp"),
    )
    async def thumbnail(example: ExampleId, engine: Engine = picked) -> Response:
        """If the memory stores thumbnails, or the image was learned recently."""
        found = await engine.answer(lambda: _thumbnail(engine, example))
        if found is None:
            raise Problem(404, f"There is no picture of example {example}.")
        return Response(found, media_type="image/webp")

    @router.post(
        "/examples/{example}/label",
        tags=["Learn"],
        summary="Give an example another label",
        **takes(RelabelAsked),
    )
    async def relabel(example: ExampleId, request: Request, engine: Engine = picked) -> RelabelTold:
        """Durable when the response arrives; the next prediction uses it."""
        asked = parse(RelabelAsked, await json_body(request))

        def work() -> RelabelTold:
            _check_known(engine, example)
            done = engine.classifier.relabel(example, asked.label)
            event = tell_change(engine, "relabelled", example=example)
            return RelabelTold(**done._asdict(), event=event)

        return await engine.in_turn(work)

    @router.post("/undo", tags=["Learn"], summary="Take back the latest acts", **takes(UndoAsked))
    async def undo(request: Request, engine: Engine = picked) -> UndoTold:
        """Undoes learned images, relabelling, renaming and merging. Forgetting is permanent."""
        asked = parse(UndoAsked, await json_body(request) or b"{}")

        def work() -> UndoTold:
            if asked.event is not None and asked.event != engine.classifier.memory.last:
                raise Problem(409, "Something else happened since; nothing was undone.")
            try:
                undone = engine.classifier.undo(asked.steps)
            except StoreError as error:
                raise Problem(409, str(error)) from None
            tell_change(engine, "undid", steps=len(undone))
            return UndoTold(undone=[UndoneTold(**one._asdict()) for one in undone])

        return await engine.in_turn(work)

    @router.post(
        "/labels/rename", tags=["Learn"], summary="Call a label otherwise", **takes(RenameAsked)
    )
    async def rename_label(request: Request, engine: Engine = picked) -> ChangedTold:
        """Renames it in all of its examples, atomically."""
        asked = parse(RenameAsked, await json_body(request))
        return await _change(engine, "renamed", lambda to: to.rename_label(asked.old, asked.new))

    @router.post(
        "/labels/merge", tags=["Learn"], summary="Make two labels one", **takes(MergeAsked)
    )
    async def merge_labels(request: Request, engine: Engine = picked) -> ChangedTold:
        """Relabels all examples of `source` as `into`, atomically."""
        asked = parse(MergeAsked, await json_body(request))
        return await _change(engine, "merged", lambda to: to.merge_labels(asked.source, asked.into))

    @router.get("/choices", tags=["Know"], summary="Labels to choose from", responses=conflict)
    async def choices(engine: Engine = picked) -> ChoicesTold:
        """Offered on the page besides the learned labels; predictions do not use them."""
        return ChoicesTold(**engine.choices.told()._asdict())

    @router.post(
        "/choices",
        tags=["Learn"],
        summary="Change the labels to choose from",
        **takes(ChoicesAsked),
    )
    async def choose(request: Request, engine: Engine = picked) -> ChoicesTold:
        """Stored with the memory, for all users; nothing is learned."""
        asked = parse(ChoicesAsked, await json_body(request))
        made = await engine.answer(
            lambda: engine.choices.change(
                asked.add, asked.remove, taught=frozenset(engine.classifier.labels)
            )
        )
        engine.audit.add("chose", added=len(asked.add), removed=len(asked.remove))
        engine.broadcast.send("changed", {})
        return ChoicesTold(**made._asdict())

    @router.get(
        "/export",
        tags=["Know"],
        summary="Every label as a file",
        response_class=StreamingResponse,
        responses=conflict | content_response("A file", "text/csv", "application/jsonl"),
    )
    async def export(
        form: Annotated[Format, Query(alias="format")] = "csv", engine: Engine = picked
    ) -> StreamingResponse:
        """Each example with its label, source and time."""
        kind = "text/csv; charset=utf-8" if form == "csv" else "application/jsonl"

        def write() -> OpenFile:
            with scratch() as folder:
                path = folder / "labels"
                export_labels(engine.classifier, path, form)
                return OpenFile(path)

        told = {"content-disposition": f'attachment; filename="labels.{form}"'}
        return StreamingResponse((await engine.look(write)).parts(), 200, told, kind)

    return router


async def _page(engine: Engine, **asked: Any) -> ExamplesTold:
    def look() -> ExamplesTold:
        try:
            found = engine.classifier.examples(**asked)
        except StoreError as error:
            if asked["after"] is None:
                raise
            raise Problem(409, f"after: {error}") from None
        told = [_told(engine, one) for one in found.examples]
        return ExamplesTold(examples=told, next=found.next, total=found.total)

    return await engine.look(look)


def _told(engine: Engine, one: StoredExample) -> ExampleTold:
    says = {
        expert: SaidTold(label=label, probability=probability)
        for expert, (label, probability) in one.says.items()
    }
    thumbnail = _thumbnail(engine, one.id) is not None
    return ExampleTold(**(vars(one) | {"says": says, "thumbnail": thumbnail}))


def _thumbnail(engine: Engine, example: int) -> bytes | None:
    """The thumbnail stored in the memory, or else the one in RAM."""
    return engine.classifier.thumbnail(example) or engine.recent.thumbnail(example)


async def _change(
    engine: Engine, action: str, change: Callable[[AnytimeClassifier], int]
) -> ChangedTold:
    def work() -> ChangedTold:
        examples = change(engine.classifier)
        event = tell_change(engine, action, examples=examples)
        return ChangedTold(examples=examples, event=event)

    return await engine.in_turn(work)


def _check_known(engine: Engine, example: int) -> None:
    memory = engine.classifier.memory
    with memory.reading():
        place = memory.records.find(example)
    if place is None or not place.label:  # unknown, or undone
        raise Problem(404, f"There is no example {example}.")


def tell_change(engine: Engine, action: str, **what: Any) -> int:
    """Notify listeners and the audit log of the memory's last event; returns its number."""
    event = engine.classifier.memory.last
    engine.audit.add(action, event=event, **what)
    engine.broadcast.send("changed", {"event": event})
    return event
