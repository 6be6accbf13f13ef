"""The methods of `Queue` that create, read and remove schedulers. `firing` adds their jobs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Unpack

from glidemq_py._core import json_text as json
from glidemq_py._core.calls.adding import DATA, encode_row
from glidemq_py._core.checks import check_bool, check_text, lists_options
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.logs import get_logger
from glidemq_py._core.misuse import check_keywords, known_methods
from glidemq_py._core.payload import JSON_SERIALIZER, decode_data
from glidemq_py._core.queue_options import JobInput, JobSpec, QueueOptions, check_call
from glidemq_py._features.queue_list import register
from glidemq_py._features.schedulers.entry import (
    PAUSED,
    Entry,
    JobScheduler,
    StoredRow,
    is_for_peers,
    schedulers_put,
    schedulers_read,
)
from glidemq_py._features.schedulers.options import Schedule, ScheduleDict
from glidemq_py._partitions.layout import part_of_key
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import Area, ConnectedQueue
from glidemq_py.errors import GlideMQValidationError, ServerNotReadyError

_log = get_logger(__name__)

NAME_LENGTH: Final = 256
_KEYWORDS: Final = frozenset((*ScheduleDict.__annotations__, "name", "template"))
_TRIES: Final = 200
_PAUSE_S: Final = 0.025


def _check_placing(options: JobOptions) -> None:
    for option in ("ordering", "fair_key", "deduplication", "job_id"):
        if getattr(options, option) is not None:
            raise GlideMQValidationError(
                f"template.{option}", getattr(options, option),
                "is not supported by the schedulers of partitioned queues: their name chooses the partition",
            )  # fmt: skip


def _places(links: Sequence[QueueLink], name: str) -> list[QueueLink]:
    """Return the parts in the order in which to look for a scheduler: that of its name comes first.

    Other clients create theirs in the first part; versions that could change the number left them in any.
    """
    home = links[part_of_key(name, len(links))]
    return [home, *(link for link in links if link is not home)]


async def _change_found(
    queue: ConnectedQueue, name: str, change: Callable[[StoredRow | None, int], _Change | None]
) -> JobScheduler | None:
    """Change a scheduler in the first part that has it."""

    async def run() -> JobScheduler | None:
        for link in _places(await queue._links(), name):
            existed, scheduler = await _changed(link, name, change)
            if existed:
                return scheduler
        return None

    return await queue._settled(run)


def _removal(row: StoredRow | None, now: int) -> _Change | None:
    return row and _Change(0, "", 0)


class _Change(NamedTuple):
    """A new entry; ``text``: '' = delete the entry; ``due``: its score in the index."""

    home: int
    text: str
    due: int
    overlap: bool = False
    event: str = ""
    workers: bool = False


async def _changed(
    link: QueueLink, name: str, change: Callable[[StoredRow | None, int], _Change | None]
) -> tuple[bool, JobScheduler | None]:
    """Change an entry, unless another client changes it. Return whether it existed, and the scheduler afterwards.

    ``change`` gets the entry and the server's time, and returns None to leave it unchanged.
    """
    for _ in range(_TRIES):
        reply = await link.call(schedulers_read, name)
        row = reply.rows[0] if reply.rows else None
        new = change(row, reply.now)
        if new is None:
            return row is not None, None if row is None else read_scheduler(link, row)
        expected = "" if row is None else row.text
        outcome = await link.call(
            schedulers_put,
            name,
            new.home,
            expected,
            new.text,
            new.due,
            overlap=new.overlap,
            event=new.event or None,
            workers=new.workers,
        )
        if outcome == "ok":
            stored = StoredRow(name, new.home, new.text)
            return row is not None, read_scheduler(link, stored) if new.text else None
        if outcome == "busy":
            await link.runtime.there(asyncio.sleep(_PAUSE_S * random.uniform(0.5, 1.5)))
    raise ServerNotReadyError(f"scheduler {name!r} was not changed: another client holds the scheduler lock; try again")


async def iter_schedulers(link: QueueLink) -> AsyncIterator[JobScheduler]:
    """Yield the schedulers of a queue, unsorted; those whose entries cannot be read are logged once."""
    cursor = ""
    while True:
        reply = await link.call(schedulers_read, None, cursor)
        for row in reply.rows:
            scheduler = _readable(link, row)
            if scheduler is not None:
                yield scheduler
        cursor = reply.cursor
        if not cursor:
            return


def _readable(link: QueueLink, row: StoredRow) -> JobScheduler | None:
    try:
        return read_scheduler(link, row)
    except GlideMQValidationError as error:
        _report_unreadable(link.queue_name, row.name, str(error))
        return None


@lru_cache(maxsize=1_000)  # once
def _report_unreadable(queue: str, name: str, problem: str) -> None:
    _log.warning("queue %r: scheduler %r is not listed, its entry cannot be read: %s", queue, name, problem)


def read_scheduler(link: QueueLink, row: StoredRow) -> JobScheduler:
    """Return a stored scheduler.

    Raises:
        GlideMQValidationError: the entry is invalid.
    """
    entry = Entry(row.text)
    template, schedule = entry.template, entry.schedule
    tracked = schedule.repeat_after_complete is not None or schedule.overlap != "allow"
    return JobScheduler(
        name=row.name,
        schedule=schedule,
        job_name=template.name or row.name,
        data=template.data if template.text is None else decode_data(template.text, link.serializer),
        options=template.options,
        next_run=None if entry.paused else entry.next_run or None,
        last_run=entry.number("lastRun") or None,
        iteration_count=entry.number("iterationCount"),
        last_job_id=link.shown_id(entry.last_job_id) if tracked and entry.last_job_id else None,
        for_peers=row.home == 0,
        skipped_count=entry.number("skippedCount"),
        last_skipped=entry.number("lastSkipped") or None,
        buffered=entry.buffered,
        last_runs=tuple((at, link.shown_id(job_id)) for at, job_id in entry.runs),
        paused=entry.paused,
        paused_since=entry.number("pausedAt") or None if entry.paused else None,
    )


def _template(
    link: QueueLink, given: JobInput | None, options: QueueOptions, name: str
) -> tuple[JobOptions, dict[str, Any]]:
    """Return the options of the jobs, and the template in its stored form."""
    stored: dict[str, Any] = {}
    has_data = False
    spec = JobSpec(name)
    if isinstance(given, Mapping):
        spec = JobSpec.parse({"name": name, **given}, "template")
        has_data = "data" in given
    elif given is not None:
        spec = JobSpec.parse(given, "template")
        has_data = spec.data is not None
    if given is not None:
        stored["name"] = spec.name
    job_options = JobOptions.of_job(options.default_job_options, spec.options)
    job_options.check_place("template", "is not supported here", "template.")
    _check_cost(job_options)
    # Encode one job now, so that a template that could not be added is rejected here.
    text = str(encode_row(link, spec.name, spec.data, job_options, "template.data")[DATA])
    if has_data and link.serializer is JSON_SERIALIZER:
        stored["data"] = decode_data(text)
    elif has_data:
        stored["text"] = link.serializer.serialize(spec.data)
    wire = job_options.to_wire()
    if wire:
        stored["opts"] = wire
    return job_options, stored


def _check_cost(options: JobOptions) -> None:
    """Reject a job that costs more than the token bucket in its own options holds: it could never be added."""
    bucket = None if options.ordering is None else options.ordering.token_bucket
    if bucket is not None and (options.cost or 1) > bucket.capacity:
        problem = f"must be at most the capacity of its group's token bucket, {bucket.capacity}"
        raise GlideMQValidationError("template.cost", options.cost or 1, problem)


def _entry(
    schedule: Schedule, template: dict[str, Any], options: QueueOptions, existing: str | None, now: int
) -> tuple[str, int]:
    """Return the text of the entry, and when it is due."""
    before = _existing(existing)
    keeps_state = before is not None and before.keeps_state_under(schedule)
    waits = before is not None and before.waits and schedule.repeat_after_complete is not None
    fields = schedule.to_wire()
    fields["iterationCount"] = before.number("iterationCount") if before is not None and keeps_state else 0
    if schedule.limit is not None and fields["iterationCount"] >= schedule.limit:
        runs = fields["iterationCount"]
        raise GlideMQValidationError("limit", schedule.limit, f"already reached: this scheduler has run {runs} times")
    fields["template"] = template or None
    next_run = schedule.first(now)
    if before is not None and (keeps_state or waits):  # a scheduler that waits for its job waits under new times too
        next_run = before.planned_run
        fields |= {key: before.fields.get(key) for key in ("lastRun", "lastJobId", "lastJobRun")}
        if schedule.overlap != "allow" or schedule.skip_without_worker:
            kept = ("skippedCount", "lastSkipped") + (("buffered",) if schedule.overlap == "buffer_one" else ())
            fields |= {key: before.fields.get(key) for key in kept}
    elif before is not None and schedule.overlap != "allow" and before.last_job_id is not None:
        # Its job may still be unfinished when the new times are due.
        fields |= {key: before.fields[key] for key in ("lastRun", "lastJobId", "lastJobRun")}
    if next_run is None:
        raise GlideMQValidationError("end_date", schedule.end_date, "is before the first run")
    fields["nextRun"] = next_run
    if before is not None:
        fields["runs"] = before.fields.get("runs")
    if before is not None and before.paused:
        fields |= {"nextRun": PAUSED, "pausedAt": before.fields.get("pausedAt"), "pausedRun": next_run}
    fields["compression"] = None if options.compression == "none" else options.compression
    fields["quiet"] = None if options.events else True
    return json.dumps({key: value for key, value in fields.items() if value is not None}), fields["nextRun"] or now


def _existing(text: str | None) -> Entry | None:
    """Return the existing entry, or None if there is none or it is invalid."""
    try:
        return None if text is None else Entry(text)
    except GlideMQValidationError:
        return None


@known_methods
class Schedulers(Area):
    """``queue.schedulers``: jobs that are added by a cron expression, an interval or a calendar."""

    __slots__ = ()

    @lists_options(Schedule, ScheduleDict)
    async def upsert(
        self, name: str, *, template: JobInput | None = None, **options: Unpack[ScheduleDict]
    ) -> JobScheduler:
        """Create a scheduler, or update the one with this name. The workers of the queue fire each due time once.

        If the times do not change, the scheduler keeps its state: next run, number of runs, and the job it waits for.
        So it is safe to call this at every program start. Pass exactly one of ``every``, ``pattern`` and
        ``repeat_after_complete``. Raises the errors of `Queue.get_job` as well.

        Args:
            name: name of the scheduler, at most 256 characters.
            template: the jobs to add: a call of a task (`Task.call`), with the options of the task, or
                ``(name, data, options)``, a `JobSpec`, or a mapping of these. The name defaults
                to that of the scheduler, the data to an empty mapping. All options of `Queue.add` except ``run_at``
                and ``parent`` are supported. With a ``job_id`` or ``deduplication``, a run adds no job while the
                previous one exists.
            **options: when they are added, see `Schedule`.

        Returns:
            The scheduler.

        Raises:
            GlideMQValidationError: an option is invalid, or the schedule is never due; nothing was changed.
            ServerNotReadyError: a Node client held the scheduler lock for several seconds.
        """
        check_keywords(options, _KEYWORDS)
        check_text("name", name, maximum=NAME_LENGTH)
        check_call(template, self._queue.name, "template")
        schedule = Schedule(**options)
        job_options, stored = _template(await self._queue._first(), template, self._queue.options, name)

        def update(row: StoredRow | None, now: int) -> _Change:
            text, due = _entry(schedule, stored, self._queue.options, row.text if row is not None else None, now)
            shared = is_for_peers(schedule, job_options, "text" in stored) and due != PAUSED
            return _Change(
                0 if shared else 1, text, due, schedule.overlap != "allow", workers=schedule.skip_without_worker
            )

        async def put() -> JobScheduler:
            links = await self._queue._links()
            if len(links) > 1:
                _check_placing(job_options)
            places = _places(links, name)
            found = [link for link in places[1:] and places if (await link.call(schedulers_read, name)).rows]
            link, *others = found or places[:1]  # a scheduler that exists is changed where it is
            _, changed = await _changed(link, name, update)
            assert changed is not None
            if not link.is_listed:
                await register(link)
            for other in others:  # another client has created it
                await _changed(other, name, _removal)
            return changed

        return await self._queue._settled(put)

    async def remove(self, name: str) -> bool:
        """Remove a scheduler; return False if it does not exist. Jobs it has added are kept.

        Raises:
            ServerNotReadyError: a Node client held the scheduler lock for several seconds.
        """
        check_text("name", name, maximum=NAME_LENGTH)

        async def run() -> bool:
            removed = await self._queue._together(_changed(link, name, _removal) for link in await self._queue._links())
            return any(existed for existed, _ in removed)

        return await self._queue._settled(run)

    async def pause(self, name: str) -> JobScheduler | None:
        """Pause a scheduler: it adds no jobs until it is resumed. Jobs it has added are kept.

        It stays paused when `schedulers.upsert` changes it. No effect if it is paused.

        Returns:
            The scheduler, or None if it does not exist.

        Raises:
            GlideMQValidationError: its stored entry is invalid.
            ServerNotReadyError: a Node client held the scheduler lock for several seconds.
        """
        check_text("name", name, maximum=NAME_LENGTH)

        def pause(row: StoredRow | None, now: int) -> _Change | None:
            entry = Entry(row.text) if row is not None else None
            if entry is None or entry.paused:
                return None
            text = entry.changed(nextRun=PAUSED, pausedAt=now, pausedRun=entry.next_run)
            # In our own hash: a Node client would not know why it is not due.
            return _Change(1, text, PAUSED, event="scheduler-paused")

        return await _change_found(self._queue, name, pause)

    async def resume(self, name: str, *, catch_up: bool | None = None) -> JobScheduler | None:
        """Resume a paused scheduler. No effect if it is not paused.

        Args:
            name: name of the scheduler.
            catch_up: handle the due times of the pause as missed runs, by the ``misfire`` of the schedule. False: the
                next due time is the first one from now on. None = only if ``misfire`` is "fire_all". With
                ``repeat_after_complete``, the next job is always due after the delay, or at once if that has passed.

        Returns:
            The scheduler; None if it does not exist, or has ended because no due time is left.

        Raises:
            GlideMQValidationError: an argument, or its stored entry, is invalid.
            ServerNotReadyError: a Node client held the scheduler lock for several seconds.
        """
        check_text("name", name, maximum=NAME_LENGTH)
        if catch_up is not None:
            check_bool("catch_up", catch_up)

        def resume(row: StoredRow | None, now: int) -> _Change | None:
            entry = Entry(row.text) if row is not None else None
            if entry is None or not entry.paused:
                return None
            schedule, template = entry.schedule, entry.template
            all_of_them = schedule.misfire == "fire_all" if catch_up is None else catch_up
            due = entry.run_after_pause(now, all_of_them)
            if due is None:
                return _Change(0, "", 0)
            home = 0 if is_for_peers(schedule, template.options, template.text is not None) else 1
            text = entry.changed(nextRun=due, pausedAt=None, pausedRun=None)
            return _Change(home, text, due or now, event="scheduler-resumed")

        return await _change_found(self._queue, name, resume)

    async def get(self, name: str) -> JobScheduler | None:
        """Return the scheduler with this name, or None if it does not exist or its entry cannot be read."""
        check_text("name", name, maximum=NAME_LENGTH)
        for link in _places(await self._queue._links(), name):
            reply = await link.call(schedulers_read, name)
            found = _readable(link, reply.rows[0]) if reply.rows else None
            if found is not None:
                return found
        return None

    async def get_all(self) -> list[JobScheduler]:
        """Return all schedulers, sorted by name. Those whose entries cannot be read are left out, and logged once."""
        found = {scheduler.name: scheduler async for scheduler in self._queue._in_turn(iter_schedulers)}
        return [found[name] for name in sorted(found)]
