"""A client for the service that needs only the standard library."""

from __future__ import annotations

from anytimecl.client._async import AsyncClient
from anytimecl.client._client import Client
from anytimecl.client._told import (
    Answer,
    FileTaught,
    Job,
    Lesson,
    Record,
    Recorded,
    ServiceError,
    Taught,
)

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "FileTaught",
    "Job",
    "Lesson",
    "Record",
    "Recorded",
    "ServiceError",
    "Taught",
]
