"""Commands that add, fetch and report jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.calls import working
from glidemq_py._core.job_states import JobState
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._core.payload import PackedValue
from glidemq_py._features.leases.exchanging import LeaseOutcome, Report, exchange
from glidemq_py._features.leases.lease import DEFAULTS, MAX_LOCK_MS, Lease, maker
from glidemq_py._features.leases.tokens import LeaseFacts, decode_token
from glidemq_py.errors import (
    GlideMQValidationError,
    JobDataError,
    LeaseLostError,
    PartitionedQueueError,
    PayloadTooLargeError,
)
from glidemq_py.gateway.bulk import add_usual, push_many, usual_rows
from glidemq_py.gateway.fetched import Fetched
from glidemq_py.gateway.group_limits import set_group_defaults
from glidemq_py.gateway.hub import MOST_FETCHED
from glidemq_py.gateway.job_values import check_readers, stored_value
from glidemq_py.gateway.lookup import located
from glidemq_py.gateway.plain_job import PlainJob
from glidemq_py.gateway.push_order import Way
from glidemq_py.gateway.pushing import JOB_FIELDS, GroupFullError
from glidemq_py.gateway.repeating import repeated
from glidemq_py.gateway.routed import RoutedJob
from glidemq_py.gateway.slices import JOB_CHARS, LARGE_CHARS, VALUE_PARTS, Slices, too_deep
from glidemq_py.gateway.table import Answer, Command, CommandError, Field, Kind, is_map
from glidemq_py.gateway.values import UNDEFINED, Encoded, LargeAnswer

if TYPE_CHECKING:
    from glidemq_py.gateway.session import Session

__all__ = ["COMMANDS", "DEFAULT_LOCK_MS", "ClientError", "LeasedJob", "end_attempt", "leased_job"]

DEFAULT_LOCK_MS: Final = 30_000

_QUEUE: Final = Field("queue", Kind.STRICT_QUEUE, required=True)
_ID: Final = Field("id", required=True)
_TOKEN: Final = Field("token")
_FETCH: Final = (
    _QUEUE, Field("timeout", Kind.NUMBER, minimum=0, maximum=60_000, default=0), Field("owner", maximum=256),
    Field("lockTtl", Kind.INTEGER, minimum=1_000, maximum=MAX_LOCK_MS, default=DEFAULT_LOCK_MS),
    Field("detach", Kind.FLAG, default=False), Field("group", Kind.MAP),
)  # fmt: skip


# -- adding ----------------------------------------------------------------------------------------------------


async def _push(session: Session, given: Mapping[str, Any]) -> Answer:
    return {"id": await _add(session, given["queue"], given["job"])}


async def _add(session: Session, name_of_queue: str, given: Mapping[str, Any]) -> str:
    """Add the job with these fields, which are not checked yet; return its id on the wire."""
    if given.get("repeat"):
        queue = await session.state.queue(name_of_queue)
        async with repeated(session.state.ids, queue, [given]):
            job_id = await _add(session, name_of_queue, {**given, "repeat": None})
        session.state.maintain(queue, now=True)
        return job_id
    async with session.pushing:
        queue = await session.state.queue(name_of_queue)
        session.state.maintain(queue)
        job = await _checked(session, queue, given)
        if isinstance(job, str):
            return job
        place = await session.push_order.enter(queue.name, job.way)
        if job.way is Way.ALONE:
            with place:
                return await job.add()
    with place:
        try:
            return await job.add(added=place.leave)
        except LayoutChangedError:
            if queue._partitions is not None:
                raise
            job = await _checked(session, queue, given)  # the queue was deleted, with its partitions
            return job if isinstance(job, str) else await job.add(added=place.leave)


async def _checked(session: Session, queue: Queue[Any, Any], given: Mapping[str, Any]) -> PlainJob | RoutedJob | str:
    """Return a job to add; or its id, if it is that of an unfinished job."""
    try:
        link = await queue._connected()
    except PartitionedQueueError:
        return await RoutedJob.checked(session.state, queue, given)
    return await PlainJob.checked(session.state, queue, link, given)


async def _push_many(session: Session, given: Mapping[str, Any]) -> Answer:
    jobs = given["jobs"]
    if not jobs:
        return {"ids": []}
    if len(jobs) == 1 and is_map(jobs[0]):  # the client's usual add; it leaves together with others
        try:
            return {"ids": [await _add(session, given["queue"], jobs[0])]}
        except GroupFullError:
            raise
        except PayloadTooLargeError as error:
            raise PayloadTooLargeError(f"jobs[0].{error.option}", error.size, error.limit) from None
        except CommandError as error:
            raise CommandError(f"jobs[0]: {error}") from None
    ids = session.state.ids
    async with session.pushing:
        queue = await session.state.queue(given["queue"])
        usual = await usual_rows(ids, queue, jobs)
        if usual is None:
            with await session.push_order.enter(queue.name, Way.ALONE):
                return {"ids": await _push_all(session, queue, jobs)}
        adder = await queue._adder_here()
        place = await session.push_order.enter(queue.name, Way.TOGETHER)
    with place:
        session.state.maintain(queue)
        session.state.adding(queue.name)
        try:
            return {"ids": await add_usual(ids, queue, adder, *usual)}
        except LayoutChangedError:
            return {"ids": await _push_all(session, queue, jobs)}


async def _push_all(session: Session, queue: Queue[Any, Any], jobs: Sequence[Any]) -> list[str]:
    # A client that leaves must not stop it halfway: all jobs are added, or none.
    return await session.state.finished(_push_repeated(session, queue, jobs))


async def _push_repeated(session: Session, queue: Queue[Any, Any], jobs: Sequence[Any]) -> list[str]:
    async with repeated(session.state.ids, queue, jobs) as repeats:
        session.state.maintain(queue, now=repeats)
        return await push_many(session.state.ids, queue, jobs, session.state.added)


# -- fetching --------------------------------------------------------------------------------------------------


async def _pull(session: Session, given: Mapping[str, Any]) -> Answer:
    jobs, tokens, is_encoded = await _fetch(session, given, 1)
    job = jobs[0] if jobs else None
    answer: Answer = LargeAnswer(job=job) if is_encoded else {"job": job}
    if given["owner"] is not None:
        answer["token"] = tokens[0] if tokens else None
    return answer


async def _pull_many(session: Session, given: Mapping[str, Any]) -> Answer:
    count = min(given["count"], MOST_FETCHED)
    jobs, tokens, is_encoded = await _fetch(session, given, count) if count else ([], [], False)
    answer: Answer = LargeAnswer(jobs=jobs) if is_encoded else {"jobs": jobs}
    if given["owner"] is not None:
        answer["tokens"] = tokens
    return answer


def _is_empty(session: Session, given: Mapping[str, Any]) -> bool:
    hub = None if given["timeout"] else session.state.known_hub(given["queue"])
    return hub is not None and hub.is_empty()


def _pull_nothing(session: Session, given: Mapping[str, Any]) -> Answer | None:
    if not _is_empty(session, given):
        return None
    return {"job": None} if given["owner"] is None else {"job": None, "token": None}


def _pull_no_jobs(session: Session, given: Mapping[str, Any]) -> Answer | None:
    if not _is_empty(session, given):
        return None
    return {"jobs": []} if given["owner"] is None else {"jobs": [], "tokens": []}


async def _fetch(session: Session, given: Mapping[str, Any], count: int) -> tuple[list[Any], list[str], bool]:
    """Return the objects of fetched jobs, their tokens, and whether the objects are encoded already."""
    queue, lock_ms = await session.state.queue(given["queue"]), given["lockTtl"]
    session.state.maintain(queue)
    if given["group"] is not None:
        await set_group_defaults(queue, given["group"])
    wait = given["timeout"] / 1_000
    fetching = _fetch_from(session, queue, count, lock_ms, wait)
    fetched = (await session.polled(fetching) or []) if wait else await fetching
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


# -- reporting -------------------------------------------------------------------------------------------------


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
        await self._end(working.delayed(*self._attempt, ms, 0, None))

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
        found = await exchange(self.queue, [report], None, maker(self.queue, None))
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
        return {"id": UNDEFINED}
    if lost[0].is_timed_out:
        return {"data": {"applied": False, "reason": "already-finalized"}}
    raise CommandError(await _why_lost(lost[0]))


async def _ack(session: Session, given: Mapping[str, Any]) -> Answer:
    job = await leased_job(session, given["id"], given["token"])
    _remove_on_complete(job, given["removeOnComplete"])
    result = stored_value(given["result"])
    await check_readers("result", result, job.queue)
    outcomes = await (await session.state.hub(job.queue.name)).complete([(job.facts, result)])
    return await _answer_of(await _reported(session, [job], outcomes))


def _remove_on_complete(job: LeasedJob, remove: bool) -> None:
    if remove:
        job.facts = job.facts._replace(keep=1)


async def _ack_many(session: Session, given: Mapping[str, Any]) -> Answer:
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
    ignored = [job for job in lost if job.is_timed_out]
    for job in lost:
        if job not in ignored:
            raise CommandError(await _why_lost(job))
    if not ignored:
        return {"id": UNDEFINED}
    indices = [number for number, job in enumerate(jobs) if job in ignored]
    return {"data": {"ignoredIndices": indices, "ignoredIds": [ids[number] for number in indices]}}


class ClientError(Exception):
    """An error that a client has reported; its stack is stored as the traceback."""

    innermost_first = True

    def __init__(self, message: str, stack: Sequence[str]) -> None:
        super().__init__(message)
        self.sandbox_traceback = "\n".join(stack) or message


async def _fail(session: Session, given: Mapping[str, Any]) -> Answer:
    error = ClientError(given["error"], given["stack"] or ())
    return await end_attempt(session, given, error, retry=not given["unrecoverable"], remove=given["removeOnFail"])


async def end_attempt(
    session: Session, given: Mapping[str, Any], error: ClientError, *, retry: bool = False, remove: bool = False
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


COMMANDS: Final = (
    Command("PUSH", "core", _push, "Add a job.", (_QUEUE, *JOB_FIELDS), checks_job=True),
    Command(
        "PUSHB", "core", _push_many, "Add up to 100,000 jobs, all or none; each has the fields of `PUSH`.",
        (_QUEUE, Field("jobs", Kind.LIST, required=True)),
    ),
    Command(
        "PULL", "core", _pull, "Fetch a job; `timeout` ms at most until one is ready.", _FETCH, quick=_pull_nothing,
    ),
    Command(
        "PULLB", "core", _pull_many, "Fetch up to `count` jobs; wait for the first only.",
        (*_FETCH, Field("count", Kind.INTEGER, minimum=1, maximum=1_000, default=0)), quick=_pull_no_jobs,
    ),
    Command(
        "ACK", "core", _ack, "Complete a job with its result.",
        (_ID, _TOKEN, Field("result", Kind.ANY), Field("removeOnComplete", Kind.FLAG, default=False)),
    ),
    Command(
        "ACKB", "core", _ack_many, "Complete many jobs.",
        (
            Field("ids", Kind.TEXTS, required=True), Field("results", Kind.LIST), Field("tokens", Kind.LIST),
            Field("removeOnCompletes", Kind.LIST),
        ),
    ),
    Command(
        "FAIL", "core", _fail, "Fail an attempt: the job is retried after its backoff, if it has attempts left.",
        (
            _ID, _TOKEN, Field("error", default="Unknown error"), Field("unrecoverable", Kind.FLAG, default=False),
            Field("stack", Kind.TEXTS), Field("removeOnFail", Kind.FLAG, default=False),
        ),
    ),
)  # fmt: skip
