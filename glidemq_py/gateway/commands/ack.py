"""Commands that report the end of an attempt, and those that renew the locks of fetched jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import repeat
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._api.lease import DEFAULTS, MAX_LOCK_MS, Lease
from glidemq_py._api.lease_exchange import LeaseOutcome, Report, exchange
from glidemq_py._core.calls import working
from glidemq_py._core.payload import PackedValue
from glidemq_py._core.record import JobState
from glidemq_py._features.leases import LeaseFacts, decode_token
from glidemq_py.errors import GlideMQError, GlideMQValidationError, LeaseLostError
from glidemq_py.gateway.fetched import DEFAULT_LOCK_MS, Held
from glidemq_py.gateway.hub import MOST_FETCHED
from glidemq_py.gateway.job_objects import check_readers, stored_value
from glidemq_py.gateway.listing import located
from glidemq_py.gateway.session import Begun, Command, Session
from glidemq_py.gateway.table import DONE, JOB, TOKEN, Answer, CommandError, Field, Given, Kind, is_number
from glidemq_py.gateway.values import UNDEFINED, PortableMap

__all__ = ["COMMANDS", "ClientError", "LeasedJob", "end_attempt", "leased_job"]

_ALL_COMPLETED: Final = {LeaseOutcome.COMPLETED}


class LeasedJob:
    """A job that a client reports or renews.

    Attributes:
        id: Its id on the wire.
        queue: Its queue, or partition.
        facts: What identifies its lease.
        token: Token of its lease.
        lock_ms: Duration of its lock if this process knows it, else the default.
    """

    __slots__ = ("facts", "id", "lock_ms", "queue", "token")

    def __init__(self, job_id: str, queue: Queue[Any, Any], facts: LeaseFacts, token: str, lock_ms: int) -> None:
        self.id = job_id
        self.queue = queue
        self.facts = facts
        self.token = token
        self.lock_ms = lock_ms

    @property
    def lease(self) -> Lease[Any, Any]:
        """Its lease."""
        return Lease(self.queue, self.facts, DEFAULTS)

    @property
    def is_timed_out(self) -> bool:
        """Whether the timeout of the job has passed."""
        return 0 < self.facts.limit <= time.time() * 1_000

    async def delay(self, ms: int) -> None:
        """End the attempt without counting it, and let the job wait.

        Raises:
            LeaseLostError: If the lease is lost.
        """
        await self._end(working.delayed(*self._attempt, ms))

    async def wait_for_children(self) -> None:
        """End the attempt without counting it, and let the job wait for its children.

        Raises:
            LeaseLostError: If the lease is lost.
        """
        await self._end(working.waiting_children(*self._attempt))

    @property
    def _attempt(self) -> tuple[str, str, int, int]:
        facts = self.facts
        return facts.id, facts.entry, facts.fence, facts.processed_on

    async def _end(self, row: working.Finished) -> None:
        report = Report(row, self.facts.limit, None)
        found = await exchange(self.queue, [report])
        if not found.outcomes[0].applied:
            raise LeaseLostError(self.facts.id)


async def leased_job(session: Session, job_id: str, token: str | None) -> LeasedJob:
    """Return the job that a command reports.

    Raises:
        CommandError: If there is no such job, or the token is missing or invalid.
    """
    held = session.state.held.find(job_id)
    if held is not None and held.is_of(token):
        return LeasedJob(job_id, await session.state.part(held.queue), held.facts, held.token, held.lock_ms)
    found = await session.state.ids.find(job_id)
    if found is None:
        raise CommandError(f"Job not found or not in processing state: {job_id}")
    queue, own = await located(session, *found)
    if not token:
        if await _state(queue, own) is JobState.ACTIVE:
            raise CommandError(f"Lock token required for job {job_id}")
        raise CommandError(f"Job not found or not in processing state: {job_id}")
    try:
        facts = decode_token(queue.options.prefix, queue.name, token)
    except GlideMQValidationError:
        raise CommandError(f"Invalid or expired lock token for job {job_id}") from None
    if facts.id != own:
        raise CommandError(f"Invalid or expired lock token for job {job_id}")
    return LeasedJob(job_id, queue, facts, token, DEFAULT_LOCK_MS if held is None else held.lock_ms)


async def _state(queue: Queue[Any, Any], job_id: str) -> JobState | None:
    job = await queue.get_job(job_id, exclude_data=True)
    return None if job is None else job.state


async def _why_lost(job: LeasedJob) -> str:
    if await _state(job.queue, job.facts.id) is JobState.ACTIVE:
        return f"Invalid or expired lock token for job {job.id}"
    return f"Job not found or not in processing state: {job.id}"


async def _reported(session: Session, jobs: Sequence[LeasedJob], report: Sequence[LeaseOutcome]) -> list[LeasedJob]:
    """Forget jobs that were reported; return those whose leases are lost."""
    lost: list[LeasedJob] = []
    for job, outcome in zip(jobs, report, strict=True):
        session.state.held.ended(job.id, job.token)
        if not outcome.applied:
            lost.append(job)
    return lost


async def _answer_of(lost: Sequence[LeasedJob]) -> Answer:
    if not lost:
        return DONE
    if lost[0].is_timed_out:
        return {"data": {"applied": False, "reason": "already-finalized"}}
    raise CommandError(await _why_lost(lost[0]))


async def _ack(session: Session, given: Given) -> Answer:
    job = await leased_job(session, given["id"], given["token"])
    _remove_on_complete(job, given["removeOnComplete"])
    result = stored_value(given["result"])
    await check_readers("result", result, job.queue)
    outcomes = await (await session.state.hub(job.queue.name)).complete([(job.facts, result)])
    return await _answer_of(await _reported(session, [job], outcomes))


def _remove_on_complete(job: LeasedJob, remove: bool) -> None:
    if remove:
        job.facts = job.facts._replace(keep=1)


async def _ack_many(session: Session, given: Given) -> Answer:
    ids: list[str] = given["ids"]
    for field in ("results", "tokens", "removeOnCompletes"):
        if given[field] is not None and len(given[field]) != len(ids):
            raise CommandError(f"ACKB {field} length must match ids length")
    nothing: list[Any] = [None] * len(ids)
    results, tokens, removals = (given[field] or nothing for field in ("results", "tokens", "removeOnCompletes"))
    jobs: list[LeasedJob] = []
    named: dict[tuple[str, str], LeasedJob] | None = {} if len(set(ids)) < len(ids) else None
    queues: dict[str, Queue[Any, Any]] = {}
    pairs: dict[Queue[Any, Any], list[tuple[LeasedJob, Any]]] = {}
    for number, (job_id, result, token, remove) in enumerate(zip(ids, results, tokens, removals, strict=True)):
        if token is not None and not isinstance(token, str):
            raise CommandError(f"tokens[{number}] must be a string")
        held = session.state.held.find(job_id)
        queue = None if held is None or not held.is_of(token) else queues.get(held.queue)
        if held is None or queue is None:
            job = await leased_job(session, job_id, token)
            queues[job.queue.name] = job.queue
        else:
            job = LeasedJob(job_id, queue, held.facts, held.token, held.lock_ms)
        if named is not None:
            first = named.setdefault((job_id, job.token), job)
            if first is not job:
                jobs.append(first)
                continue  # as a repeated ACK: accepted, and the first result stays
        jobs.append(job)
        _remove_on_complete(job, remove is True)
        value = stored_value(result)
        if value.__class__ is PackedValue:
            await check_readers(f"results[{number}]", value, job.queue)
        pairs.setdefault(job.queue, []).append((job, value))
    lost: list[LeasedJob] = []
    for queue, of_queue in pairs.items():
        hub = await session.state.hub(queue.name)
        outcomes = await hub.complete([(job.facts, result) for job, result in of_queue])
        lost += await _reported(session, [job for job, _ in of_queue], outcomes)
    return await _answer_of_many(ids, jobs, lost)


async def _answer_of_many(ids: Sequence[str], jobs: Sequence[LeasedJob], lost: Sequence[LeasedJob]) -> Answer:
    ignored = [job for job in lost if job.is_timed_out]
    for job in lost:
        if job not in ignored:
            raise CommandError(await _why_lost(job))
    if not ignored:
        return DONE
    indices = [number for number, job in enumerate(jobs) if job in ignored]
    return {"data": {"ignoredIndices": indices, "ignoredIds": [ids[number] for number in indices]}}


def _begin_ack(session: Session, given: Given) -> Begun | None:
    job_id, token, result, remove = given["id"], given["token"], given["result"], given["removeOnComplete"]
    return _begin_acks(session, (job_id,), ((job_id, token, result, remove),), lambda _, lost: _answer_of(lost))


def _begin_ack_many(session: Session, given: Given) -> Begun | None:
    ids: list[str] = given["ids"]
    nothing: list[Any] = [None] * len(ids)
    results, tokens, removals = (
        nothing if given[field] is None else given[field] for field in ("results", "tokens", "removeOnCompletes")
    )
    if not 0 < len(ids) == len(results) == len(tokens) == len(removals) <= MOST_FETCHED or len(set(ids)) < len(ids):
        return None  # the handler answers with the error, or in parts
    rows = zip(ids, tokens, results, removals, strict=True)
    return _begin_acks(session, ids, rows, lambda jobs, lost: _answer_of_many(ids, jobs, lost))


def _begin_acks(
    session: Session, ids: Sequence[str], rows: Iterable[tuple[str, Any, Any, Any]],
    answer: Callable[[Sequence[LeasedJob], Sequence[LeasedJob]], Coroutine[Any, Any, Answer]],
) -> Begun | None:  # fmt: skip
    """Report jobs of one queue that this process has fetched; None if a task is needed: nothing was done.

    Args:
        session: The connection of the client.
        ids: Ids of the jobs on the wire.
        rows: Id, token, result and whether to remove it, of each job.
        answer: Returns the answer if not all jobs were completed, given all jobs and those whose leases are lost.
    """
    held, known, results = session.state.held, list[Held](), list[tuple[LeaseFacts, Any]]()
    for job_id, token, result, remove in rows:
        found = held.find(job_id)
        if found is None or (token != found.token and (token is not None or found.is_owned)):
            return None
        value = None if result is None else stored_value(result)
        if value.__class__ is PackedValue or (known and found.queue != known[0].queue):
            return None
        known.append(found)
        results.append((found.facts._replace(keep=1) if remove is True else found.facts, value))
    hub = session.state.known_reporting_hub(known[0].queue)
    try:
        reporting = None if hub is None else hub.begin_complete(results)
    except (GlideMQError, UnicodeEncodeError):
        return None  # the handler answers with the error
    if reporting is None:
        return None

    def finish(reporting: asyncio.Future[list[LeaseOutcome]]) -> Answer | Coroutine[Any, Any, Answer]:
        if not reporting.cancelled() and reporting.exception() is None:
            held.all_ended(ids, [each.token for each in known])
            if set(reporting.result()) == _ALL_COMPLETED:
                return PortableMap(id=UNDEFINED)
        elif reporting.cancelled():
            raise asyncio.CancelledError
        return end(reporting)

    async def end(reporting: asyncio.Future[list[LeaseOutcome]]) -> Answer:
        outcomes, jobs = reporting.result(), list[LeasedJob]()
        for job_id, each in zip(ids, known, strict=True):
            queue = await session.state.part(each.queue)
            jobs.append(LeasedJob(job_id, queue, each.facts, each.token, each.lock_ms))
        lost = [job for job, outcome in zip(jobs, outcomes, strict=True) if not outcome.applied]
        return await answer(jobs, lost)

    return Begun(reporting, finish)


class ClientError(Exception):
    """An error that a client has reported; its stack is stored as the traceback."""

    innermost_first = True

    def __init__(self, message: str, stack: Sequence[str]) -> None:
        super().__init__(message)
        self.sandbox_traceback = "\n".join(stack) or message


async def _fail(session: Session, given: Given) -> Answer:
    error = ClientError(given["error"], given["stack"] or ())
    return await end_attempt(session, given, error, retry=not given["unrecoverable"], remove=given["removeOnFail"])


async def end_attempt(
    session: Session, given: Given, error: ClientError, *, retry: bool = False, remove: bool = False
) -> Answer:  # fmt: skip
    """Fail the attempt of an active job, and return the answer.

    Args:
        session: The session.
        given: Has the `id` of the job and its `token`.
        error: Why it failed.
        retry: Let the job be retried if it has attempts left.
        remove: Delete the job if this was its last attempt.

    Raises:
        CommandError: If there is no such job, or the token is missing or invalid.
    """
    job = await leased_job(session, given["id"], given["token"])
    hub = await session.state.hub(job.queue.name)
    outcome = await hub.fail(job.lease, error, retry=retry, remove=remove)
    return await _answer_of(await _reported(session, [job], [outcome]))


_DURATION: Final = Field("duration", Kind.INTEGER, minimum=1_000, maximum=MAX_LOCK_MS)
_IDS: Final = Field("ids", Kind.TEXTS, required=True)
_MOST_AT_ONCE: Final = 1_000
"""Locks that are renewed from memory before the command gets a task."""


_Renewal = tuple[str, str | None, int | None]
"""Id of a job on the wire, token or None, and duration of the lock or None."""


async def _renew(session: Session, renewals: Sequence[_Renewal]) -> int:
    """Extend the locks of jobs; return how many were extended."""
    held, count = session.state.held, 0
    calls: dict[tuple[Queue[Any, Any], int], list[LeasedJob]] = {}
    for job_id, given, duration in renewals:
        fresh = held.fresh(job_id, given, duration, time.monotonic())
        if fresh is not None:
            fresh.is_kept = True
            count += 1
            continue
        if held.has_ended(job_id, given):
            continue
        known = held.find(job_id)
        try:
            job = await leased_job(session, job_id, given or (None if known is None else known.token))
        except CommandError:
            continue
        calls.setdefault((job.queue, duration or job.lock_ms), []).append(job)
    for (queue, ms), jobs in calls.items():
        outcomes = await queue.leases.extend([job.lease for job in jobs], ms)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome.applied:
                held.renewed(job.id, job.token, ms)
                count += 1
        session.state.extended(queue.name, ms)
    return count


def _heartbeat_fresh(session: Session, given: Given) -> Answer | None:
    held = session.state.held.fresh(given["id"], given["token"], given["duration"], time.monotonic())
    if held is None:
        return None
    held.is_kept = True
    return {"data": {"ok": True}}


def _heartbeats_fresh(session: Session, given: Given) -> Answer | None:
    ids, tokens = given["ids"], given["tokens"]
    if len(ids) > _MOST_AT_ONCE or (tokens is not None and len(tokens) != len(ids)):
        return None  # the handler renews them, or answers with the error
    count = session.state.held.renew_fresh(ids, repeat(None, len(ids)) if tokens is None else tokens)
    return None if count is None else PortableMap(data={"ok": True, "count": count})


def _renewals(given: Given) -> list[_Renewal]:
    ids, tokens = given["ids"], given["tokens"]
    if tokens is not None and len(tokens) != len(ids):
        raise CommandError("tokens must have as many items as ids")
    nothing: list[Any] = [None] * len(ids)
    pairs = zip(ids, tokens or nothing, strict=True)
    return [(job_id, token if isinstance(token, str) else None, None) for job_id, token in pairs]


async def _heartbeat(session: Session, given: Given) -> Answer:
    if not await _renew(session, [(given["id"], given["token"], given["duration"])]):
        raise CommandError("Job not found or not active (or invalid token)")
    return {"data": {"ok": True}}


async def _heartbeats(session: Session, given: Given) -> Answer:
    return {"data": {"ok": True, "count": await _renew(session, _renewals(given))}}


async def _extend(session: Session, given: Given) -> Answer:
    if not given["token"] or not await _renew(session, [(given["id"], given["token"], given["duration"])]):
        raise CommandError("Lock not found or invalid token")
    return DONE


async def _extend_many(session: Session, given: Given) -> Answer:
    ids, tokens, durations = given["ids"], given["tokens"], given["durations"]
    for field in ("tokens", "durations"):
        if len(given[field]) != len(ids):
            raise CommandError(f"{field} must have as many items as ids")
    for number, duration in enumerate(durations):
        if not is_number(duration) or not 1_000 <= duration <= MAX_LOCK_MS:
            raise CommandError(f"durations[{number}] must be a number from 1000 to {MAX_LOCK_MS}")
    given_rows = zip(ids, tokens, durations, strict=True)
    renewals = [(job_id, token, round(duration)) for job_id, token, duration in given_rows if token]
    return {"count": await _renew(session, renewals)}


COMMANDS: Final = (
    Command(
        "ACK", "core", _ack, "Complete a job with its result.",
        (JOB, TOKEN, Field("result", Kind.ANY), Field("removeOnComplete", Kind.FLAG, default=False)),
        begin=_begin_ack,
    ),
    Command(
        "ACKB", "core", _ack_many, "Complete many jobs.",
        (
            Field("ids", Kind.TEXTS, required=True), Field("results", Kind.LIST), Field("tokens", Kind.LIST),
            Field("removeOnCompletes", Kind.LIST),
        ),
        begin=_begin_ack_many,
    ),
    Command(
        "FAIL", "core", _fail, "Fail an attempt: the job is retried after its backoff, if it has attempts left.",
        (
            JOB, TOKEN, Field("error", default="Unknown error"), Field("unrecoverable", Kind.FLAG, default=False),
            Field("stack", Kind.TEXTS), Field("removeOnFail", Kind.FLAG, default=False),
        ),
    ),
    Command(
        "JobHeartbeat", "locks", _heartbeat, "Renew the lock of a job.", (JOB, TOKEN, _DURATION),
        quick=_heartbeat_fresh,
    ),
    Command(
        "JobHeartbeatB", "locks", _heartbeats, "Renew the locks of many jobs; return how many were renewed.",
        (_IDS, Field("tokens", Kind.LIST)), quick=_heartbeats_fresh,
    ),
    Command(
        "ExtendLock", "locks", _extend, "Extend the lock of a job.",
        (JOB, TOKEN, Field("duration", Kind.INTEGER, required=True, minimum=1_000, maximum=MAX_LOCK_MS)),
    ),
    Command(
        "ExtendLocks", "locks", _extend_many, "Extend the locks of many jobs; return how many were extended.",
        (_IDS, Field("tokens", Kind.TEXTS, required=True), Field("durations", Kind.LIST, required=True)),
    ),
)  # fmt: skip
