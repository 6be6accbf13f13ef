"""Commands that fetch jobs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._api.lease import MAX_LOCK_MS
from glidemq_py.errors import JobDataError
from glidemq_py.gateway.fetched import DEFAULT_LOCK_MS, Fetched
from glidemq_py.gateway.hub import MOST_FETCHED, Hub
from glidemq_py.gateway.push_rows import set_group_defaults
from glidemq_py.gateway.session import Begun, Command, Session
from glidemq_py.gateway.slices import JOB_CHARS, LARGE_CHARS, VALUE_PARTS, Slices, too_deep
from glidemq_py.gateway.table import STRICT_QUEUE, Answer, CommandError, Field, Given, Kind
from glidemq_py.gateway.values import Encoded, LargeAnswer, PackedList

__all__ = ["COMMANDS"]

_FIELDS: Final = (
    STRICT_QUEUE, Field("timeout", Kind.NUMBER, minimum=0, maximum=60_000, default=0), Field("owner", maximum=256),
    Field("lockTtl", Kind.INTEGER, minimum=1_000, maximum=MAX_LOCK_MS, default=DEFAULT_LOCK_MS),
    Field("detach", Kind.FLAG, default=False), Field("group", Kind.MAP),
)  # fmt: skip
_Fetched = tuple[list[Any], list[str], bool]
"""Objects of fetched jobs, their tokens, and whether the objects are encoded already."""


async def _pull(session: Session, given: Given) -> Answer:
    count = _count_of(given)
    return _pulled(given, await _fetch(session, given, count) if count else ([], [], False))


def _count_of(given: Given) -> int:
    """Return how many jobs are wanted: PULL has no `count`."""
    wanted: int = given.get("count", 1)
    return min(wanted, MOST_FETCHED)


def _pulled(given: Given, found: _Fetched) -> Answer:
    jobs, tokens, is_encoded = found
    kind: type[Answer] = LargeAnswer if is_encoded else dict
    if "count" in given:
        return kind(jobs=jobs) if given["owner"] is None else kind(jobs=jobs, tokens=tokens)
    job = jobs[0] if jobs else None
    if jobs.__class__ is PackedList and job is not None:
        job = Encoded(job)
    return kind(job=job) if given["owner"] is None else kind(job=job, token=tokens[0] if tokens else None)


def _pull_nothing(session: Session, given: Given) -> Answer | None:
    hub = None if given["timeout"] else session.state.known_hub(given["queue"])
    return None if hub is None or not hub.is_empty() else _pulled(given, ([], [], False))


async def _fetch(session: Session, given: Given, count: int) -> _Fetched:
    """Return the objects of fetched jobs, their tokens, and whether the objects are encoded already."""
    queue, lock_ms = await session.queue(given), given["lockTtl"]
    session.state.maintain(queue)
    if given["group"] is not None:
        await set_group_defaults(queue, given["group"])
    wait = given["timeout"] / 1_000
    fetching = _fetch_from(session, queue, count, lock_ms, wait)
    fetched = (await session.polled(fetching) or []) if wait else await fetching
    return await _hand_over(session, given, queue, fetched)


async def _hand_over(session: Session, given: Given, queue: Queue[Any, Any], fetched: Sequence[Fetched]) -> _Fetched:
    """Return what `_fetch` returns, and remember that the client holds these jobs."""
    # First all are remembered: if the connection is lost now, all are released.
    ids, held, is_owned, is_kept = session.state.ids, session.state.held, given["owner"] is not None, given["detach"]
    known: list[tuple[Fetched, str, str]] = []
    size = 0
    partitions = queue._partitions
    for job in fetched:
        name, token = queue.name if partitions is None else job.queue_name, job.token
        try:
            job_id = ids.known_on_wire(name, job.id) or await ids.on_wire(name, job.id)
        except BaseException:  # nobody gets the jobs
            for _, earlier_id, earlier in known:
                held.ended(earlier_id, earlier)
            for each in fetched:
                session.state.release(queue.name if partitions is None else each.queue_name, (each,))
            raise
        known.append((job, job_id, token))
        size += job.size + JOB_CHARS
        held.add(
            job_id, job, token, session, queue=name, is_owned=is_owned, is_kept=is_kept
        )  # fmt: skip
    jobs: list[Any] = []
    tokens: list[str] = []
    failed: list[tuple[Fetched, str, str, JobDataError]] = []
    is_large, is_packed = size > LARGE_CHARS, session.parts is VALUE_PARTS
    async with Slices(session.parts) if is_large else contextlib.nullcontext() as slices:
        for job, job_id, token in known:
            try:
                if slices is not None:
                    found: Any = await slices.encoded(job.object(job_id), job_id)
                else:
                    found = Encoded(job.packed(job_id), job_id) if is_packed else job.object(job_id)
            except JobDataError as error:
                failed.append((job, job_id, token, error))
                continue
            except (RecursionError, ValueError):  # data of another program
                raise CommandError(too_deep(session.parts)) from None
            jobs.append(found)
            tokens.append(token)
    for job, job_id, token, failure in failed:
        held.ended(job_id, token)
        await job.lease.fail(failure, retry=False)  # as a worker does it
    return jobs, tokens, is_large or is_packed


def _hand_over_now(
    session: Session, given: Given, queue: Queue[Any, Any], fetched: Sequence[Fetched]
) -> _Fetched | None:
    """Do what `_hand_over` does if it needs neither a call nor much time; else return None."""
    ids, jobs, known = session.state.ids, PackedList(), list[tuple[str, Fetched, str]]()
    size = sum([job.size for job in fetched]) + JOB_CHARS * len(fetched)
    if session.parts is not VALUE_PARTS or size > LARGE_CHARS:
        return None
    number = ids.known_number(queue.name)
    for job in fetched:
        job_id = job.id if job.number is not None and job.number == number else ids.known_on_wire(queue.name, job.id)
        if job_id is None:
            return None
        try:
            jobs.append(job.packed(job_id))
        except (JobDataError, RecursionError, ValueError):
            return None
        known.append((job_id, job, job.token))
    is_owned, is_kept = given["owner"] is not None, given["detach"]
    session.state.held.add_all(known, session, queue=queue.name, is_owned=is_owned, is_kept=is_kept)
    return jobs, [token for _, _, token in known], True


def _begin_pull(session: Session, given: Given) -> Begun | None:
    """Begin to fetch from a queue without partitions; None if a task is needed: nothing was done."""
    name, wait, count = given["queue"], given["timeout"] / 1_000, _count_of(given)
    hub, queue = session.state.known_hub(name), session.state.known_queue(name)
    if not count or not isinstance(hub, Hub) or queue is None or queue._partitions is not None:
        return None
    if given["group"] is not None:
        return None
    session.state.maintain(queue)
    fetching, began = hub.begin_fetch(count, given["lockTtl"], wait), time.perf_counter()
    if fetching is None:
        return None  # the handler answers that there is no job
    if wait:
        session.poll(fetching.future)

    def finish(future: asyncio.Future[list[Fetched]]) -> Answer | Coroutine[Any, Any, Answer]:
        if future.cancelled() or session.is_lost:
            hub.withdraw(fetching)
            if not wait or not session.ends_poll(future):
                raise asyncio.CancelledError
            return _pulled(given, ([], [], False))
        if future.exception() is None:
            fetched = future.result()
            found = _hand_over_now(session, given, queue, fetched) if fetched or not wait else None
            if found is not None:
                return _pulled(given, found)
        return rest(future)

    async def rest(future: asyncio.Future[list[Fetched]]) -> Answer:
        fetched = future.result()
        if not fetched and wait and queue._partitions is not None:
            # It was partitioned meanwhile: its partitions may have a job.
            left = max(0.0, given["timeout"] - (time.perf_counter() - began) * 1_000)
            return _pulled(given, await _fetch(session, {**given, "timeout": left}, count))
        return _pulled(given, await _hand_over(session, given, queue, fetched))

    return Begun(fetching.future, finish, lambda: hub.withdraw(fetching))


async def _fetch_from(
    session: Session, queue: Queue[Any, Any], count: int, lock_ms: int, wait: float
) -> list[Fetched]:  # fmt: skip
    began = time.monotonic()
    while True:
        fetching = await session.state.fetching(queue)
        fetched = await fetching.fetch(count, lock_ms, wait)
        if fetched or wait <= 0 or fetching.partitions is queue._partitions:
            return fetched
        # The queue was partitioned meanwhile: the others may have a job.
        wait, began = wait - (time.monotonic() - began), time.monotonic()


COMMANDS: Final = (
    Command(
        "PULL", "core", _pull, "Fetch a job; `timeout` ms at most until one is ready.", _FIELDS, quick=_pull_nothing,
        begin=_begin_pull,
    ),
    Command(
        "PULLB", "core", _pull, "Fetch up to `count` jobs; wait for the first only.",
        (*_FIELDS, Field("count", Kind.INTEGER, minimum=1, maximum=1_000, default=0)), quick=_pull_nothing,
        begin=_begin_pull,
    ),
)  # fmt: skip
