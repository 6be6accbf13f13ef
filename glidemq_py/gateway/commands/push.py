"""Commands that add jobs, and the option `repeat`: a scheduler that adds the further ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.payload import PackedValue
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway.job_ids import JobIds
from glidemq_py.gateway.push_bulk import Bulk
from glidemq_py.gateway.push_options import (
    JOB_FIELDS,
    chosen_id,
    ineffective_policies,
    push_of,
    reject_keys,
    zone_name,
)
from glidemq_py.gateway.session import Commands, Session, Way
from glidemq_py.gateway.table import (
    STRICT_QUEUE,
    Answer,
    CommandError,
    Field,
    Given,
    Kind,
    check_all,
    check_nested,
    is_map,
    is_number,
)
from glidemq_py.gateway.values import UNDEFINED, PortableMap

COMMANDS: Final = Commands()


def _note_policies(session: Session, first: Any) -> None:
    """Log once per connection that options of its jobs have no effect, given its first job: they are often defaults."""
    if not session.has_noted_policies and is_map(first) and (names := ineffective_policies(first)):
        session.has_noted_policies = True
        text = f"gateway: {', '.join(names)} of {session.peer}: no effect on jobs without parentId"
        session.state.warnings.warn("policies", text)


@COMMANDS(
    "PUSH",
    "core",
    "POST /queues/{queue}/jobs",
    STRICT_QUEUE,
    *JOB_FIELDS,
    checks_job=True,
    renamed={"attempts": "maxAttempts"},
    needs_body=True,
)
async def _push(session: Session, given: Given) -> Answer:
    """Add a job."""
    return PortableMap(id=(await _add(session, given["queue"], (given["job"],), is_many=False))[0])


@COMMANDS(
    "PUSHB",
    "core",
    "POST /queues/{queue}/jobs/bulk",
    STRICT_QUEUE,
    Kind.LIST("jobs", required=True),
    wrapped="jobs",
    needs_body=True,
)
async def _push_many(session: Session, given: Given) -> Answer:
    """Add up to 100,000 jobs, all or none; each has the fields of `PUSH`."""
    jobs = given["jobs"]
    return PortableMap(ids=await _add(session, given["queue"], jobs, is_many=True) if jobs else [])


async def _add(session: Session, name: str, jobs: Sequence[Any], *, is_many: bool) -> list[str]:
    """Add the jobs with these fields, which are not checked yet; return their ids on the wire. See `Bulk`."""
    _note_policies(session, jobs[0])
    state, order = session.state, session.push_order
    await session.pushing.acquire()
    try:
        queue = await state.queue(name)
        if [each for each in jobs if each.__class__ is dict and each.get("repeat")]:
            (await order.enter(name, Way.ALONE))()
            # A client that leaves must not stop it halfway.
            return await state.finished(_add_repeated(session, queue, jobs, is_many=is_many))
        state.maintain(queue)
        bulk = Bulk(state, queue, jobs, is_many=is_many)
        await bulk.check()
        leave = await order.enter(name, bulk.way)
        if bulk.way is Way.ALONE:
            leave()  # no other command can enter meanwhile
            return await bulk.add()
    finally:
        session.pushing.release()
    try:
        return await bulk.add(leave)
    finally:
        leave()


async def _add_repeated(session: Session, queue: Queue, jobs: Sequence[Any], *, is_many: bool) -> list[str]:
    async with repeated(session.state.ids, queue, jobs, is_many=is_many):
        session.state.maintain(queue, now=True)
        bulk = Bulk(session.state, queue, jobs, is_many=is_many)
        await bulk.check()
        return await bulk.add()


_PREFIX: Final = "repeat:"
_MOST: Final = 2**53 - 1
_FIELDS: Final = (
    Kind.ANY("every"), Field("pattern", minimum=1, maximum=1_000),
    Kind.INTEGER("limit", 0, _MOST), Kind.INTEGER("count", 0, _MOST),
    Kind.NUMBER("startDate", 0, _MOST), Kind.NUMBER("endDate", 0, _MOST),
    Field("tz", maximum=256), Kind.FLAG("immediately"), Kind.NUMBER("prevMillis"),
    Kind.UNSUPPORTED("offset"), Field("jobId", minimum=1, maximum=200),
)  # fmt: skip


@asynccontextmanager
async def repeated(
    ids: JobIds, queue: Queue, jobs: Sequence[Any], *, is_many: bool
) -> AsyncGenerator[None]:  # fmt: skip
    """Create the schedulers of the jobs with `repeat`, which the block adds.

    If the block fails, the new ones are removed again.

    Args:
        ids: Makes and reads ids.
        queue: The queue.
        jobs: Fields of jobs, unchecked.
        is_many: Whether errors name the position of a job.

    Raises:
        CommandError: If an option is invalid. Nothing was created.
    """
    repeating = [(number, each) for number, each in enumerate(jobs) if is_map(each) and each.get("repeat")]
    plans: list[tuple[str, dict[str, Any]]] = []
    for number, each in repeating:
        try:
            plans.append(await _plan(ids, queue, each))
        except CommandError as error:
            raise CommandError(f"jobs[{number}]: {error}" if is_many else str(error)) from None
    created: list[str] = []
    try:
        for name, options in plans:
            is_new = await queue.schedulers.get(name) is None
            await _create(queue, name, options)
            if is_new:
                created.append(name)
        yield
    except BaseException:
        for name in created:
            await queue.schedulers.remove(name)
        raise


async def _plan(ids: JobIds, queue: Queue, given: Given) -> tuple[str, dict[str, Any]]:
    """Return name and options of the scheduler of a job."""
    repeat = given["repeat"]
    if not is_map(repeat) or (_is_given(repeat, "every") == _is_given(repeat, "pattern")):
        raise CommandError("repeat requires exactly one of every or pattern")
    found = check_nested("repeat", _FIELDS, repeat)
    fields = check_all(JOB_FIELDS, given)
    if chosen_id(fields) is not None:
        raise CommandError("repeat jobs cannot use JobOptions.jobId; use repeat.jobId instead")
    for name in ("dependsOn", "parentId"):
        if fields[name]:
            raise CommandError(f"{name} is not supported for jobs with repeat")
    name, data, options = await push_of(ids, queue.name, fields)
    if data.__class__ is PackedValue:
        raise CommandError("data must be JSON for jobs with repeat")
    await reject_keys(queue, options, "repeat")
    key = found["jobId"] or options["job_id"]
    for own in ("job_id", "delay"):
        options.pop(own, None)
    schedule = _schedule({**found, "tz": await zone_name(found["tz"])})
    schedule["template"] = {"name": name, "data": data, "options": options}
    return f"{_PREFIX}{key}", schedule


def _is_given(repeat: Mapping[Any, Any], field: str) -> bool:
    return repeat.get(field) not in (None, UNDEFINED)


def _schedule(found: Given) -> dict[str, Any]:
    every = found["every"]
    options: dict[str, Any] = {"overlap": "skip", "misfire": "skip"}
    if every is not None:
        if not is_number(every) or not 0 < every <= _MOST:
            raise CommandError("repeat.every must be a positive finite number")
        options["every"] = max(1, round(every))
    else:
        # As in crontab: a day matches if one of two restricted day fields does.
        options |= {"pattern": found["pattern"], "day_match": "or", "tz": found["tz"] or None}
    if found["limit"]:
        options["limit"] = found["limit"] - (found["count"] or 0)
    for field, option in (("startDate", "start_date"), ("endDate", "end_date")):
        if found[field]:
            options[option] = round(found[field])
    return options


async def _create(queue: Queue, name: str, options: dict[str, Any]) -> None:
    if options.get("limit", 1) <= 0:
        return  # the last run
    try:
        await queue.schedulers.upsert(name, **options)
    except GlideMQValidationError as error:
        if error.option in ("pattern", "tz"):
            value = options[error.option]
            raise CommandError(f"Invalid repeat pattern: repeat.{error.option} {value!r}: {error.problem}") from None
        raise CommandError(f"repeat: {error}") from None
