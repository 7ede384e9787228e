"""Request and response models; the OpenAPI description is generated from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from anytimecl.labels import LONGEST
from anytimecl.prediction import THRESHOLD
from anytimecl.serve.jobs import State as JobState
from anytimecl.serve.rights import Right
from anytimecl.serve.tokens import MEMORY_NAME, TOKEN_NAME

IMAGES = 32  # per request
LABELS = 2_000  # per request
KEY = r"^[!-~]{1,200}$"  # printable ASCII: it is an HTTP header
SMALL_PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEUlEQVR4nGM8IafIgA0wYRUdtBIAQ/0A/tZjNb4AAAAA"
    "SUVORK5CYII="
)

# `clean_label` is what validates labels; a schema can express only this part.
_CONTROL = r"\x00-\x1f\x7f-\x9f"
VISIBLE = rf"^[^{_CONTROL}]*[^\s{_CONTROL}][^{_CONTROL}]*$"

Label = Annotated[
    str,
    Field(
        min_length=1,
        max_length=LONGEST,
        examples=["tabby cat"],
        json_schema_extra={"pattern": VISIBLE},
    ),
]
# In a batch: an invalid label is an error of its example only.
ItemLabel = Annotated[str, Field(min_length=1, max_length=LONGEST, examples=["tabby cat"])]
# Fail fast, since each of 100,000 invalid labels would be an error of its own.
ItemLabels = Annotated[list[ItemLabel], Field(fail_fast=True)]
CANDIDATES = Field(
    default=None,
    min_length=1,
    max_length=LABELS,
    description="Candidate labels, its own included; by default every label learned.",
)
ItemState = Annotated[
    Literal["learned", "repeated", "refused", "later"],
    Field(
        description="`repeated`: the key was known, nothing was learned again. `refused`: it will "
        "never be taken. `later`: it was not taken on; send it again."
    ),
]
MemoryName = Annotated[
    str,
    Field(
        pattern=f"^{MEMORY_NAME.pattern}$",
        examples=["cats"],
        description="1 to 64 small letters, digits, `-` and `_`.",
    ),
]
Image = Annotated[
    str,
    Field(
        min_length=1,
        description="The bytes of an image file in base64, or a data: URL of them.",
        json_schema_extra={"format": "byte"},
    ),
]


def _whole(value: object) -> object:
    """JSON numbers such as 2.0 are integers, too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Count = Annotated[int, BeforeValidator(_whole)]
Event = Annotated[int, Field(ge=0, le=2**53), BeforeValidator(_whole)]  # in a memory's journal
Probability = Annotated[float, Field(ge=0, le=1.001)]


class Asked(BaseModel):
    """A request; unknown fields are rejected."""

    model_config = ConfigDict(extra="forbid")


def example(of: dict[str, JsonValue]) -> ConfigDict:
    """Settings of a model with an example in its description."""
    return ConfigDict(json_schema_extra={"examples": [of]})


class PredictAsked(Asked):
    """Images to classify."""

    model_config = example({"images": [SMALL_PNG], "labels": ["cat", "dog"], "top_k": 2})

    images: list[Image] = Field(min_length=1, max_length=IMAGES)
    labels: list[Label] | None = Field(
        default=None, min_length=1, max_length=LABELS,
        description="What to choose from; without it, every label learned so far.",
    )  # fmt: skip
    top_k: Count = Field(
        default=5, ge=1, le=LABELS, description="How many labels to tell, best first."
    )
    threshold: float = Field(
        default=THRESHOLD, ge=0, le=1,
        description='Above this probability of "none of these", that is the answer.',
    )  # fmt: skip
    remember: bool = Field(
        default=False, description="Keep a vector of each in RAM for a while, for `POST /v1/order`."
    )


class LearnAsked(Asked):
    """One labelled image."""

    model_config = example({"image": SMALL_PNG, "label": "tabby cat"})

    image: Image
    label: Label
    candidates: list[Label] | None = CANDIDATES
    source: str | None = Field(
        default=None, min_length=1, max_length=200, description="What the image is called."
    )


class LessonAsked(LearnAsked):
    """One of several labelled images."""

    label: ItemLabel
    candidates: ItemLabels | None = CANDIDATES
    key: str | None = Field(
        default=None, pattern=KEY, description="A retry with the same key is learned once."
    )


class LearnBatchAsked(Asked):
    """Several labelled images, learned in this order."""

    model_config = example(
        {"examples": [{"image": SMALL_PNG, "label": "tabby cat", "key": "upload-17"}]}
    )

    examples: list[LessonAsked] = Field(min_length=1, max_length=IMAGES)


class ConsolidateAsked(Asked):
    """Options of a consolidation."""

    model_config = example({"epochs": 1})

    epochs: Count = Field(
        default=1, ge=1, le=100, description="How often to go through the memory."
    )


class Score(BaseModel):
    """A label's probabilities."""

    label: str
    blended: Probability
    tuned: Probability | None = Field(description="null where no label was ever learned")
    original: Probability


class PredictionTold(BaseModel):
    """The prediction for one image."""

    label: str = Field(examples=["tabby cat"], description='The likeliest, or "none of these".')
    probability: Probability
    none_of_these: Probability
    spoke: str = Field(examples=["gaussian"], description="The expert whose word weighs most.")
    scores: list[Score] = Field(description="Best first.")
    image: str | None = Field(
        default=None, description="What `POST /v1/order` knows it as, if it was to `remember` it."
    )


class ImageRefused(BaseModel):
    """An image that cannot be read."""

    index: int = Field(ge=0, description="Its place in the request, from 0.")
    detail: str


class PredictTold(BaseModel):
    """A prediction for each image, in order; null for one that is among the errors."""

    predictions: list[PredictionTold | None]
    errors: list[ImageRefused]


