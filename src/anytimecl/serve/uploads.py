"""Request bodies: JSON with base64 images, or forms with files."""

from __future__ import annotations

import base64
import binascii
import functools
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
from anytimecl.serve.schemas import IMAGES, LABELS, Asked, problem_responses

Model = TypeVar("Model", bound=Asked)
PARTS = 300_000  # of JSON: three times those of 64 records with all candidates allowed
KEYS = 10_000
SLICE = 1 << 20  # bytes
_KEY = re.compile(rb'"\s*:')
_DATA_URL = re.compile(r"data:[\w.+/-]*(;[\w.+=-]+)*;base64,", re.ASCII)


async def read(
    request: Request, model: type[Model], files: str
) -> tuple[Model, list[bytes | ImageError]]:
    """The request and its images, each as bytes or as an error.

    `files` names the field with images.
    """
    kind = _kind(request)
    if kind == "application/json":
        asked = parse(model, await whole_body(request))
        given = getattr(asked, files)
        texts = given if isinstance(given, list) else [given]
        setattr(asked, files, type(given)())  # else the text is kept as long as the request
        return asked, [base64_or_error(text) for text in texts]
    if kind == "multipart/form-data":
        form = await _parse_form(request)
        try:
            return await _from_form(form, model, files)
        finally:
            await form.close()
    raise Problem(415, "Send application/json or multipart/form-data.", accept="application/json")


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


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
    body = await whole_body(request)
    if body and _kind(request) != "application/json":
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
    form: FormData, model: type[Model], files: str
) -> tuple[Model, list[bytes | ImageError]]:
    properties = _properties(model)
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
        elif _is_list(properties.get(name, {})):
            values[name] = entries
        elif len(entries) > 1:
            raise Problem(422, f"{name[:60]!r} comes more than once.")
        else:
            values[name] = entries[0]
    # The images need no validation as text.
    many = _is_list(properties[files])
    if not many and len(images) > 1:
        raise Problem(422, f"{files}: send one file.")
    stand_in: Any = ["file"] * len(images) if many else "file"
    try:
        asked = model.model_validate(values | ({files: stand_in} if images else {}))
    except ValidationError as error:
        raise of_validation(error) from None
    return asked, images


@functools.cache
def _properties(model: type[Asked]) -> dict[str, Any]:
    """The fields of a request as JSON schemas."""
    return dict(model.model_json_schema()["properties"])


def _is_list(field: Mapping[str, Any]) -> bool:
    """Whether a field of a JSON schema, or one of its alternatives, is a list."""
    return any(kind.get("type") == "array" for kind in (field, *field.get("anyOf", ())))


# Descriptions of routes for OpenAPI


def takes(model: type[Asked], files: str | None = None, *, required: bool = True) -> dict[str, Any]:
    """Options of a route with a body: JSON; with `files`, the field of images, also a form."""
    plain = model.model_json_schema()
    inlined = plain.pop("$defs", {})
    for field in plain["properties"].values():
        if name := field.get("items", {}).get("$ref", "").rpartition("/")[2]:
            field["items"] = inlined[name]
    content = {"application/json": {"schema": plain, "example": plain["examples"][0]}}
    if files is not None:
        content["multipart/form-data"] = {
            "schema": _as_form(plain, files),
            "encoding": {files: {"contentType": "image/png, image/jpeg"}},
        }
    return {
        "responses": problem_responses(409, 413, 415),
        "openapi_extra": {"requestBody": {"required": required, "content": content}},
    }


def _as_form(plain: Mapping[str, Any], files: str) -> dict[str, Any]:
    """The schema of a form from that of JSON: no null, since fields are left out."""
    form = {**plain, "properties": dict(plain["properties"])}
    form.pop("examples")
    file = {"type": "string", "format": "binary"}
    many = {"type": "array", "items": file, "minItems": 1, "maxItems": IMAGES}
    form["properties"][files] = many if _is_list(plain["properties"][files]) else file
    for name, field in form["properties"].items():
        kinds = [kind for kind in field.get("anyOf", ()) if kind.get("type") != "null"]
        if kinds:
            form["properties"][name] = {**kinds[0], "description": field.get("description", "")}
    return form
