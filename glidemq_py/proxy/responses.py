"""Responses: JSON, server-sent events, and errors, whose status depends on their type and never on their message."""

from __future__ import annotations

import dataclasses
import json as stdlib_json
from collections.abc import Mapping
from typing import Any, Final, cast

from starlette.exceptions import HTTPException
from starlette.responses import Response

from glidemq_py._core import json_text as json
from glidemq_py._core.checks import camel_case
from glidemq_py._core.logs import get_logger
from glidemq_py._web.checks import NotAllowedError, UnauthorizedError
from glidemq_py.errors import (
    BulkAddError,
    ClosedError,
    DuplicateJobError,
    FairKeyFullError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    PayloadTooLargeError,
    SerializationError,
    ServerOutOfMemoryError,
    WaitTimeoutError,
)

__all__ = [
    "INTERNAL", "BodyTimeoutError", "BodyTooLargeError", "MediaTypeError", "NotFoundError",
    "ResponseTooLargeError", "answer", "camel", "complaint", "encode", "frame", "refusal",
    "status_of",
]  # fmt: skip

_log = get_logger("glidemq_py.proxy")

_PAYLOADS: Final = frozenset(("data", "returnvalue", "progress", "result"))
"""Members of responses that hold values of users."""

_RESERVE: Final = 10
"""Levels that are kept free in each response, so that the limit for payloads does not depend on the endpoint."""


def answer(content: Any, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(encode(content), status, media_type="application/json")


def encode(content: Any) -> bytes:
    """Return the JSON of a response; payloads that are nested too deeply become text, listed in ``asText``."""
    try:
        return _dumps_below(_RESERVE, content).encode()
    except SerializationError:
        return json.dumps(_with_texts(content)).encode()


def _dumps_below(levels: int, content: Any) -> str:
    for _ in range(levels):
        content = [content]
    return json.dumps(content)[levels:-levels]


def _with_texts(content: Any) -> Any:
    if isinstance(content, (list, tuple)):
        return [_with_texts(each) for each in cast("list[Any]", content)]
    if not isinstance(content, Mapping):
        return content
    members = dict(cast("Mapping[str, Any]", content))
    texts: list[str] = list(members.get("asText", ()))
    for name, value in members.items():
        if name not in _PAYLOADS:
            members[name] = _with_texts(value)
        elif not _fits(value):
            members[name] = _text_of(value)
            texts.append(name)
    return {**members, "asText": texts} if texts else members


def _fits(payload: Any) -> bool:
    try:
        _dumps_below(2 * _RESERVE, payload)
    except SerializationError:
        return False
    return True


def _text_of(payload: Any) -> str:
    try:
        return stdlib_json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    except (RecursionError, TypeError, ValueError):
        return "nested too deeply"


def camel(value: Any) -> Any:
    """Return a dataclass as JSON with its members in camelCase."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {camel_case(field.name): camel(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [camel(each) for each in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {name: camel(each) for name, each in cast("Mapping[str, Any]", value).items()}
    return value


def frame(event: str | None, data: Any, entry: str | None = None) -> str:
    """Return the text of one server-sent event."""
    lines = [f"id: {entry}"] if entry else []
    if event:
        lines.append("event: " + " ".join(event.split()))
    return "\n".join([*lines, f"data: {encode(data).decode()}", "", ""])


# -- errors ----------------------------------------------------------------------------------------------------

INTERNAL: Final = "internal"
"""Error code of internal errors."""


class MediaTypeError(GlideMQError):
    """Raised when the content type of a request is not JSON."""


class BodyTimeoutError(GlideMQError):
    """Raised when a request body is not complete in time."""


class ResponseTooLargeError(GlideMQError):
    """Raised when a response that has no pages exceeds `max_response`."""


class NotFoundError(GlideMQError):
    """Raised when the requested object does not exist."""


class BodyTooLargeError(GlideMQError):
    """Raised when a request body exceeds `max_body`."""


_STATUSES: Final[tuple[tuple[type[GlideMQError], int, str], ...]] = (
    (PayloadTooLargeError, 413, "too_large"),
    (BodyTooLargeError, 413, "too_large"),
    (ResponseTooLargeError, 413, "too_large"),
    (MediaTypeError, 415, "media_type"),
    (BodyTimeoutError, 408, "timeout"),
    (UnauthorizedError, 401, "unauthorized"),
    (NotAllowedError, 403, "forbidden"),
    (NotFoundError, 404, "not_found"),
    (JobNotFoundError, 404, "not_found"),
    (GlideMQValidationError, 400, "invalid"),
    (JobStateError, 400, "job_state"),
    (DuplicateJobError, 409, "duplicate"),
    (FairKeyFullError, 429, "fair_key_full"),
    (WaitTimeoutError, 504, "timeout"),
    (ServerOutOfMemoryError, 503, "server_full"),
    (GlideMQConnectionError, 503, "unavailable"),
    (ClosedError, 503, "closing"),
    (JobFailedError, 500, "job_failed"),
)
"""Status and code by error type; the first match counts, so subclasses come first."""


def status_of(error: BaseException) -> tuple[int, str]:
    """Return the HTTP status and the code of an error."""
    if isinstance(error, BulkAddError):
        causes = [status_of(each) for each in error.results if isinstance(each, BaseException)]
        return max(causes, default=(500, INTERNAL))
    for kind, status, code in _STATUSES:
        if isinstance(error, kind):
            return status, code
    return 500, INTERNAL


def refusal(error: Exception) -> Response:
    """Return the response for an error."""
    if isinstance(error, HTTPException):
        found = answer({"error": error.detail, "code": "http"}, error.status_code)
        found.headers.update(error.headers or {})
        return found
    found = answer(*complaint(error))
    if isinstance(error, UnauthorizedError):
        found.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, BodyTimeoutError):
        found.headers["Connection"] = "close"  # the rest of the body may still come
    return found


def complaint(error: Exception) -> tuple[dict[str, str], int]:
    """Return the JSON body for an error, and its status."""
    status, code = status_of(error)
    if code == INTERNAL:
        # Details of internal errors are logged, not sent to the client.
        _log.error("request failed: internal error", exc_info=error)
        return {"error": "internal error", "code": code}, status
    return {"error": str(error), "code": code}, status