class OutcomeTold(BaseModel):
    """Whether each prediction was right before the image was learned."""

    blended: bool
    tuned: bool
    original: bool


class LearnTold(BaseModel):
    """A learned example, which is durable."""

    id: int
    label: str
    repeated: bool = Field(
        description="The key, or the image with this label, was known: nothing was learned again."
    )
    replaced: str | None = Field(description="The label that this image had before, if another.")
    event: int | None = Field(description="Of the memory; `POST /v1/undo` takes it.")
    before: OutcomeTold | None = Field(description="null for a repeated request")


class LessonTold(BaseModel):
    """Result of one of several images."""

    index: int = Field(ge=0, description="Its place in the request, from 0.")
    state: ItemState
    id: int | None
    label: str | None
    before: OutcomeTold | None
    status: int | None = Field(description="That it would have been answered with alone.")
    detail: str | None = Field(description="Why it was not learned.")


class LearnBatchTold(BaseModel):
    """In the order of the request."""

    examples: list[LessonTold]


class ForgotTold(BaseModel):
    """How many examples were forgotten."""

    forgotten: int


class LabelTold(BaseModel):
    """A label, with estimates from examples scored just before they were learned."""

    label: str
    examples: int
    tuned: float
    original: float
    weight: float = Field(description="Of the tuned model in the blend.")


class LabelsTold(BaseModel):
    """In order of first appearance."""

    labels: list[LabelTold]


class JobTold(BaseModel):
    """State of a job."""

    id: str
    kind: Literal["consolidate"]
    state: JobState
    done: int
    steps: int = Field(description="0 while it is not known")
    error: str | None


class JobsTold(BaseModel):
    """Newest first."""

    jobs: list[JobTold]


class StatsTold(BaseModel):
    """Statistics of a memory and the service."""

    version: str
    model: str
    fingerprint: str = Field(description="Of the model; what compresses for this memory needs it.")
    codec: str = Field(description="What this memory stores of an image.")
    keeps_images: bool = Field(description="Whether the memory stores images, or features alone.")
    examples: int
    labels: list[LabelTold]
    accuracy: dict[str, float] | None = Field(
        description="Of blended, tuned and original before the update, over the latest examples."
    )
    outcomes: list[list[int]] = Field(
        description="Of the latest examples: id; 1 where blended, tuned, original were right."
    )
    window: int
    waiting_images: int
    waiting_changes: int
    job: JobTold | None


class ChangeTold(BaseModel):
    """An event."""

    number: int
    kind: Literal["learned", "changed", "forgotten", "job"]
    data: dict[str, Any]


class ChangesTold(BaseModel):
    """Events since a given number."""

    last: int = Field(description="Ask for what comes after this the next time.")
    missed: bool = Field(description="Something is not told any more: ask for everything anew.")
    events: list[ChangeTold]


class MemoryAsked(Asked):
    """A memory to create."""

    model_config = example({"name": "cats"})

    name: MemoryName


class MemoryTold(BaseModel):
    """A memory."""

    name: str
    right: Right = Field(description="That the token has for it.")
    open: bool = Field(description="Whether it is in RAM; one that is not opens when asked.")
    bytes: int = Field(description="On disk, checkpoint included.")


class MemoriesTold(BaseModel):
    """The memories that the token is valid for, the first one first."""

    memories: list[MemoryTold]


class TokenAsked(Asked):
    """A token to grant."""

    model_config = example({"name": "camera-7", "right": "write", "memories": ["cats"]})

    name: str = Field(pattern=f"^{TOKEN_NAME.pattern}$", description="For logs and the trail.")
    right: Right
    memories: list[MemoryName] | None = Field(
        default=None, min_length=1, max_length=100,
        description="Those it is for; without it, all. `admin` is always for all.",
    )  # fmt: skip


class TokenTold(BaseModel):
    """A token, without its secret."""

    name: str
    right: Right
    memories: list[str] | None = Field(description="null: all")
    revocable: bool = Field(description="Others are in the operator's file or environment.")


class GrantedTold(TokenTold):
    """A new token. The secret cannot be read later."""

    token: str


class TokensTold(BaseModel):
    """The operator's tokens, then granted ones."""

    tokens: list[TokenTold]


class HealthTold(BaseModel):
    """Health status."""

    status: Literal["ok"]


class ProblemTold(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[ImageRefused] | None = Field(
        default=None, description="Where none of several images can be looked at."
    )


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For OpenAPI: the problems that a route may respond with, besides those of every route."""
    retry = {
        "Retry-After": {
            "description": "Seconds after which to ask again.",
            "schema": {"type": "integer", "minimum": 1},
        }
    }
    problem = {"schema": {"$ref": "#/components/schemas/ProblemTold"}}
    return {
        status: {
            "description": _WORDS[status],
            "headers": retry if status in (429, 503) else {},
            "content": {"application/problem+json": problem},
        }
        for status in sorted({*statuses, 400, 401, 403, 404, 408, 429, 500, 503})
    }


def content_response(told: str, *kinds: str) -> dict[int | str, dict[str, Any]]:
    """For OpenAPI: a response that is not JSON, and its media types."""
    return {200: {"description": told, "content": {kind: {} for kind in kinds}}}


_WORDS = {
    400: "The request cannot be read",
    401: "A token is needed",
    403: "The token, or the page that asks, may not do this",
    404: "There is no such thing",
    408: "The request came too slowly",
    409: "It does not go with what is stored or under way",
    413: "Too large",
    415: "Neither JSON nor multipart/form-data",
    422: "The request makes no sense",
    429: "Too many at once; nothing was taken on",
    500: "An error inside the service",
    503: "The service is stopping, or its disk or model fails",
}
