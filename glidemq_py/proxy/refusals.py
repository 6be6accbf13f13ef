"""Map errors to HTTP statuses by type, never by message."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from glidemq_py._core.logs import get_logger
from glidemq_py.errors import (
    BulkAddError,
    ClosedError,
    DuplicateJobError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    JobCostError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    PayloadTooLargeError,
    SchedulerBusyError,
    ServerOutOfMemoryError,
    WaitTimeoutError,
)
from glidemq_py.proxy.answering import answer

__all__ = [
    "INTERNAL", "BodyTimeoutError", "BodyTooLargeError", "MediaTypeError", "NotAllowedError", "NothingThereError",
    "ResponseTooLargeError",     "UnauthorizedError", "complaint", "refusal", "status_of",
]  # fmt: skip

_log = get_logger("glidemq_py.proxy")

INTERNAL: Final = "internal"
"""Error code of internal errors."""


class NotAllowedError(GlideMQError):
    """Raised when a queue may not be used through the proxy, or a request comes from another site."""


class UnauthorizedError(GlideMQError):
    """Raised when a request has no valid token."""


class MediaTypeError(GlideMQError):
    """Raised when the content type of a request is not JSON."""


class BodyTimeoutError(GlideMQError):
    """Raised when a request body is not complete in time."""


class ResponseTooLargeError(GlideMQError):
    """Raised when a response that has no pages exceeds `max_response`."""


class NothingThereError(GlideMQError):
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
    (NothingThereError, 404, "not_found"),
    (JobNotFoundError, 404, "not_found"),
    (GlideMQValidationError, 400, "invalid"),
    (JobStateError, 400, "job_state"),
    (DuplicateJobError, 409, "duplicate"),
    (JobCostError, 400, "job_cost"),
    (WaitTimeoutError, 504, "timeout"),
    (ServerOutOfMemoryError, 503, "server_full"),
    (GlideMQConnectionError, 503, "unavailable"),
    (SchedulerBusyError, 503, "busy"),
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
