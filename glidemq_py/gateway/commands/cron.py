"""Commands about cron jobs: schedulers of the queues, under names that are unique over all queues.

The hash `<prefix>:gateway:crons` maps names to queues. It is written before the scheduler, so an entry may lead to a
queue without such a scheduler; it then counts as missing. Schedulers of other programs are found by a search of all
queues.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from glidemq_py._core.calls import pieces
from glidemq_py._features.schedulers.entry import JobScheduler
from glidemq_py._partitions.link import scan_fields
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway.job_objects import json_value
from glidemq_py.gateway.names import listed_queues, wire_name
from glidemq_py.gateway.push_options import TEMPLATE_FIELDS, reject_keys, template_options, zone_name
from glidemq_py.gateway.session import Commands, Session
from glidemq_py.gateway.state import GatewayState
from glidemq_py.gateway.table import (
    STRICT_QUEUE,
    Answer,
    CommandError,
    Field,
    Given,
    Kind,
    check_nested,
    is_number,
)

COMMANDS: Final = Commands()

_MOST: Final = 2**53 - 1
_AT_A_TIME: Final = 50
_NAME: Final = Field("name", required=True, minimum=1, maximum=256)


def _key(state: GatewayState) -> str:
    return f"{state.options.prefix}:gateway:crons"


async def _schedulers(state: GatewayState, queue: str) -> list[JobScheduler]:
    return await (await state.queue(queue)).schedulers.get_all()


async def _queues(state: GatewayState) -> list[str]:
    """Return the queues that may have schedulers; a queue that never had a job is only in the hash."""
    names = set(await listed_queues(state.transport, state.options.prefix))
    found = {each.decode("utf-8", "replace") async for _, each in scan_fields(state.transport, _key(state))}
    return sorted(names | found)


async def read_schedulers(state: GatewayState) -> list[tuple[str, JobScheduler]]:
    """Read the schedulers of all queues, by name; for `GatewayState.shared`."""
    queues = await _queues(state)
    found: list[tuple[str, JobScheduler]] = []
    for some in pieces(queues, _AT_A_TIME):
        lists = await asyncio.gather(*(_schedulers(state, queue) for queue in some))
        found += [(queue, each) for queue, listed in zip(some, lists, strict=True) for each in listed]
    return sorted(found, key=lambda pair: (pair[1].name, pair[0]))


async def _known_queue(session: Session, name: str) -> str | None:
    """Return the queue for which a client has created a cron job."""
    found = await session.state.transport.command("HGET", _key(session.state), name)
    return None if found is None else str(found.decode("utf-8", "replace"))


async def _find(session: Session, name: str) -> tuple[str, JobScheduler] | None:
    """Return the queue and the scheduler with a name."""
    queue = await _known_queue(session, name)
    if queue is not None:
        scheduler = await (await session.state.queue(queue)).schedulers.get(name)
        if scheduler is not None:
            return queue, scheduler
    return next((pair for pair in await session.state.shared(read_schedulers) if pair[1].name == name), None)


def _cron_object(queue: str, scheduler: JobScheduler) -> dict[str, Any]:
    schedule = scheduler.schedule
    return {
        "name": scheduler.name, "jobName": scheduler.job_name, "queue": wire_name(queue),
        "schedule": schedule.pattern, "repeatEvery": schedule.every, "nextRun": scheduler.next_run,
        "executions": scheduler.iteration_count, "maxLimit": schedule.limit, "timezone": schedule.tz,
        "priority": _rank_of(scheduler),
    }  # fmt: skip


def _rank_of(scheduler: JobScheduler) -> int:
    options = scheduler.options
    if options.rank is not None:
        return options.rank
    return 2_048 - options.priority if options.priority else 0


def _schedule(given: Given) -> dict[str, Any]:
    pattern, every = given["schedule"], given["repeatEvery"]
    if pattern is None and every is None:
        raise CommandError("Cron job must have either schedule or repeatEvery")
    if pattern is not None and every is not None:
        raise CommandError("Cron job must not have both schedule and repeatEvery")
    if every is not None and not (is_number(every) and 1 <= every <= _MOST and every == int(every)):
        raise CommandError("Cron repeatEvery must be a positive safe integer number of milliseconds")
    options: dict[str, Any] = {"overlap": "skip" if given["preventOverlap"] else "allow"}
    if given["maxLimit"]:
        options["limit"] = given["maxLimit"]
    if given["immediately"]:
        options["immediately"] = True
    if given["skipIfNoWorker"]:
        options["skip_without_worker"] = True
    if given["skipMissedOnRestart"]:
        options["misfire"] = "skip"
    if pattern is None:
        if given["timezone"]:
            raise CommandError("timezone requires schedule")
        return options | {"every": int(given["repeatEvery"])}
    # As in crontab: a day matches if one of two restricted day fields does.
    return options | {"pattern": pattern, "day_match": "or", "tz": given["timezone"] or None}


@COMMANDS(
    "Cron",
    "cron",
    "POST /crons",
    _NAME,
    STRICT_QUEUE,
    Kind.ANY("data"),
    Field("schedule", minimum=1, maximum=1_000),
    Kind.ANY("repeatEvery"),
    Field("jobName", minimum=1, maximum=256, default="default"),
    Kind.INTEGER("priority", -1_000_000, 1_000_000, default=0),
    Kind.INTEGER("maxLimit", 0, _MOST),
    Field("timezone", maximum=256),
    Field("uniqueKey", maximum=256),
    Kind.MAP("dedup"),
    Kind.FLAG("skipMissedOnRestart", default=True),
    Kind.FLAG("immediately", default=False),
    Kind.FLAG("skipIfNoWorker", default=False),
    Kind.FLAG("preventOverlap", default=True),
    Kind.MAP("jobOptions"),
)
async def _put(session: Session, given: Given) -> Answer:
    """Create or replace a cron job; by default no run overlaps the job of an earlier one."""
    name, queue = given["name"], await session.queue(given)
    schedule = _schedule({**given, "timezone": await zone_name(given["timezone"])})
    own = check_nested("jobOptions", TEMPLATE_FIELDS, given["jobOptions"] or {})
    options = template_options(own, given)
    await reject_keys(queue, options, "Cron")
    template: dict[str, Any] = {"name": given["jobName"], "options": options}
    if given["data"] is not None:
        template["data"] = json_value("data", given["data"])
    # Only a cron job of a client is moved: a scheduler of another program may have the same name in another queue.
    before = await _known_queue(session, name)
    await session.state.transport.command("HSET", _key(session.state), name, queue.name)
    try:
        scheduler = await queue.schedulers.upsert(name, template=template, **schedule)
    except GlideMQValidationError as error:
        undo = ("HDEL", _key(session.state), name) if before is None else ("HSET", _key(session.state), name, before)
        await session.state.transport.command(*undo)
        field = {"pattern": "schedule", "tz": "timezone"}.get(error.option)
        if field is not None:
            raise CommandError(f"Invalid cron expression: {field} {given[field]!r}: {error.problem}") from None
        raise CommandError(str(error)) from None
    session.state.maintain(queue, now=True)
    if before not in (None, queue.name):
        await (await session.state.queue(str(before))).schedulers.remove(name)
    return {"cron": _cron_object(queue.name, scheduler)}


@COMMANDS("CronDelete", "cron", "DELETE /crons/{name}", _NAME)
async def _delete(session: Session, given: Given) -> None:
    """Delete a cron job; the jobs that it has added are kept."""
    found = await _find(session, given["name"])
    if found is None or not await (await session.state.queue(found[0])).schedulers.remove(given["name"]):
        raise CommandError("Cron job not found")
    await session.state.transport.command("HDEL", _key(session.state), given["name"])


@COMMANDS("CronGet", "cron", "GET /crons/{name}", _NAME)
async def _get(session: Session, given: Given) -> Answer:
    """Return a cron job."""
    found = await _find(session, given["name"])
    if found is None:
        raise CommandError("Cron job not found")
    return {"cron": _cron_object(*found)}


async def all_crons(session: Session) -> list[dict[str, Any]]:
    """Return the cron jobs of all queues."""
    return [_cron_object(*pair) for pair in await session.state.shared(read_schedulers)]


@COMMANDS("CronList", "cron", "GET /crons")
async def _list(session: Session, given: Given) -> Answer:
    """Return the cron jobs of all queues, and schedulers of other programs."""
    return {"crons": await all_crons(session)}
