"""Request bodies: JSON with base64 images, or forms with files."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from anytimecl.errors import ImageError
from anytimecl.serve.problems import Problem, of_validation
from anytimecl.serve.schemas import IMAGES, LABELS, Asked, LearnBatchAsked

Model = TypeVar("Model", bound=Asked)
PARTS = 300_000  # of JSON: three times those of 64 records with all candidates allowed
KEYS = 10_000
SLICE = 1 << 20  # bytes
_KEY = re.compile(rb'"\s*:')
_DATA_URL = re.compile(r"data:[\w.+/-]*(;[\w.+=-]+)*;base64,", re.ASCII)


async def read(
    request: Request, model: type[Model], files: str, lists: frozenset[str]
) -> tuple[Model, list[bytes | ImageError]]:
    """The request and its images, each as bytes or as an error.

    `files` names the field with images; in a form, the fields in `lists` may occur several times.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        asked = parse(model, await whole_body(request))
        given = getattr(asked, files)
        texts = given if isinstance(given, list) else [given]
        setattr(asked, files, type(given)())  # else the text is kept as long as the request
        return asked, [base64_or_error(text) for text in texts]
    if kind == "multipart/form-data":
        form = await _parse_form(request)
        try:
            return await _from_form(form, model, files, lists)
        finally:
            await form.close()
    raise Problem(415, "Send application/json or multipart/form-data.", accept="application/json")


class _InMemory(MultiPartParser):
    """As `request.form()`, which writes large files to disk: that may be full or read-only."""

    spool_max_size = 0  # always in RAM; the guard limits the size


async def _parse_form(request: Request) -> FormData:
    parser = _InMemory(request.headers, request.stream(), max_files=IMAGES, max_fields=LABELS + 10)
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise Problem(400, error.message) from None


async def whole_body(request: Request) -> bytes:
    """As `request.body()`, which would keep it as long as the request."""
    return b"".join([part async for part in request.stream()])


async def json_body(request: Request) -> bytes:
    """A body that must be JSON or empty."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await whole_body(request)
    if body and kind != "application/json":
        raise Problem(415, "Send application/json.", accept="application/json")
    return body


def check_json(body: bytes) -> None:
    """Reject JSON with too many parts: 32 MiB of `[],` take a gigabyte and seconds to parse."""
    parts = 0
    for start in range(0, len(body), SLICE):  # stops counting once it is too much
        piece = body[start : start + SLICE]
        parts += piece.count(b",") + piece.count(b"[") + piece.count(b"{")
        if parts > PARTS:
            break
    if parts > PARTS or sum(1 for _ in islice(_KEY.finditer(body), KEYS + 1)) > KEYS:
        raise Problem(413, "The JSON has more parts than any request needs: send it in several.")


def parse(model: type[Model], body: bytes) -> Model:
    """Validate JSON strictly: strings are not converted to numbers."""
    check_json(body)
    try:
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise of_validation(error) from None


def from_base64(text: str) -> bytes:
    """The bytes of a base64 image.

    >>> from_base64("data:image/png;base64,aGk=")
    b'hi'
    """
    found = _DATA_URL.match(text)
    try:
        return base64.b64decode(text[found.end() if found else 0 :], validate=True)
    except (binascii.Error, ValueError):
        raise ImageError("The image is not base64.") from None


def base64_or_error(text: str) -> bytes | ImageError:
    """As `from_base64`, with an error instead of an exception."""
    try:
        return from_base64(text)
    except ImageError as error:
        return error


async def _from_form(
    form: FormData, model: type[Model], files: str, lists: frozenset[str]
) -> tuple[Model, list[bytes | ImageError]]:
    values: dict[str, Any] = {}
    images: list[bytes | ImageError] = []
    for name in form:
        entries = form.getlist(name)
        uploads = [entry for entry in entries if isinstance(entry, UploadFile)]
        if name == files:
            if len(uploads) != len(entries):
                raise Problem(422, f"{files}: send files, not text.")
            images = [await upload.read() for upload in uploads]
        elif uploads:
            raise Problem(422, f"{name[:60]!r} is no field for files; they go into {files!r}.")
        else:
            values[name] = entries if name in lists else entries[-1]
            if name not in lists and len(entries) > 1:
                raise Problem(422, f"{name[:60]!r} comes more than once.")
    # The images need no validation as text.
    one = model.model_fields[files].annotation is str
    if one and len(images) > 1:
        raise Problem(422, f"{files}: send one file.")
    stand_in: Any = "file" if one else ["file"] * len(images)
    try:
        asked = model.model_validate(values | ({files: stand_in} if images else {}))
    except ValidationError as error:
        raise of_validation(error) from None
    return asked, images


def body_schema(model: type[Asked], files: str, *, many: bool) -> Mapping[str, Any]:
    """Request body for OpenAPI, as JSON and as a form."""
    plain = model.model_json_schema(ref_template="#/components/schemas/{model}")
    form = {**plain, "properties": dict(plain["properties"])}
    form.pop("examples", None)
    file = {"type": "string", "format": "binary"}
    form["properties"][files] = (
        {"type": "array", "items": file, "minItems": 1, "maxItems": IMAGES} if many else file
    )
    for name, field in form["properties"].items():  # a form has no null: fields are left out
        kinds = [kind for kind in field.get("anyOf", ()) if kind.get("type") != "null"]
        if kinds:
            form["properties"][name] = {**kinds[0], "description": field.get("description", "")}
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": plain, "example": plain["examples"][0]},
                "multipart/form-data": {
                    "schema": form,
                    "encoding": {files: {"contentType": "image/png, image/jpeg"}},
                },
            },
        }
    }


def json_schema(model: type[Asked]) -> dict[str, Any]:
    """Request body for OpenAPI: JSON, with an example."""
    plain = model.model_json_schema()
    content = {"application/json": {"schema": plain, "example": plain["examples"][0]}}
    return {"requestBody": {"required": True, "content": content}}


def batch_schema() -> dict[str, Any]:
    """Request body for OpenAPI, with the model of an example inlined."""
    plain = LearnBatchAsked.model_json_schema()
    plain["properties"]["examples"]["items"] = plain.pop("$defs")["LessonAsked"]
    content = {"application/json": {"schema": plain, "example": plain["examples"][0]}}
    return {"requestBody": {"required": True, "content": content}}
