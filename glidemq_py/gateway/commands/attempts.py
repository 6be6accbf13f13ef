"""Commands that fetch jobs, report the end of their attempts, and renew their locks."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._api.lease import DEFAULTS, MAX_LOCK_MS, Lease
from glidemq_py._api.lease_exchange import LeaseOutcome, Report, exchange
from glidemq_py._core.calls import working
from glidemq_py._core.payload import PackedValue
from glidemq_py._core.record import JobState
from glidemq_py._features.leases import LeaseFacts, decode_token
from glidemq_py.errors import GlideMQValidationError, JobDataError
from glidemq_py.gateway.fetched import DEFAULT_LOCK_MS, Fetched, Held
from glidemq_py.gateway.hub import MOST_FETCHED
from glidemq_py.gateway.job_objects import check_readers, stored_value
from glidemq_py.gateway.listing import located
from glidemq_py.gateway.push_rows import set_group_defaults
from glidemq_py.gateway.session import Commands, Session
from glidemq_py.gateway.slices import JOB_CHARS, LARGE_CHARS, VALUE_PARTS, Slices, too_deep
from glidemq_py.gateway.table import DONE, JOB, STRICT_QUEUE, TOKEN, Answer, CommandError, Field, Given, Kind, is_number
from glidemq_py.gateway.values import Encoded, LargeAnswer, PackedList

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
    "GET /queues/{queue}/jobs",
    *_FIELDS,
    summary="Fetch a job; `timeout` ms at most until one is ready.",
)
@COMMANDS(
    "PULLB",
    "core",
    "POST /queues/{queue}/jobs/pull-batch",
    *_FIELDS,
    Kind.INTEGER("count", 1, 1_000, default=0),
    summary="Fetch up to `count` jobs; wait for the first only.",
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
                job_id = await ids.on_wire(name, job.id)
            known.append((job_id, job, job.token))
            size += job.size
    except BaseException:  # nobody gets the jobs
        for each in fetched:
            if hub := session.state.hubs.get(each.queue_name):
                hub.release((each,))
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
    session: Session, queue: Queue, count: int, lock_ms: int, wait: float
) -> list[Fetched]:  # fmt: skip
    began = time.monotonic()
    while True:
        fetching = await session.state.fetching(queue)
        fetched = await fetching.fetch(count, lock_ms, wait)
        if fetched or wait <= 0 or fetching.partitions is queue._partitions:
            return fetched
        # The queue was partitioned meanwhile: the others may have a job.
        wait, began = wait - (time.monotonic() - began), time.monotonic()


_ALL_COMPLETED: Final = {LeaseOutcome.COMPLETED}
_LOST: Final = "Invalid or expired lock token for job {}"
_NOT_FOUND: Final = "Job not found or not in processing state: {}"


async def lease_of(session: Session, job: Held) -> Lease[Any, Any]:
    """Return the lease of a job."""
    return Lease(await session.state.part(job.queue), job.facts, DEFAULTS)


async def end_early(session: Session, job: Held, row_of: Callable[..., working.Finished], *rest: Any) -> None:
    """End the attempt of a job without counting it.

    Args:
        session: The session.
        job: The job.
        row_of: Makes the row of the report from the facts of the lease, and the rest.
        *rest: The other arguments of ``row_of``.

    Raises:
        CommandError: If the lease is lost.
    """
    facts = job.facts
    row = row_of(facts.id, facts.entry, facts.fence, facts.processed_on, *rest)
    found = await exchange(await session.state.part(job.queue), [Report(row, facts.limit, None)])
    if not found.outcomes[0].applied:
        raise CommandError(_LOST.format(job.id))
    session.state.held.ended((job,))


async def leased_job(session: Session, job_id: str, token: str | None) -> Held:
    """Return the job that a command reports.

    Raises:
        CommandError: If there is no such job, or the token is missing or invalid.
    """
    held = session.state.held.find(job_id)
    if held is not None and held.is_of(token):
        return held
    found = await session.state.ids.find(job_id)
    if found is None:
        raise CommandError(_NOT_FOUND.format(job_id))
    queue, own = await located(session, *found)
    if not token:
        if await _state(queue, own) is JobState.ACTIVE:
            raise CommandError(f"Lock token required for job {job_id}")
        raise CommandError(_NOT_FOUND.format(job_id))
    try:
        facts = decode_token(queue.options.prefix, queue.name, token)
    except GlideMQValidationError:
        raise CommandError(_LOST.format(job_id)) from None
    if facts.id != own:
        raise CommandError(_LOST.format(job_id))
    return Held(job_id, queue.name, facts, token, DEFAULT_LOCK_MS if held is None else held.lock_ms)


async def _state(queue: Queue, job_id: str) -> JobState | None:
    job = await queue.get_job(job_id, exclude_data=True)
    return None if job is None else job.state


async def _why_lost(session: Session, job: Held) -> str:
    if await _state(await session.state.part(job.queue), job.facts.id) is JobState.ACTIVE:
        return _LOST.format(job.id)
    return _NOT_FOUND.format(job.id)


async def _answer_of(session: Session, lost: Sequence[Held]) -> Answer:
    if not lost:
        return DONE
    if lost[0].is_timed_out:
        return {"data": {"applied": False, "reason": "already-finalized"}}
    raise CommandError(await _why_lost(session, lost[0]))


_Completion = tuple[str, str | None, Any, Any]
"""Id of a job on the wire, token or None, result, and True if the job is deleted."""


@COMMANDS(
    "ACK", "core", "POST /jobs/{id}/ack", JOB, TOKEN, Kind.ANY("result"), Kind.FLAG("removeOnComplete", default=False)
)
async def _ack(session: Session, given: Given) -> Answer:
    """Complete a job with its result."""
    completion = given["id"], given["token"], given["result"], given["removeOnComplete"]
    return await _answer_of(session, (await _complete(session, (completion,), lambda _: "result"))[1])


async def _complete(
    session: Session, completions: Sequence[_Completion], name_of: Callable[[int], str]
) -> tuple[list[Held], list[Held]]:  # fmt: skip
    """Complete jobs.

    Args:
        session: The session.
        completions: The jobs. Of two with one id and token, as of a repeated ACK, the first result stays.
        name_of: Returns the name of a result in errors, given its position.

    Returns:
        The jobs, and those whose leases are lost.
    """
    held, jobs = session.state.held, list[Held]()
    reported, is_repeated = set[tuple[str, str]](), len({each[0] for each in completions}) < len(completions)
    of_queues: defaultdict[str, tuple[list[Held], list[tuple[LeaseFacts, Any]]]] = defaultdict(lambda: ([], []))
    for job_id, token, result, remove in completions:
        job = held.find(job_id)
        if job is None or (token != job.token and not job.is_of(token)):
            job = await leased_job(session, job_id, token)
        jobs.append(job)
        if is_repeated:
            if (job_id, job.token) in reported:
                continue
            reported.add((job_id, job.token))
        value = None if result is None else stored_value(result)
        if value.__class__ is PackedValue:
            await check_readers(name_of(len(jobs) - 1), value, await session.state.part(job.queue))
        of_queue, results = of_queues[job.queue]
        of_queue.append(job)
        results.append((job.facts._replace(keep=1) if remove is True else job.facts, value))
    lost: list[Held] = []
    for queue, (of_queue, results) in of_queues.items():
        hub = await session.state.hub(queue)
        outcomes = await hub.complete(results)
        held.ended(of_queue)
        if set(outcomes) != _ALL_COMPLETED:
            lost += [job for job, outcome in zip(of_queue, outcomes, strict=True) if not outcome.applied]
    return jobs, lost


@COMMANDS(
    "ACKB",
    "core",
    "POST /jobs/ack-batch",
    Kind.TEXTS("ids", required=True),
    Kind.LIST("results"),
    Kind.LIST("tokens"),
    Kind.LIST("removeOnCompletes"),
)
async def _ack_many(session: Session, given: Given) -> Answer:
    """Complete many jobs."""
    ids: list[str] = given["ids"]
    for field in ("results", "tokens", "removeOnCompletes"):
        if given[field] is not None and len(given[field]) != len(ids):
            raise CommandError(f"ACKB {field} length must match ids length")
    nothing: list[Any] = [None] * len(ids)
    results, tokens, removals = (given[field] or nothing for field in ("results", "tokens", "removeOnCompletes"))
    for number, token in enumerate(tokens):
        if token is not None and token.__class__ is not str:
            raise CommandError(f"tokens[{number}] must be a string")
    completions = [*zip(ids, tokens, results, removals, strict=True)]
    jobs, lost = await _complete(session, completions, "results[{}]".format)
    ignored = [job for job in lost if job.is_timed_out]
    for job in lost:
        if job not in ignored:
            raise CommandError(await _why_lost(session, job))
    if not ignored:
        return DONE
    indices = [number for number, job in enumerate(jobs) if job in ignored]
    return {"data": {"ignoredIndices": indices, "ignoredIds": [ids[number] for number in indices]}}


class ClientError(Exception):
    """An error that a client has reported; its stack is stored as the traceback."""

    innermost_first = True

    def __init__(self, message: str, stack: Sequence[str]) -> None:
        super().__init__(message)
        self.sandbox_traceback = "\n".join(stack) or message


@COMMANDS(
    "FAIL",
    "core",
    "POST /jobs/{id}/fail",
    JOB,
    TOKEN,
    Field("error", default="Unknown error"),
    Kind.FLAG("unrecoverable", default=False),
    Kind.TEXTS("stack"),
    Kind.FLAG("removeOnFail", default=False),
)
async def _fail(session: Session, given: Given) -> Answer:
    """Fail an attempt: the job is retried after its backoff, if it has attempts left."""
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
    hub = await session.state.hub(job.queue)
    outcome = await hub.fail(await lease_of(session, job), error, retry=retry, remove=remove)
    session.state.held.ended((job,))
    return await _answer_of(session, () if outcome.applied else (job,))


_DURATION: Final = Kind.INTEGER("duration", 1_000, MAX_LOCK_MS)
_IDS: Final = Kind.TEXTS("ids", required=True)
_Renewal = tuple[str, str | None, int | None]
"""Id of a job on the wire, token or None, and duration of the lock or None."""


async def _renew(session: Session, renewals: Iterable[_Renewal]) -> int:
    """Extend the locks of jobs; return how many were extended."""
    held, count, now = session.state.held, 0, time.monotonic()
    calls: dict[tuple[str, int], list[Held]] = {}
    for job_id, given, duration in renewals:
        fresh = held.fresh(job_id, given, duration, now)
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
        leases = [await lease_of(session, job) for job in jobs]
        outcomes = await (await session.state.part(queue)).leases.extend(leases, ms)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome.applied:
                held.renewed(job.id, job.token, ms)
                count += 1
        if hub := session.state.hubs.get(queue):
            hub.expect_end(ms / 1_000)  # maybe earlier than before
    return count


@COMMANDS("JobHeartbeat", "locks", "POST /jobs/{id}/heartbeat", JOB, TOKEN, _DURATION)
async def _heartbeat(session: Session, given: Given) -> Answer:
    """Renew the lock of a job."""
    if not await _renew(session, [(given["id"], given["token"], given["duration"])]):
        raise CommandError("Job not found or not active (or invalid token)")
    return {"data": {"ok": True}}


@COMMANDS("JobHeartbeatB", "locks", "POST /jobs/heartbeat-batch", _IDS, Kind.LIST("tokens"))
async def _heartbeats(session: Session, given: Given) -> Answer:
    """Renew the locks of many jobs; return how many were renewed."""
    ids, tokens = given["ids"], given["tokens"]
    if tokens is not None and len(tokens) != len(ids):
        raise CommandError("tokens must have as many items as ids")
    texts = [each if isinstance(each, str) else None for each in tokens] if tokens else repeat(None)
    return {"data": {"ok": True, "count": await _renew(session, zip(ids, texts, repeat(None), strict=False))}}


@COMMANDS(
    "ExtendLock",
    "locks",
    "POST /jobs/{id}/extend-lock",
    JOB,
    TOKEN,
    Kind.INTEGER("duration", 1_000, MAX_LOCK_MS, required=True),
)
async def _extend(session: Session, given: Given) -> None:
    """Extend the lock of a job."""
    if not given["token"] or not await _renew(session, [(given["id"], given["token"], given["duration"])]):
        raise CommandError("Lock not found or invalid token")


@COMMANDS(
    "ExtendLocks",
    "locks",
    "POST /jobs/extend-locks",
    _IDS,
    Kind.TEXTS("tokens", required=True),
    Kind.LIST("durations", required=True),
)
async def _extend_many(session: Session, given: Given) -> Answer:
    """Extend the locks of many jobs; return how many were extended."""
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
