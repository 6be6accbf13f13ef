"""Commands that fetch jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final

from glidemq_py._api.job_queue import AnyQueue
from glidemq_py._api.lease import MAX_LOCK_MS
from glidemq_py.errors import JobDataError
from glidemq_py.gateway.fetched import DEFAULT_LOCK_MS, Fetched, Held
from glidemq_py.gateway.hub import MOST_FETCHED
from glidemq_py.gateway.push_rows import set_group_defaults
from glidemq_py.gateway.session import Commands, Session
from glidemq_py.gateway.slices import JOB_CHARS, LARGE_CHARS, VALUE_PARTS, Slices, too_deep
from glidemq_py.gateway.table import STRICT_QUEUE, Answer, CommandError, Field, Given, Kind
from glidemq_py.gateway.values import Encoded, LargeAnswer, PackedList

__all__ = ["COMMANDS"]

COMMANDS: Final = Commands()

_FIELDS: Final = (
    STRICT_QUEUE, Kind.NUMBER("timeout", 0, 60_000, default=0), Field("owner", maximum=256),
    Kind.INTEGER("lockTtl", 1_000, MAX_LOCK_MS, default=DEFAULT_LOCK_MS),
    Kind.FLAG("detach", default=False), Kind.MAP("group"),
)  # fmt: skip


_AT_ONCE: Final = contextlib.nullcontext[None]()


@COMMANDS(
    "PULL",
    "core",
    *_FIELDS,
    summary="Fetch a job; `timeout` ms at most until one is ready.",
    http="GET /queues/{queue}/jobs",
)
@COMMANDS(
    "PULLB",
    "core",
    *_FIELDS,
    Kind.INTEGER("count", 1, 1_000, default=0),
    summary="Fetch up to `count` jobs; wait for the first only.",
    http="POST /queues/{queue}/jobs/pull-batch",
)
async def _pull(session: Session, given: Given) -> Answer:
    """PULL has no `count`, and one job."""
    queue, wait = await session.state.queue(given["queue"]), given["timeout"] / 1_000
    count = min(given.get("count", 1), MOST_FETCHED)
    session.state.maintain(queue)
    if given["group"] is not None:
        await set_group_defaults(queue, given["group"])
    fetched: Sequence[Fetched] = ()
    if count:
        fetching = _fetch_from(session, queue, count, given["lockTtl"], wait)
        fetched = (await session.polled(fetching) or ()) if wait else await fetching
    jobs, tokens, kind = await _hand_over(session, given, fetched)
    if "count" in given:
        return kind(jobs=jobs) if given["owner"] is None else kind(jobs=jobs, tokens=tokens)
    job = jobs[0] if jobs else None
    if isinstance(job, bytes):
        job = Encoded(job)
    return kind(job=job) if given["owner"] is None else kind(job=job, token=tokens[0] if tokens else None)


async def _hand_over(
    session: Session, given: Given, fetched: Sequence[Fetched]
) -> tuple[list[Any], list[str], type[Answer]]:  # fmt: skip
    """Remember that the client holds fetched jobs; return their objects, their tokens, and the type of the answer."""
    ids, known = session.state.ids, list[tuple[str, Fetched, str]]()
    size = JOB_CHARS * len(fetched)
    try:
        for job in fetched:
            name = job.queue_name
            job_id = job.id
            if job.number is None or job.number != ids.known_number(name):
                job_id = ids.known_on_wire(name, job.id) or await ids.on_wire(name, job.id)
            known.append((job_id, job, job.token))
            size += job.size
    except BaseException:  # nobody gets the jobs
        for each in fetched:
            session.state.release(each.queue_name, (each,))
        raise
    # First all are remembered: if the connection is lost now, all are released.
    held = session.state.held.add(known, session, is_owned=given["owner"] is not None, is_kept=given["detach"])
    is_large, packs = size > LARGE_CHARS, session.parts is VALUE_PARTS
    jobs: list[Any] = [] if is_large or not packs else PackedList()
    tokens: list[str] = []
    failed: list[tuple[Held, Fetched, JobDataError]] = []
    async with Slices(session.parts) if is_large else _AT_ONCE as slices:
        for mine, job in zip(held, fetched, strict=True):
            try:
                if slices is not None:
                    found: Any = await slices.encoded(job.object(mine.id), mine.id)
                else:
                    found = job.packed(mine.id) if packs else job.object(mine.id)
            except JobDataError as error:
                failed.append((mine, job, error))
                continue
            except (RecursionError, ValueError):  # data of another program
                raise CommandError(too_deep(session.parts)) from None
            jobs.append(found)
            tokens.append(mine.token)
    for mine, job, failure in failed:
        session.state.held.ended((mine,))
        await job.lease.fail(failure, retry=False)  # as a worker does it
    return jobs, tokens, LargeAnswer if is_large or packs else dict


async def _fetch_from(
    session: Session, queue: AnyQueue, count: int, lock_ms: int, wait: float
) -> list[Fetched]:  # fmt: skip
    began = time.monotonic()
    while True:
        fetching = await session.state.fetching(queue)
        fetched = await fetching.fetch(count, lock_ms, wait)
        if fetched or wait <= 0 or fetching.partitions is queue._partitions:
            return fetched
        # The queue was partitioned meanwhile: the others may have a job.
        wait, began = wait - (time.monotonic() - began), time.monotonic()
