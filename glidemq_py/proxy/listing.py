"""Pages of jobs, bounded by count and bytes; a cursor continues with the next page."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from starlette.responses import Response

from glidemq_py._core.checks import check_int
from glidemq_py._core.job_states import JobState
from glidemq_py._job import Job, QueueLink
from glidemq_py._job.reading import cursor_at, read_page
from glidemq_py.errors import GlideMQValidationError, LibraryError
from glidemq_py.proxy.answering import encode
from glidemq_py.proxy.endpoint import Exchange, Schema
from glidemq_py.proxy.schemas import CURSOR, END, FLAG, LIMIT, PLACE
from glidemq_py.proxy.shapes import job_shape

__all__ = [
    "PAGE", "RANGE", "Show", "check_limit", "fill_page", "listed_jobs", "open_cursor", "page_answer", "seal_cursor",
    "shown_in",
]  # fmt: skip

PAGE: Final[dict[str, Schema]] = {"limit": LIMIT, "cursor": CURSOR}
RANGE: Final[dict[str, Schema]] = {"start": PLACE, "end": END, "excludeData": FLAG, **PAGE}
"""Query parameters of a page; ``end`` is inclusive, -1 is the last job."""

DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000
_ROWS_PER_CALL: Final = 25
"""A job has at most 1 MiB of data, so a call returns at most 25 MiB of it."""

_PARENT: Final = ("parentId", "parentQueue")

Show = Callable[[Sequence[Job[Any, Any]]], Awaitable[list[bytes | None]]]
"""Return the JSON of each job; None leaves a job out."""


def check_limit(exchange: Exchange) -> int:
    """Return the query parameter ``limit``: by default 100, or the size of the range if ``end`` is given.

    Raises:
        GlideMQValidationError: if a query parameter is invalid.
    """
    if "cursor" in exchange.query and ("start" in exchange.query or "end" in exchange.query):
        raise GlideMQValidationError("cursor", exchange.query["cursor"], "excludes 'start' and 'end'")
    start = check_int("start", exchange.integer("start", 0), 0, 2**53)
    end = check_int("end", exchange.integer("end", -1), -1, 2**53)
    size = DEFAULT_LIMIT if end == -1 else max(0, end - start + 1)
    if "limit" in exchange.query:
        limit = check_int("limit", exchange.integer("limit"), 1, MAX_LIMIT)
        return limit if end == -1 else min(limit, size)
    return min(size, MAX_LIMIT)


async def listed_jobs(
    exchange: Exchange, link: QueueLink, state: JobState, show: Show, *, by_shown: bool = False
) -> tuple[list[bytes], str]:
    """Return the requested jobs as JSON, and the cursor of the next page ('' = the end).

    Args:
        exchange: the request, with the query parameters `RANGE`.
        link: the queue.
        state: the state of the jobs.
        show: converts jobs to JSON.
        by_shown: if True, ``start`` counts only jobs that `show` does not leave out.

    Raises:
        GlideMQValidationError: if a query parameter is invalid.
    """
    limit, bare = check_limit(exchange), exchange.flag("excludeData")
    place = f"{link.keys.meta} {state}"
    cursor, start = open_cursor(place, exchange.query.get("cursor")), exchange.integer("start", 0)
    skipped = start if by_shown else 0
    if start and not by_shown:
        at = await cursor_at(link, state, start)
        if at is None:
            return [], ""
        cursor = at
    found: list[bytes] = []
    seen: set[str] = set()
    size, rows, most = 0, _ROWS_PER_CALL, exchange.state.options.max_response
    while len(found) < limit:
        count = min(rows, limit - len(found))
        try:
            jobs, following = await read_page(link, state, cursor, count, bare=bare, also=_PARENT)
        except LibraryError as error:
            if "cursor" in exchange.query:
                raise GlideMQValidationError("cursor", exchange.query["cursor"], "is not valid any more") from error
            raise
        shown = await show([job for job in jobs if job.id not in seen])
        texts = [text for text in shown if text is not None]
        passed, texts = min(skipped, len(texts)), texts[skipped:]
        fitting = _fitting(texts, most - size)
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
        cursor = following
        if not cursor:
            break
    return found, seal_cursor(place, cursor)


def _fitting(texts: Sequence[bytes], room: int) -> int:
    for i, text in enumerate(texts):
        room -= len(text)
        if room < 0:
            return i
    return len(texts)


def fill_page(texts: Iterable[bytes], most: int) -> list[bytes]:
    """Return as many texts as fit into ``most`` bytes, at least one."""
    found: list[bytes] = []
    for text in texts:
        most -= len(text)
        if most < 0 and found:
            break
        found.append(text)
    return found


def page_answer(name: str, texts: Sequence[bytes], cursor: str, **others: Any) -> Response:
    """Return the response for a page: the array ``name`` of encoded values, ``cursor`` (null = the end), others."""
    last = encode({"cursor": cursor or None, **others})[1:]
    return Response(b'{"%s":[%s],%s' % (name.encode(), b",".join(texts), last), media_type="application/json")


def seal_cursor(place: str, cursor: str) -> str:
    """Return the cursor that clients get, with a checksum; `place` is the list that it belongs to."""
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


def shown_in(exchange: Exchange, job: Job[Any, Any]) -> dict[str, Any]:
    """Return a job of such a page as JSON."""
    return job_shape(job, with_data=not exchange.flag("excludeData"))
