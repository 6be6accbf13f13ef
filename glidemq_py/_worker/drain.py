"""Waits for a worker's running jobs when it closes, and releases them at the deadline."""

from __future__ import annotations

import asyncio
import contextlib

from glidemq_py._core.calls import reading
from glidemq_py._job.link import QueueLink
from glidemq_py._worker.fetch_loop import FetchLoop
from glidemq_py._worker.runner import AttemptRunner

__all__ = ["is_drained", "run_out"]

_RELEASE_S = 5.0
"""Time limit for releasing jobs. Jobs that are not released by then stall and are recovered."""
_PAGE = 100


async def is_drained(link: QueueLink) -> bool:
    """Return True if no job is waiting, active, delayed or prioritized, or parked in a rate limited group."""
    counts = await link.transport.call(reading.counts(link.keys.meta))
    waiting, active, delayed, prioritized, *_, parked, _band = counts
    if waiting or active or delayed or prioritized:
        return False
    # Parked jobs of a group that is not rate limited wait for a job in another state, such as suspended.
    return not parked or not await _limited_groups_wait(link)


async def _limited_groups_wait(link: QueueLink) -> bool:
    first = 0
    while groups := await link.transport.command("ZRANGE", link.keys.ratelimited, str(first), str(first + _PAGE - 1)):
        for group in groups:
            if await link.transport.command("ZCARD", link.keys.group_queue(group.decode("utf-8", "surrogateescape"))):
                return True
        first += _PAGE
    return False


async def run_out(fetching: FetchLoop, runner: AttemptRunner, force: asyncio.Event) -> None:
    """Wait until every handler has ended and every result is reported; when ``force`` is set, release running jobs."""
    settled = asyncio.ensure_future(fetching.until(lambda: fetching.engine.is_drained))
    forced = asyncio.ensure_future(force.wait())
    await asyncio.wait({settled, forced}, return_when=asyncio.FIRST_COMPLETED)
    forced.cancel()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_RELEASE_S):
            while not settled.done():
                # Repeatedly: a reply in flight may still contain jobs.
                runner.release_all()
                await runner.cancelled_ended()
                await fetching.until(lambda: fetching.engine.all_reported)
                if runner.is_idle:
                    break
            await fetching.until(lambda: fetching.engine.is_recovered)
    settled.cancel()
