"""Jobs in a state by their positions. What is passed over is not read."""

from __future__ import annotations

from typing import Any, Final

from glidemq_py.job import Job, QueueLink
from glidemq_py.model.states import JobState
from glidemq_py.options.checks import check_int
from glidemq_py.queue.reading import MAX_PAGE, iterate
from glidemq_py.wire.calls import reading

__all__ = ["get_slice"]

_RANKED: Final = (JobState.COMPLETED, JobState.FAILED, JobState.SUSPENDED, JobState.WAITING_CHILDREN)
"""States in which the server finds a position at once."""

_PASSED_A_CALL: Final = 500
"""Positions passed over by one call: half a millisecond of the server's time, where no record is read."""


async def get_slice(
    link: QueueLink, state: JobState, start: int, end: int, *, bare: bool, also: tuple[str, ...] = ()
) -> list[Job[Any, Any]]:
    """Those from one position to another; ``end`` inclusive, -1 = the last. See `reading.iterate` for ``bare`` and
    ``also``. Raises GlideMQValidationError."""
    first, last = check_int("start", start, 0, 2**53), check_int("end", end, -1, 2**53)
    most = MAX_PAGE if last == -1 else min(last - first + 1, MAX_PAGE)
    found: list[Job[Any, Any]] = []
    cursor = await _cursor_at(link, state, first) if first and most > 0 else ""
    if most <= 0 or cursor is None:
        return found
    async for job in iterate(link, state, most, bare=bare, also=also, cursor=cursor):
        found.append(job)
        if last != -1 and len(found) > last - first:
            break
    return found


async def _cursor_at(link: QueueLink, state: JobState, position: int) -> str | None:
    """Where a position begins; None where there are not so many jobs."""
    if state in _RANKED:
        return f"r:{position}"
    cursor = ""
    while position:
        call = reading.page(link.keys.meta, state, cursor, min(position, _PASSED_A_CALL), ())
        found = await link.transport.call(call)
        position, cursor = position - len(found.rows), found.cursor
        if not cursor:
            return None
    return cursor
