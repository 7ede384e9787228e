"""Request and response models of the routes in `curation`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from anytimecl.serve.schemas import LABELS, SMALL_PNG, Asked, Count, Event, Image, Label, example

PAGE = 200  # examples per page at most
ORDERED = 1_000  # images
STEPS = 1_000  # changes undone by one request
CURSOR = r"^([0-9.e+-]{1,40}:)?[0-9]{1,18}$"


class LikeAsked(Asked):
    """An image, and a filter for the examples similar to it."""

    model_config = example({"image": SMALL_PNG, "limit": 10})

    image: Image
    label: Label | None = None
    after: str | None = Field(default=None, pattern=CURSOR)
    limit: Count = Field(default=50, ge=1, le=PAGE)


class OrderAsked(Asked):
    """Images predicted before with `remember`, and their candidate labels."""

    model_config = example({"images": ["0f" * 16], "labels": ["cat", "dog"]})

    images: list[Annotated[str, Field(pattern="^[0-9a-f]{32}$")]] = Field(
        min_length=1, max_length=ORDERED, description="As predictions that `remember` call them."
    )
    labels: list[Label] | None = Field(
        default=None, max_length=LABELS, description="That they may have, besides those learned."
    )


class OrderTold(BaseModel):
    """The images in the order in which to label them."""

    images: list[str] = Field(description="The most informative ones, then the others by doubt.")
    unknown: list[str] = Field(description="Not looked at of late: predict them again.")


class RelabelAsked(Asked):
    """An example's new label."""

    model_config = example({"label": "okapi"})

    label: Label


class UndoAsked(Asked):
    """How many changes to undo."""

    model_config = example({"steps": 1, "event": 17})

    steps: Count = Field(default=1, ge=1, le=STEPS)
    event: Event | None = Field(
        default=None,
        description="Only if nothing happened since this event of the memory; otherwise 409.",
    )


class RenameAsked(Asked):
    """A label's new name."""

    model_config = example({"old": "lama", "new": "llama"})

    old: Label
    new: Label


class MergeAsked(Asked):
    """Two labels to merge."""

    model_config = example({"source": "tabby", "into": "tabby cat"})

    source: Label
    into: Label


class ChoicesAsked(Asked):
    """Labels to offer, and labels to stop offering."""

    model_config = example({"add": ["cat", "dog"]})

    add: list[Label] = Field(default=[], max_length=LABELS)
    remove: list[Label] = Field(default=[], max_length=LABELS)


class ChoicesTold(BaseModel):
    """How the offered labels differ from the learned ones."""

    own: list[str] = Field(description="Offered, though not learned.")
    hidden: list[str] = Field(description="Learned, but not offered.")


class SaidTold(BaseModel):
    """The label that an expert predicts."""

    label: str
    probability: float


class ExampleTold(BaseModel):
    """A stored example."""

    id: int
    label: str
    source: str | None = Field(description="The name that it was learned under.")
    time: datetime | None = Field(description="When it was first learned.")
    says: dict[str, SaidTold] = Field(description="What each expert says of it now.")
    suspicion: float | None = Field(description="From 0 to 1; null where it was not asked for.")
    similarity: float | None = Field(description="Cosine to the image that was asked about.")
    thumbnail: bool = Field(description="Whether there is a small picture of it.")


class ExamplesTold(BaseModel):
    """A page of examples."""

    examples: list[ExampleTold]
    next: str | None = Field(description="Send it as `after` for the next page; null at the end.")
    total: int


class RelabelTold(BaseModel):
    """A relabelled example; the change is durable."""

    id: int
    label: str
    before: str
    event: int = Field(description="Of the memory; `POST /v1/undo` takes it.")


class UndoneTold(BaseModel):
    """One change that was undone."""

    act: str
    examples: list[int]
    label: str = Field(description="That the act had given.")
    before: str | None = Field(description="That they have again; null: they were new.")


class UndoTold(BaseModel):
    """Newest first."""

    undone: list[UndoneTold]


class ChangedTold(BaseModel):
    """How many examples were relabelled."""

    examples: int
    event: int = Field(description="Of the memory; `POST /v1/undo` takes it.")


Format = Literal["csv", "jsonl"]
