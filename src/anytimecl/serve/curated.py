"""What requests about stored examples look like, and their answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from anytimecl.serve.schemas import LABELS, SMALL_PNG, Asked, Count, Event, Image, Label

PAGE = 200  # examples in one answer at most
ORDERED = 1_000  # images
STEPS = 1_000  # acts undone by one request
CURSOR = r"^([0-9.e+-]{1,40}:)?[0-9]{1,18}$"


class LikeAsked(Asked):
    """An image, and which of its likes are wanted."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"image": SMALL_PNG, "limit": 10}]})

    image: Image
    label: Label | None = None
    after: str | None = Field(default=None, pattern=CURSOR)
    limit: Count = Field(default=50, ge=1, le=PAGE)


class OrderAsked(Asked):
    """Images that were looked at of late, and what they may be."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"images": ["0f" * 16], "labels": ["cat", "dog"]}]}
    )

    images: list[Annotated[str, Field(pattern="^[0-9a-f]{32}$")]] = Field(
        min_length=1, max_length=ORDERED, description="As predictions that `remember` call them."
    )
    labels: list[Label] | None = Field(
        default=None, max_length=LABELS, description="That they may have, besides those taught."
    )


class OrderTold(BaseModel):
    """Which to label first."""

    images: list[str] = Field(description="What would teach most, then the others by doubt.")
    unknown: list[str] = Field(description="Not looked at of late: predict them again.")


class RelabelAsked(Asked):
    """What an example is."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"label": "okapi"}]})

    label: Label


class UndoAsked(Asked):
    """How much to take back."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"steps": 1, "event": 17}]})

    steps: Count = Field(default=1, ge=1, le=STEPS)
    event: Event | None = Field(
        default=None,
        description="Only if nothing happened since this event of the memory; otherwise 409.",
    )


class RenameAsked(Asked):
    """A label by another name."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"old": "lama", "new": "llama"}]})

    old: Label
    new: Label


class MergeAsked(Asked):
    """Two labels that are one."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"source": "tabby", "into": "tabby cat"}]}
    )

    source: Label
    into: Label


class ChoicesAsked(Asked):
    """Labels to choose from, and labels to choose no more."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"add": ["cat", "dog"]}]})

    add: list[Label] = Field(default=[], max_length=LABELS)
    remove: list[Label] = Field(default=[], max_length=LABELS)


class ChoicesTold(BaseModel):
    """Besides every label that was taught."""

    own: list[str] = Field(description="Named, though not taught.")
    hidden: list[str] = Field(description="Taught, but not chosen from.")


class SaidTold(BaseModel):
    """The label that an expert would give."""

    label: str
    probability: float


class ExampleTold(BaseModel):
    """A stored example."""

    id: int
    label: str
    source: str | None = Field(description="The name that it was taught under.")
    time: datetime | None = Field(description="When it was first taught.")
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
    """The example has its new label on disk."""

    id: int
    label: str
    before: str
    event: int = Field(description="Of the memory; `POST /v1/undo` takes it.")


class UndoneTold(BaseModel):
    """One act that was taken back."""

    act: str
    examples: list[int]
    label: str = Field(description="That the act had given.")
    before: str | None = Field(description="That they have again; null: they were new.")


class UndoTold(BaseModel):
    """Newest first."""

    undone: list[UndoneTold]


class ChangedTold(BaseModel):
    """How many examples have another label now."""

    examples: int
    event: int = Field(description="Of the memory; `POST /v1/undo` takes it.")


Format = Literal["csv", "jsonl"]
