"""Commands that add jobs, and the option `repeat`: a scheduler that adds the further ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast

from glidemq_py._api.coalescer import AddCoalescer
from glidemq_py._api.job_queue import Queue
from glidemq_py._core.payload import PackedValue
from glidemq_py.errors import GlideMQValidationError, LayoutChangedError, PayloadTooLargeError
from glidemq_py.gateway.job_ids import JobIds
from glidemq_py.gateway.push_bulk import Bulk, add_usual, begin_usual, usual_rows
from glidemq_py.gateway.push_one import RoutedJob, reject_keys
from glidemq_py.gateway.push_options import (
    JOB_FIELDS,
    GroupFullError,
    chosen_id,
    ineffective_policies,
    push_of,
    zone_name,
)
from glidemq_py.gateway.session import Begun, Command, Handler, Session, Way
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

__all__ = ["COMMANDS", "repeated"]


def _note_policies(session: Session, first: Any) -> None:
    """Log once per connection that options of its jobs have no effect, given its first job: they are often defaults."""
    if not session.has_noted_policies and (names := ineffective_policies(first)):
        session.has_noted_policies = True
        text = f"gateway: {', '.join(names)} of {session.peer}: no effect on jobs without parentId"
        session.state.warnings.warn("policies", text)


async def _push(session: Session, given: Given) -> Answer:
    _note_policies(session, given["job"])
    return {"id": await _add(session, given["queue"], given["job"])}


async def _add(session: Session, name_of_queue: str, given: Given) -> str:
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
        job = await RoutedJob.checked(session.state, queue, given)
        if isinstance(job, str):
            return job
        place = await session.push_order.enter(queue.name, job.way)
        if job.way is Way.ALONE:
            with place:
                return await job.add()
    _placed(session)
    with place:
        return await job.add(place.leave)


def _placed(session: Session) -> None:
    """Let later commands send their jobs: the current one sends its own in this turn of the event loop, before them."""
    session.unplaced.discard(cast("asyncio.Task[None]", asyncio.current_task()))


async def _push_many(session: Session, given: Given) -> Answer:
    jobs = given["jobs"]
    if not jobs:
        return {"ids": []}
    _note_policies(session, jobs[0])
    if len(jobs) == 1 and is_map(jobs[0]):  # the client's usual add; it leaves together with others
        try:
            return {"ids": [await _add(session, given["queue"], jobs[0])]}
        except GroupFullError:
            raise
        except PayloadTooLargeError as error:
            raise PayloadTooLargeError(f"jobs[0].{error.option}", error.size, error.limit) from None
        except CommandError as error:
            raise CommandError(f"jobs[0]: {error}") from None
    async with session.pushing:
        queue = await session.queue(given)
        usual = await usual_rows(session.state.ids, queue, jobs)
        if usual is None:
            with await session.push_order.enter(queue.name, Way.ALONE):
                return {"ids": await _push_all(session, queue, jobs)}
        adder = cast("AddCoalescer", await queue._adder_here())
        place = await session.push_order.enter(queue.name, Way.TOGETHER)
    _placed(session)
    with place:
        session.state.maintain(queue)
        session.state.adding(queue.name)
        try:
            return {"ids": await add_usual(adder, *usual)}
        except LayoutChangedError:
            return {"ids": await _push_all(session, queue, jobs)}


def _begin_push(session: Session, given: Given) -> Begun | None:
    return _begin(session, given, (given["job"],), _push, lambda ids: PortableMap(id=ids[0]))


def _begin_push_many(session: Session, given: Given) -> Begun | None:
    return _begin(session, given, given["jobs"], _push_many, lambda ids: PortableMap(ids=ids))


def _begin(
    session: Session, given: Given, jobs: Sequence[Any], handler: Handler,
    answer: Callable[[list[str]], Answer],
) -> Begun | None:  # fmt: skip
    begun = begin_usual(session, given["queue"], jobs) if jobs else None
    if begun is None:
        return None
    _note_policies(session, jobs[0])
    added, finish = begun

    def end(added: asyncio.Future[Any]) -> Answer | Coroutine[Any, Any, Answer]:
        ids = finish(added)
        return answer(ids) if isinstance(ids, list) else rest(ids)

    async def rest(adding: Coroutine[Any, Any, list[str]]) -> Answer:
        try:
            return answer(await adding)
        except LayoutChangedError:
            return await handler(session, given)  # nothing was added

    return Begun(added, end)


async def _push_all(session: Session, queue: Queue[Any, Any], jobs: Sequence[Any]) -> list[str]:
    # A client that leaves must not stop it halfway: all jobs are added, or none.
    return await session.state.finished(_push_repeated(session, queue, jobs))


async def _push_repeated(session: Session, queue: Queue[Any, Any], jobs: Sequence[Any]) -> list[str]:
    async with repeated(session.state.ids, queue, jobs) as repeats:
        session.state.maintain(queue, now=repeats)
        return await Bulk(session.state.ids, queue, jobs, session.state.added).add()


COMMANDS: Final = (
    Command(
        "PUSH", "core", _push, "Add a job.", (STRICT_QUEUE, *JOB_FIELDS), checks_job=True, begin=_begin_push, adds=True,
    ),
    Command(
        "PUSHB", "core", _push_many, "Add up to 100,000 jobs, all or none; each has the fields of `PUSH`.",
        (STRICT_QUEUE, Field("jobs", Kind.LIST, required=True)), begin=_begin_push_many, adds=True,
    ),
)  # fmt: skip


_PREFIX: Final = "repeat:"
_MOST: Final = 2**53 - 1
_FIELDS: Final = (
    Field("every", Kind.ANY), Field("pattern", minimum=1, maximum=1_000),
    Field("limit", Kind.INTEGER, minimum=0, maximum=_MOST), Field("count", Kind.INTEGER, minimum=0, maximum=_MOST),
    Field("startDate", Kind.NUMBER, minimum=0, maximum=_MOST), Field("endDate", Kind.NUMBER, minimum=0, maximum=_MOST),
    Field("tz", maximum=256), Field("immediately", Kind.FLAG), Field("prevMillis", Kind.NUMBER),
    Field("offset", Kind.UNSUPPORTED), Field("jobId", minimum=1, maximum=200),
)  # fmt: skip


@asynccontextmanager
async def repeated(
    ids: JobIds, queue: Queue[Any, Any], jobs: Sequence[Any]
) -> AsyncGenerator[bool]:  # fmt: skip
    """Create the schedulers of the jobs with `repeat`, which the block adds; yield whether there are any.

    If the block fails, the new ones are removed again.

    Args:
        ids: Makes and reads ids.
        queue: The queue.
        jobs: Fields of jobs, unchecked.

    Raises:
        CommandError: If an option is invalid. Nothing was created.
    """
    repeating = [(number, each) for number, each in enumerate(jobs) if is_map(each) and each.get("repeat")]
    if not repeating:
        yield False
        return
    plans: list[tuple[str, dict[str, Any]]] = []
    for number, each in repeating:
        try:
            plans.append(await _plan(ids, queue, each))
        except CommandError as error:
            raise CommandError(f"jobs[{number}]: {error}" if len(jobs) > 1 else str(error)) from None
    created: list[str] = []
    try:
        for name, options in plans:
            is_new = await queue.schedulers.get(name) is None
            await _create(queue, name, options)
            if is_new:
                created.append(name)
        yield True
    except BaseException:
        for name in created:
            await queue.schedulers.remove(name)
        raise


async def _plan(ids: JobIds, queue: Queue[Any, Any], given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
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


def _schedule(found: Mapping[str, Any]) -> dict[str, Any]:
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


async def _create(queue: Queue[Any, Any], name: str, options: dict[str, Any]) -> None:
    if options.get("limit", 1) <= 0:
        return  # the last run
    try:
        await queue.schedulers.upsert(name, **options)
    except GlideMQValidationError as error:
        if error.option in ("pattern", "tz"):
            value = options[error.option]
            raise CommandError(f"Invalid repeat pattern: repeat.{error.option} {value!r}: {error.problem}") from None
        raise CommandError(f"repeat: {error}") from None
