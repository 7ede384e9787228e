"""Logs as text or JSON, each line with its request id.

Labels, images and tokens are never logged; requests are logged by route.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from datetime import UTC, datetime
from typing import Any, Literal

from anytimecl.serve.asking import ASKER

Format = Literal["text", "json"]
access = logging.getLogger("anytimecl.access")


class JsonFormatter(logging.Formatter):
    """One JSON object per line.

    >>> record = logging.makeLogRecord({"msg": "hello", "levelname": "INFO", "created": 0})
    >>> JsonFormatter().format(record)
    '{"time": "1970-01-01T00:00:00.000+00:00", "level": "INFO", "message": "hello"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        """Override of logging's."""
        told: dict[str, Any] = {
            "time": moment(record.created),
            "level": record.levelname,
            "message": record.getMessage(),
        }
        if request := _request(record):
            told["request"] = request
        told.update(getattr(record, "fields", {}))
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told)


class TextFormatter(logging.Formatter):
    """One line, with the request id at its end."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Override of logging's."""
        told = dict(getattr(record, "fields", {}))
        if request := _request(record):
            told["request"] = request
        line, *rest = super().format(record).split("\n")
        more = " ".join([line, *(f"{name}={value}" for name, value in told.items())])
        return "\n".join([more, *rest])


def _request(record: logging.LogRecord) -> str:
    return str(getattr(record, "request", "") or ASKER.get().request)


def set_up(kind: Format, *, access_log: bool) -> None:
    """Configure logging of the process, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    access.setLevel(logging.INFO if access_log else logging.WARNING)
    logging.captureWarnings(True)  # warnings of threads are not shown otherwise
    warnings.simplefilter("default")
    # Clients that send broken or incomplete forms could fill the log with these.
    warnings.simplefilter("ignore", ResourceWarning)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)


def moment(seconds: float) -> str:
    """A time in ISO 8601, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
