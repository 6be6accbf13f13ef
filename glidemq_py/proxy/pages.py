"""Pages of listings, bounded by count and bytes; a cursor continues with the next page."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, Query
from pydantic import BeforeValidator, WithJsonSchema
from starlette.responses import Response

from glidemq_py._core.job_states import JobState
from glidemq_py._job.job import Job
from glidemq_py._job.reading import cursor_at, get_counts, read_page
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQValidationError, LibraryError
from glidemq_py.proxy.responses import encode

__all__ = [
    "Cursor", "Flag", "JobsPage", "Page", "PageQuery", "RangePage", "Show", "Whole", "fill_page", "listed_jobs",
    "open_cursor", "page_answer", "seal_cursor",
]  # fmt: skip

_DEFAULT_LIMIT: Final = 100
_MAX_LIMIT: Final = 1_000
_ROWS_PER_CALL: Final = 25
"""A job has at most 1 MiB of data, so a call returns at most 25 MiB of it."""

_PARTITIONS: Final = "partitions"
_PARENT: Final = ("parentId", "parentQueue", "parentIds", "parentQueues")
_INTEGER: Final = re.compile(r"-?[0-9]{1,16}")

Show = Callable[[Sequence[Job[Any, Any]]], Awaitable[list[bytes | None]]]
"""Return the JSON of each job; None leaves a job out."""


# -- query parameters ------------------------------------------------------------------------------------------


def _whole(text: object) -> object:
    if isinstance(text, str) and not _INTEGER.fullmatch(text):
        raise ValueError("must be an integer")
    return text


def _flag(text: object) -> object:
    if isinstance(text, str) and text not in ("true", "false"):
        raise ValueError("must be true or false")
    return text


Whole = BeforeValidator(_whole)
"""Rejects the other forms of integers that pydantic accepts in text, such as 1.0 and 1_000."""
Flag = Annotated[bool, Query(), BeforeValidator(_flag)]
_Limit = Annotated[int | None, Query(ge=1, le=_MAX_LIMIT), Whole, WithJsonSchema(
    {"type": "integer", "minimum": 1, "maximum": _MAX_LIMIT, "default": _DEFAULT_LIMIT}
)]  # fmt: skip
Cursor = Annotated[
    str | None, Query(description="The cursor of the previous page."),
    WithJsonSchema({"type": "string", "pattern": "^[A-Za-z0-9_-]{6,4096}$"}),
]  # fmt: skip


@dataclass(slots=True, kw_only=True)
class PageQuery:
    """The requested page.

    Attributes:
        limit: maximum number of entries.
        has_limit: whether the request has a limit.
        cursor: cursor of the previous page, or None.
        start: position of the first entry.
        exclude_data: whether jobs are returned without data and result.
    """

    limit: int
    has_limit: bool
    cursor: str | None
    start: int = 0
    exclude_data: bool = False


async def _page(limit: _Limit = None, cursor: Cursor = None) -> PageQuery:
    return PageQuery(limit=limit or _DEFAULT_LIMIT, has_limit=limit is not None, cursor=cursor)


async def _range(
    page: Annotated[PageQuery, Depends(_page)],
    start: Annotated[int, Query(ge=0, le=2**53), Whole] = 0,
    end: Annotated[int, Query(ge=-1, le=2**53, description="Inclusive; -1 = the last one."), Whole] = -1,
) -> PageQuery:
    if page.cursor is not None and (start or end != -1):
        raise GlideMQValidationError("cursor", page.cursor, "excludes 'start' and 'end'")
    page.start = start
    if end != -1:
        size = max(0, end - start + 1)
        page.limit = min(page.limit if page.has_limit else _MAX_LIMIT, size)
    return page


async def _jobs_page(
    page: Annotated[PageQuery, Depends(_range)],
    exclude_data: Annotated[bool, Query(alias="excludeData"), BeforeValidator(_flag)] = False,
) -> PageQuery:
    page.exclude_data = exclude_data
    return page


Page = Annotated[PageQuery, Depends(_page)]
RangePage = Annotated[PageQuery, Depends(_range)]
JobsPage = Annotated[PageQuery, Depends(_jobs_page)]


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
