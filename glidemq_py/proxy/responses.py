"""Responses: JSON, pages of listings, server-sent events, and errors, whose status depends on their type."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json as stdlib_json
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from starlette.exceptions import HTTPException
from starlette.responses import Response

from glidemq_py._core import json_text as json
from glidemq_py._core.checks import camel_case, snake_case
from glidemq_py._core.logs import get_logger
from glidemq_py._core.record import JobState
from glidemq_py._job.job import Job
from glidemq_py._job.reading import cursor_at, get_counts, read_page
from glidemq_py._partitions.link import QueueLink
from glidemq_py._web.clients import NotAllowedError, UnauthorizedError
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
    LibraryError,
    PayloadTooLargeError,
    SerializationError,
    ServerOutOfMemoryError,
    WaitTimeoutError,
)
from glidemq_py.proxy.schemas import SCHEMAS, Schema

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


def view_of(model: Any, value: Any, **given: Any) -> Any:
    """Return an object as JSON of a typed dict of an endpoint: required members not given are its attributes."""
    found = SCHEMAS[model.__name__]["required"]
    return {**{name: getattr(value, snake_case(name)) for name in found if name not in given}, **given}


def frame(event: str | None, data: Any, entry: str | None = None) -> str:
    """Return the text of one server-sent event."""
    lines = [f"id: {entry}"] if entry else []
    if event:
        lines.append("event: " + " ".join(event.split()))
    return "\n".join([*lines, f"data: {encode(data).decode()}", "", ""])


# -- errors ----------------------------------------------------------------------------------------------------

INTERNAL: Final = "internal"
"""Error code of internal errors."""


class RequestError(GlideMQError):
    """Raised when the proxy itself rejects a request, or has no answer for it.

    Attributes:
        status: of the response.
        code: in its body.
    """

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code


class NotFoundError(RequestError):
    """Raised when the requested object does not exist."""

    def __init__(self, text: str) -> None:
        super().__init__(404, "not_found", text)


_STATUSES: Final[tuple[tuple[type[GlideMQError], int, str], ...]] = (
    (PayloadTooLargeError, 413, "too_large"),
    (UnauthorizedError, 401, "unauthorized"),
    (NotAllowedError, 403, "forbidden"),
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
    if isinstance(error, RequestError):
        return error.status, error.code
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
    if found.status_code == 408:
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


_DEFAULT_LIMIT: Final = 100
_MAX_LIMIT: Final = 1_000
_ROWS_PER_CALL: Final = 25
"""A job has at most 1 MiB of data, so a call returns at most 25 MiB of it."""

_PARTITIONS: Final = "partitions"
_PARENT: Final = ("parentId", "parentQueue", "parentIds", "parentQueues")

Show = Callable[[Sequence[Job]], Awaitable[list[bytes | None]]]
"""Return the JSON of each job; None leaves a job out."""


# -- query parameters ------------------------------------------------------------------------------------------

ONE_PAGE: Final[Mapping[str, Schema]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": _MAX_LIMIT, "default": None},
    "cursor": {
        "type": "string", "description": "The cursor of the previous page.", "pattern": "^[A-Za-z0-9_-]{6,4096}$",
        "default": None,
    },
}  # fmt: skip
RANGE: Final[Mapping[str, Schema]] = {
    **ONE_PAGE, "start": {"type": "integer", "minimum": 0, "maximum": 2**53, "default": 0},
    "end": {
        "type": "integer", "minimum": -1, "maximum": 2**53, "description": "Inclusive; -1 = the last one.",
        "default": -1,
    },
}  # fmt: skip
JOBS_PAGE: Final[Mapping[str, Schema]] = {**RANGE, "excludeData": {"type": "boolean", "default": False}}


@dataclass(slots=True, kw_only=True)
class PageQuery:
    """The requested page.

    Attributes:
        limit: maximum number of entries.
        cursor: cursor of the previous page, or None.
        start: position of the first entry.
        exclude_data: whether jobs are returned without data and result.
    """

    limit: int
    cursor: str | None
    start: int
    exclude_data: bool


def page_of(query: Mapping[str, Any]) -> PageQuery:
    """Return the page that a query requests.

    Raises:
        GlideMQValidationError: if it has a cursor and a position.
    """
    start, end, cursor = query.get("start", 0), query.get("end", -1), query["cursor"]
    if cursor is not None and (start or end != -1):
        raise GlideMQValidationError("cursor", cursor, "excludes 'start' and 'end'")
    limit = query["limit"] or (_DEFAULT_LIMIT if end == -1 else _MAX_LIMIT)
    if end != -1:
        limit = min(limit, max(0, end - start + 1))
    return PageQuery(limit=limit, cursor=cursor, start=start, exclude_data=query.get("exclude_data", False))


# -- pages -----------------------------------------------------------------------------------------------------


async def listed_jobs(
    links: Sequence[QueueLink], state: JobState, page: PageQuery, show: Show, *, max_bytes: int, by_shown: bool = False
) -> tuple[list[bytes], str]:
    """Return the requested jobs as JSON, and the cursor of the next page ('' = the end).

    Args:
        links: the queue, or its partitions, which are listed one after the other.
        state: the state of the jobs.
        page: the requested page.
        show: converts jobs to JSON.
        max_bytes: maximum size of the page; a single job may be larger.
        by_shown: if True, ``start`` counts only jobs that `show` does not leave out.

    Raises:
        GlideMQValidationError: if the cursor is invalid.
    """
    place = f"{links[0].keys.meta} {state}"
    number, cursor = _open_position(place, page.cursor, len(links))
    skipped = page.start if by_shown else 0
    if page.start and not by_shown:
        number, cursor = await _position_at(links, state, page.start)
    found: list[bytes] = []
    seen: set[str] = set()
    size, rows = 0, _ROWS_PER_CALL
    while number < len(links) and len(found) < page.limit:
        count = min(rows, page.limit - len(found))
        try:
            jobs, following = await read_page(
                links[number], state, cursor, count, bare=page.exclude_data, also=_PARENT
            )  # fmt: skip
        except LibraryError as error:
            if page.cursor is not None:
                raise GlideMQValidationError("cursor", page.cursor, "is not valid any more") from error
            raise
        shown = await show([job for job in jobs if job.id not in seen])
        texts = [text for text in shown if text is not None]
        passed, texts = min(skipped, len(texts)), texts[skipped:]
        fitting = len(fill_page(texts, max_bytes - size, least=0))
        if fitting < len(texts) and (found or count > 1):
            if not fitting and found:
                break
            # Read fewer again: rows and cursor must come from the same reply.
            rows = min(count - 1, passed + max(1, fitting))
            continue
        found += texts
        seen.update(job.id for job in jobs)
        size += sum(map(len, texts))
        skipped -= passed
        number, cursor = number + (not following), following
    return found, _seal_position(place, number, cursor) if number < len(links) else ""


async def _position_at(links: Sequence[QueueLink], state: JobState, start: int) -> tuple[int, str]:
    """Return the partition that has the job at this position, and its cursor there."""
    for number, link in enumerate(links):
        if len(links) > 1:
            size: int = getattr(await get_counts(link), state.name.lower())
            if start >= size:
                start -= size
                continue
        cursor = await cursor_at(link, state, start) if start else ""
        if cursor is not None:
            return number, cursor
        start = 0  # jobs have left the state meanwhile
    return len(links), ""


def _seal_position(place: str, number: int, cursor: str) -> str:
    """Return the cursor of a place in a partition; one in the first is that of a plain queue, which may get others."""
    return seal_cursor(f"{place} {_PARTITIONS}", f"{number}||{cursor}") if number else seal_cursor(place, cursor)


def _open_position(place: str, given: str | None, partitions: int) -> tuple[int, str]:
    """Return the partition of a client's cursor, and the inner cursor in it. Raises the errors of `open_cursor`."""
    try:
        number, _, cursor = open_cursor(f"{place} {_PARTITIONS}", given).partition("||")
    except GlideMQValidationError:
        return 0, open_cursor(place, given)
    if int(number or 0) >= partitions:
        raise GlideMQValidationError("cursor", given, "is not valid any more")
    return int(number or 0), cursor


