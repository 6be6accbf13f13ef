"""Errors as HTTP statuses: by their types alone, never by their words (W89)."""

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

__all__ = ["INTERNAL", "BodyTooLargeError", "NotAllowedError", "NothingThereError", "complaint", "refusal", "status_of"]

_log = get_logger("glidemq_py.proxy")

INTERNAL: Final = "internal"
"""Code of what is wrong with us, not with the request."""


class NotAllowedError(GlideMQError):
    """This queue may not be used through the proxy."""


class NothingThereError(GlideMQError):
    """There is no such thing."""


class BodyTooLargeError(GlideMQError):
    """The request's body is longer than the proxy takes."""


_STATUSES: Final[tuple[tuple[type[GlideMQError], int, str], ...]] = (
    (PayloadTooLargeError, 413, "too_large"),
    (BodyTooLargeError, 413, "too_large"),
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
"""From the special to the general: the first that fits counts."""


def status_of(error: BaseException) -> tuple[int, str]:
    """Status and code of an error."""
    if isinstance(error, BulkAddError):
        causes = [status_of(each) for each in error.results if isinstance(each, BaseException)]
        return max(causes, default=(500, INTERNAL))
    for kind, status, code in _STATUSES:
        if isinstance(error, kind):
            return status, code
    return 500, INTERNAL


def refusal(error: Exception) -> Response:
    """The response that tells of an error."""
    if isinstance(error, HTTPException):
        found = answer({"error": error.detail, "code": "http"}, error.status_code)
        found.headers.update(error.headers or {})
        return found
    return answer(*complaint(error))


def complaint(error: Exception) -> tuple[dict[str, str], int]:
    """What whoever asked is told of an error, and its status."""
    status, code = status_of(error)
    if code == INTERNAL:
        # What is wrong with us is for our log, not for whoever asked.
        _log.error("a request failed", exc_info=error)
        return {"error": "internal error", "code": code}, status
    return {"error": str(error), "code": code}, status
