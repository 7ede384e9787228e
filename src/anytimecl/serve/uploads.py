"""From the body of a request to what was asked: JSON with base64, or a form with files."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from anytimecl.serve.problems import Problem, of_validation
from anytimecl.serve.schemas import IMAGES, LABELS, Asked

Model = TypeVar("Model", bound=Asked)
_DATA_URL = re.compile(r"data:[\w.+/-]*(;[\w.+=-]+)*;base64,", re.ASCII)


async def read(
    request: Request, model: type[Model], files: str, lists: frozenset[str]
) -> tuple[Model, list[bytes]]:
    """The request, and its images.

    `files` names the field with images; of a form, the fields in `lists` may come several times.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        asked = parse(model, await request.body())
        given = getattr(asked, files)
        texts = given if isinstance(given, list) else [given]
        return asked, [from_base64(text, place) for place, text in enumerate(texts)]
    if kind == "multipart/form-data":
        async with request.form(max_files=IMAGES, max_fields=LABELS + 10) as form:
            return await _from_form(form, model, files, lists)
    raise Problem(415, "Send application/json or multipart/form-data.", accept="application/json")


def parse(model: type[Model], body: bytes) -> Model:
    """JSON, taken at its word: no text becomes a number."""
    try:
        return model.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise of_validation(error) from None


def from_base64(text: str, place: int) -> bytes:
    """The bytes of an image.

    >>> from_base64("data:image/png;base64,aGk=", 0)
    b'hi'
    """
    found = _DATA_URL.match(text)
    try:
        return base64.b64decode(text[found.end() if found else 0 :], validate=True)
    except (binascii.Error, ValueError):
        raise Problem(422, f"Image {place} is not base64.") from None


async def _from_form(
    form: FormData, model: type[Model], files: str, lists: frozenset[str]
) -> tuple[Model, list[bytes]]:
    values: dict[str, Any] = {}
    images = []
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
    # The images themselves need no check as text.
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
    """For the description: the same request in either form."""
    plain = model.model_json_schema(ref_template="#/components/schemas/{model}")
    form = {**plain, "properties": dict(plain["properties"])}
    form.pop("examples", None)
    file = {"type": "string", "format": "binary"}
    form["properties"][files] = (
        {"type": "array", "items": file, "minItems": 1, "maxItems": IMAGES} if many else file
    )
    for name, field in form["properties"].items():  # a form has no null: leave the field out
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
