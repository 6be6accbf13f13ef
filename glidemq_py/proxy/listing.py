"""Pages of jobs in a state."""

from __future__ import annotations

from typing import Any, Final

from glidemq_py._job import Job
from glidemq_py._job.reading import get_slice, listable
from glidemq_py.proxy.endpoint import Exchange, Schema
from glidemq_py.proxy.schemas import END, FLAG, PLACE
from glidemq_py.proxy.shapes import job_shape

__all__ = ["RANGE", "jobs_in", "shown_in"]

RANGE: Final[dict[str, Schema]] = {"start": PLACE, "end": END, "excludeData": FLAG}
"""Query parameters of a page; ``end`` is inclusive, -1 is the last job."""

_PARENT: Final = ("parentId", "parentQueue")


async def jobs_in(exchange: Exchange, state: str) -> list[Job[Any, Any]]:
    """Return the requested jobs.

    Raises:
        GlideMQValidationError: if a query parameter is invalid.
    """
    start, end, bare = exchange.integer("start", 0), exchange.integer("end", -1), exchange.flag("excludeData")
    return await get_slice(await exchange.queue._connected(), listable(state), start, end, bare=bare, also=_PARENT)


def shown_in(exchange: Exchange, job: Job[Any, Any]) -> dict[str, Any]:
    """Return a job of such a page as JSON."""
    return job_shape(job, with_data=not exchange.flag("excludeData"))
