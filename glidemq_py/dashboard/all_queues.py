"""The pages about all queues: failures, decisions, a search, schedules, workers, batches and dead letters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from glidemq_py._core.record import JobState, WorkerInfo
from glidemq_py._operate.conversion import data_of, redacted, summary_of
from glidemq_py._operate.filters import FailureGroup, JobFilter
from glidemq_py._operate.job_actions import in_state
from glidemq_py._operate.lists import dead_letter_queues
from glidemq_py._operate.operating import some
from glidemq_py._operate.snapshots import BatchSnapshot, JobSummary, QueueSnapshot
from glidemq_py.dashboard.visit import KEYS, STATES, Search, Visit, parse_filter
from glidemq_py.errors import GlideMQValidationError

_T = TypeVar("_T")
_QUEUES: Final = 200
"""Queues that a page reads."""
_FAILURES: Final = 200
"""Newest failed jobs of a queue that are grouped."""
_ROWS: Final = 200
_JOBS: Final = 25
_EXAMINED: Final = 1_500
"""Jobs that a request of a search examines: up to 80 ms."""
_CANDIDATES: Final = 50
"""Delayed jobs of a queue that have run and may wait for a signal: a few calls each."""
_READ_MS: Final = 5_000
"""Time between two reads of an open page."""


async def _queues(visit: Visit) -> list[QueueSnapshot]:
    return sorted(
        (each for each in await visit.reader.queues() if visit.access.may_see(each.name)), key=lambda each: each.name
    )


async def _of_all(
    visit: Visit, kind: str, read: Callable[[QueueSnapshot], Awaitable[_T]],
    has: Callable[[QueueSnapshot], object] = lambda _: True,
) -> tuple[list[tuple[QueueSnapshot, _T]], int]:  # fmt: skip
    """Return what is read of each queue that has something to read, and how many such queues were not read."""
    found = [each for each in await _queues(visit) if has(each)]
    shared = visit.reader.shared
    values = await asyncio.gather(
        *(shared(kind, each.name, read=partial(read, each), lifetime=_READ_MS) for each in found[:_QUEUES])
    )
    return list(zip(found, values, strict=False)), len(found[_QUEUES:])


async def failures(visit: Visit) -> dict[str, Any]:
    """Failed jobs of all queues, grouped by error."""
    found, left = await _of_all(
        visit, "newest failures", lambda each: visit.grouped_failures(each.name, _FAILURES), lambda each: each.failed
    )
    by_error: dict[tuple[str, str], list[tuple[str, FailureGroup]]] = {}
    for queue, (groups, _) in found:
        for group in groups:
            by_error.setdefault((group.error_type, group.shape), []).append((queue.name, group))
    rows: list[dict[str, Any]] = []
    for members in by_error.values():
        queues = Counter[str]()
        for name, group in members:
            queues[name] += len(group.failures)
        newest_in, newest = max(members, key=lambda member: member[1].failures[0].failed_at)
        trend = [sum(hour) for hour in zip(*(group.trend for _, group in members), strict=True)]
        rows.append({
            "queues": queues.most_common(), "number": queues.total(), "trend": trend, "newest_in": newest_in,
            "newest": newest.failures[0],
        })  # fmt: skip
    rows.sort(key=lambda row: -row["number"])
    return {"rows": rows[:_ROWS], "left": left, "is_cut": any(cut for _, (_, cut) in found), "examined": _FAILURES}


async def decisions(visit: Visit) -> dict[str, Any]:
    """Jobs of all queues that wait for a signal, the one that waits longest first."""

    async def read(queue: QueueSnapshot) -> list[JobSummary]:
        operator, name = visit.operator, queue.name
        page = await operator.get_jobs(name, JobFilter(state=JobState.SUSPENDED), count=_ROWS)
        delayed = await operator.get_jobs(name, JobFilter(state=JobState.DELAYED), count=_ROWS)
        # With a timeout, they are delayed until it ends.
        have_run = [each.id for each in delayed.jobs if each.started_at or each.attempts_made][:_CANDIDATES]
        details = await asyncio.gather(*(operator.get_job(name, job_id, log_lines=0) for job_id in have_run))
        return [*page.jobs, *(each.job for each in details if each and each.job.suspended_at)]

    found, left = await _of_all(visit, "decisions", read, lambda each: each.suspended or each.delayed)
    jobs = sorted((job for _, of in found for job in of), key=lambda job: (job.suspended_at or 0, job.queue, job.id))
    return {"jobs": jobs[:_ROWS], "left": left, "more": len(jobs[_ROWS:])}


async def schedules(visit: Visit) -> dict[str, Any]:
    """Schedules of all queues, the next one first."""
    found, left = await _of_all(visit, "get_schedules", lambda each: visit.operator.get_schedules(each.name))
    rows = sorted((each for _, of in found for each in of), key=lambda each: (each.next_run or 2**60, each.name))
    return {"schedules": rows[:_ROWS], "left": left, "more": len(rows[_ROWS:])}


async def workers(visit: Visit) -> dict[str, Any]:
    """Workers of all queues; one that serves several queues is one row."""
    found, left = await _of_all(
        visit, "get_workers", lambda each: visit.operator.get_workers(each.name), lambda each: each.workers
    )
    rows: dict[str, tuple[WorkerInfo, list[str]]] = {}
    for queue, of in found:
        for each in of:
            rows.setdefault(each.id, (each, []))[1].append(queue.name)
    ordered = sorted(rows.values(), key=lambda row: (row[0].host, row[0].id))
    return {"workers": ordered[:_ROWS], "left": left, "more": len(ordered[_ROWS:])}


async def batches(visit: Visit) -> dict[str, Any]:
    """Batches of all queues that have not ended, the newest first."""

    async def read(queue: QueueSnapshot) -> list[BatchSnapshot]:
        return (await some(visit.operator.iter_batches(queue.name), _ROWS))[0]

    found, left = await _of_all(visit, "batches", read)
    rows = sorted((each for _, of in found for each in of), key=lambda each: -each.status.created_at)
    return {"batches": rows[:_ROWS], "left": left, "more": len(rows[_ROWS:])}


async def dead_letters(visit: Visit) -> dict[str, Any]:
    """Dead letter queues of all queues, with the number of their entries."""

    async def read(queue: QueueSnapshot) -> list[str]:
        of = await visit.operator.get_subscriptions(queue.name) if queue.is_broadcast else []
        targets = await dead_letter_queues(visit.operator, queue.name, [each.name for each in of])
        return sorted({name for name in targets.values() if name})

    found, left = await _of_all(visit, "dead letter queues", read)
    known = {each.name: each for each in await _queues(visit)}
    rows = [(queue.name, target, known.get(target)) for queue, targets in found for target in targets]
    return {"rows": sorted(rows, key=lambda row: -(row[2].ready if row[2] else 0)), "left": left}


async def search(visit: Visit) -> dict[str, Any]:
    """Jobs of all queues with an id, or that match a filter. Each request examines a part of them."""
    text = visit.arguments.get("find", "").strip()
    found: dict[str, Any] = {
        "find": text,
        "jobs": [],
        "problem": "",
        "search": None,
        "following": "",
        "stop": "stop" in visit.arguments,
    }
    try:
        has_keys = any(word.partition(":")[0] in KEYS and ":" in word for word in text.split())
        wanted, job_id = parse_filter(text, None, visit.options.redact) if has_keys else (JobFilter(), text)
    except GlideMQValidationError as error:
        return {**found, "problem": str(error)}
    if text:
        queues = [each for each in await _queues(visit) if not each.is_broadcast]
        if job_id and " " not in job_id and "cursor" not in visit.arguments:
            some_jobs = await asyncio.gather(
                *(visit.operator.get_job(each.name, job_id, log_lines=0) for each in queues)
            )
            found["jobs"] = [each.job for each in some_jobs if each]
        if not found["jobs"]:
            found |= await _search(visit, wanted, (job_id or "").lower(), queues)
    return found


async def _search(visit: Visit, wanted: JobFilter, text: str, queues: list[QueueSnapshot]) -> dict[str, Any]:
    """Examine the next jobs of a search; ``text``: a part of the id, name, tags, error or data."""

    def matches(job: Any) -> bool:
        held = (job.id, job.name, *job.tags, job.failed_reason, redacted(data_of(job), visit.options.redact))
        return not text or text in str(held).lower()

    states = [state for state in STATES if wanted.state in (None, state)]
    parts = [(each.name, at) for each in queues for at, state in enumerate(states) if in_state(each, state)]
    place, _, name = visit.arguments.get("cursor", "").partition(" ")
    number, _, cursor = place.partition("-")
    at = int(number) if number in map(str, range(len(states))) else 0
    rest = [part for part in parts if part > (name, at) or (part == (name, at) and cursor)]
    before = visit.arguments.get("searched", "")
    examined, jobs = int(before) if before.isdecimal() and len(before) < 16 else 0, list[JobSummary]()
    until = examined + _EXAMINED
    while rest and len(jobs) < _JOBS and examined < until:
        part = rest[0]
        page, cursor, read = await visit.operator.read_jobs(
            part[0], replace(wanted, state=states[part[1]]), cursor if part == (name, at) else "", _ROWS, _EXAMINED,
            with_data=bool(text), newest=True,
        )  # fmt: skip
        examined += read
        jobs += [summary_of(job) for job in page if matches(job)]
        name, at = part
        rest = rest[not cursor :]
    total = sum(in_state(each, state) for each in queues for state in states)
    following = f"{at}-{cursor} {name}" if rest else ""
    return {"jobs": jobs, "search": Search(min(examined, total), total) if rest else None, "following": following}