def fill_page(texts: Iterable[bytes], max_bytes: int, *, least: int = 1) -> list[bytes]:
    """Return as many texts as fit into ``max_bytes``, but at least ``least``."""
    found: list[bytes] = []
    for text in texts:
        max_bytes -= len(text)
        if max_bytes < 0 and len(found) >= least:
            break
        found.append(text)
    return found


def page_answer(name: str, texts: Sequence[bytes], cursor: str, **others: Any) -> Response:
    """Return the response for a page: the array ``name`` of encoded values, ``cursor`` (null = the end), others."""
    last = encode({"cursor": cursor or None, **others})[1:]
    return Response(b'{"%s":[%s],%s' % (name.encode(), b",".join(texts), last), media_type="application/json")


def seal_cursor(place: str, cursor: str) -> str:
    """Return the cursor that clients get, with a checksum; ``place`` is the list that it belongs to."""
    if not cursor:
        return ""
    content = cursor.encode("utf-8", "surrogateescape")
    check = zlib.crc32(place.encode() + b"\0" + content).to_bytes(4, "big")
    return base64.urlsafe_b64encode(check + content).decode().rstrip("=")


def open_cursor(place: str, given: str | None) -> str:
    """Return the inner cursor of a client's cursor; '' if there is none.

    Raises:
        GlideMQValidationError: if it is not a cursor of this list.
    """
    if given is None:
        return ""
    try:
        content = base64.b64decode(given + "=" * (-len(given) % 4), "-_", validate=True)
    except (binascii.Error, ValueError):
        content = b""
    cursor = content[4:].decode("utf-8", "surrogateescape")
    if not cursor or seal_cursor(place, cursor) != given:
        raise GlideMQValidationError("cursor", given, "must be the cursor of an earlier page of the same list")
    return cursor
