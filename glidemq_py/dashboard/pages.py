"""The pages: each function reads the values of its template."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from glidemq_py._core.record import JobState
from glidemq_py._features.failed_attempts import FailedAttempt, FailureReason, requeues
from glidemq_py._features.timeline import TimelineEntry
from glidemq_py._operate.conversion import redacted
from glidemq_py._operate.filters import JobFilter, shape_of
from glidemq_py._operate.lists import get_newest_dead_letters
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.snapshots import DeadLetter, FlowNode, JobDetails, QueueSnapshot, StepSummary
from glidemq_py._operate.stored_changes import list_bulks, read_audit, read_bulk
from glidemq_py.dashboard import all_queues, broadcast_pages
from glidemq_py.dashboard.changes import CHANGES
from glidemq_py.dashboard.reading import quarters_of
from glidemq_py.dashboard.texts import Drawing, draw, is_complete, state_of
from glidemq_py.dashboard.visit import (
    STATES,
    MissingError,
    Visit,
    of_queue,
    parse_filter,
    search_of,
    suggestions,
    without_state,
)
from glidemq_py.errors import (
    GlideMQValidationError,
    JobNotFoundError,
    PermissionDeniedError,
    WorkerCommandError,
    WorkerNotFoundError,
    WorkerTimeoutError,
)

_T = TypeVar("_T")
_QUEUES_A_PAGE: Final = 50
_JOBS_A_PAGE: Final = 25
_EXAMINED: Final = 1_500
"""Jobs that a page of a filter examines: up to 80 ms."""
_DEAD_LETTERS: Final = 500
"""Newest dead-letter entries that are grouped: four calls."""
_DEAD_LETTERS_SHOWN: Final = 100
"""Entries whose data the page contains."""
_DEAD_LETTERS_OF_GROUP: Final = 20
_FAILURES: Final = 1_000
"""Newest failed jobs that are grouped: twenty calls."""
_FAILURES_MS: Final = 10_000
"""Time between two reads of the failures of an open page."""
_FLOW: Final = 200
_LARGE_FLOW: Final = 20_000
"""Jobs of a flow that are counted: half a second."""
_LARGE_FLOW_MS: Final = 30_000
"""Time between two reads of a flow with more than `_FLOW` jobs."""
_CHILDREN: Final = 20
"""Jobs of a flow that the page of a job reads."""
_ACTIVE: Final = JobFilter(state=JobState.ACTIVE)
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000
_ANSWER_MS: Final = 12_000
"""Time for the answer of a worker, which reads commands every ten seconds at most."""
_SORTS: Final[dict[str, Callable[[QueueSnapshot], Any]]] = {
    "trouble": lambda each: (-each.failed, not each.paused, -(each.oldest_waiting // 60_000), each.name),
    "name": lambda each: each.name,
    "ready": lambda each: (-each.ready, each.name),
    "oldest": lambda each: (-each.oldest_waiting, each.name),
    "active": lambda each: (-each.active, each.name),
    "failed": lambda each: (-each.failed, each.name),
}


_WAITING: Final = {"suspended": "Suspended", "waiting_children": "Waiting for children"}
"""Jobs that have tiles and columns if there are any."""


async def overview(visit: Visit) -> dict[str, Any]:
    """All queues. If there are many, only the listed ones are read at first; the first update adds the totals."""
    names = [name for name in await visit.reader.read(Operator.list_queues) if visit.access.may_see(name)]
    wanted = visit.arguments.get("find", "").strip().lower()
    sort = visit.arguments.get("sort", "")
    sort = sort if sort in _SORTS else "trouble"
    page = max(1, int(visit.arguments["page"])) if visit.arguments.get("page", "").isdecimal() else 1
    some = slice((page - 1) * _QUEUES_A_PAGE, page * _QUEUES_A_PAGE)
    matching = [name for name in names if wanted in name.lower()]
    # The totals of a thousand queues take the server 80 ms.
    many, is_lazy = len(names) > _QUEUES_A_PAGE, sort in ("trouble", "name") and not visit.is_stream
    is_partial = many and is_lazy and not visit.reader.has_queues()
    every, alone = list[QueueSnapshot](), list[str]()
    if is_partial:
        shown = await visit.reader.some_queues(matching[some])
    else:
        every = [each for each in await visit.reader.queues() if visit.access.may_see(each.name)]
        alone = await _alone(visit, every)
        found = sorted((each for each in every if wanted in each.name.lower()), key=_SORTS[sort])
        if sort == "trouble":
            found.sort(key=lambda each: each.name not in alone)
        shown = found[some]
    rates = await _of_each(shown, lambda each: visit.reader.rates(each.name))
    slots = await _of_each(shown, partial(_slots, visit))
    reasons = await _of_each(shown, partial(_reasons, visit))
    kinds = ("ready", "active", "delayed", "failed", "completed", "workers", *_WAITING)
    waiting = {kind: each for kind, each in _WAITING.items() if any(getattr(one, kind) for one in every or shown)}
    is_admin = visit.access.queues is None and not is_partial
    return {
        "queues": shown, "rates": rates, "slots": slots, "reasons": reasons, "sort": sort,
        "every": len(names), "matching": len(matching),
        "waiting": waiting,
        "columns": [
            ("name", "Queue", ""), ("trouble", "Status", ""), ("ready", "Ready", "num"),
            ("oldest", "Oldest", "num hide"), ("active", "Active", "num hide"), ("", "Workers", "num hide"),
            ("", "Delayed", "num hide"), *(("", label, "num hide") for label in waiting.values()),
            ("failed", "Failed", "num"), ("", "By reason", "hide"), ("", "Completed in the last hour", "hide"),
            ("", "Per min", "num hide"),
        ],
        "totals": {kind: None if is_partial else sum(getattr(each, kind) for each in every) for kind in kinds},
        "number": page, "pages": -(-len(matching) // _QUEUES_A_PAGE), "find": wanted,
        "alone": alone, "activity": visit.reader.activity(rates),
        "most_failed": max((each.failed for each in shown), default=0),
        "problems": await visit.reader.problems() if is_admin else [],
        "oldest": max(every, key=lambda each: each.oldest_waiting, default=None),
    }  # fmt: skip


async def _of_each(queues: list[QueueSnapshot], read: Callable[[QueueSnapshot], Awaitable[_T]]) -> dict[str, _T]:
    """Return what is read of each queue, by its name."""
    found = await asyncio.gather(*map(read, queues))
    return {each.name: value for each, value in zip(queues, found, strict=True)}


async def _alone(visit: Visit, queues: list[QueueSnapshot]) -> list[str]:
    """Return the queues in which jobs wait and that no worker serves; a dead letter queue needs none."""
    found = [each for each in queues if each.ready and not each.workers and not each.paused]

    async def source(queue: QueueSnapshot) -> str | None:
        if queue.is_broadcast or queue.waiting != queue.unfinished:
            return None
        return await visit.reader.read(Operator.get_dead_letter_source, queue.name)

    return [name for name, letters_of in (await _of_each(found, source)).items() if letters_of is None]


async def _reasons(visit: Visit, queue: QueueSnapshot) -> list[tuple[FailureReason, int]]:
    """Return the reasons of failure of a queue, the most frequent first, with the number of jobs of each."""
    if not queue.failed:
        return []
    read = partial(visit.operator.get_failure_stats, queue.name)
    stats = await visit.reader.shared("reasons", queue.name, read=read, lifetime=_FAILURES_MS)
    return sorted(stats.by_reason.items(), key=lambda each: -each[1])


async def _slots(visit: Visit, queue: QueueSnapshot) -> tuple[int, int] | None:
    """Return the slots in use, and all slots of the workers of a queue; None if they are unknown."""
    workers = await visit.reader.read(Operator.get_workers, queue.name) if queue.workers else []
    total = sum(each.concurrency or 0 for each in workers)
    return (sum(each.active_jobs for each in workers), total) if total else None


async def _of_queue(visit: Visit, tab: str) -> dict[str, Any]:
    return {**await of_queue(visit, tab), "states": STATES}


async def queue(visit: Visit) -> dict[str, Any]:
    """One queue: figures, limits, groups."""
    common = await _of_queue(visit, "queue")
    if common["queue"].is_broadcast:
        return await broadcast_pages.broadcast(visit, common)
    name = visit.queue
    groups = await visit.read(Operator.get_groups)
    reader, group_key, fair_key = visit.reader, visit.arguments.get("group", ""), visit.arguments.get("key", "")
    group = await visit.operator.get_group(name, group_key) if group_key else None
    return {
        **common, "group": group, "group_key": group_key, "fair_key": fair_key,
        "fair_info": await visit.read(Operator.get_fair_key, fair_key),
        "activity": reader.activity({name: await reader.rates(name)}),
        "stats": await visit.read(Operator.get_failure_stats),
        "fair": await visit.read(Operator.get_fair_keys, 20),
        "groups": groups.groups[:20], "names": await reader.by_name(name, _HOUR_MS),
        "limits": await visit.read(Operator.get_limits),
        "dead_letter_queue": await visit.read(Operator.get_dead_letter_queue),
    }  # fmt: skip


async def jobs(visit: Visit) -> dict[str, Any]:
    """Jobs of a queue, 25 at a time."""
    common = await _of_queue(visit, "jobs")
    if common["queue"].is_broadcast:
        return await broadcast_pages.messages(visit, common)
    name, text = visit.queue, visit.arguments.get("filter", "")
    state = visit.arguments.get("state") or None
    found: dict[str, Any] = {
        "page": None,
        "problem": "",
        "only": None,
        "search": None,
        "stop": "stop" in visit.arguments,
    }
    try:
        if state is not None and state not in STATES:
            raise GlideMQValidationError("state", state, f"must be one of {', '.join(STATES)}")
        wanted, job_id = parse_filter(text, state, visit.options.redact)
        state, text = wanted.state, without_state(text)
        if job_id is None:
            cursor = visit.arguments.get("cursor", "")
            found["page"] = await visit.operator.get_jobs(
                name, wanted, cursor=cursor, count=_JOBS_A_PAGE, most_examined=_EXAMINED, newest=True
            )
            found["search"] = search_of(visit, wanted, found["page"], common["queue"], (state,) if state else STATES)
        else:
            details = await visit.operator.get_job(name, job_id, log_lines=0)
            found["only"] = None if details is None else details.job
            found["problem"] = "" if details else f"There is no job {job_id}."
    except GlideMQValidationError as error:
        found["problem"] = str(error)
    shown = found["page"].jobs if found["page"] else (found["only"],) if found["only"] else ()
    names = [each.name for each in await visit.reader.by_name(name, _HOUR_MS)]
    return {
        **common, **found, "jobs": shown, "state": state, "filter": text, "suggestions": suggestions(shown, names),
    }  # fmt: skip


async def job(visit: Visit) -> dict[str, Any]:
    """One job."""
    common = await _of_queue(visit, "jobs")
    job_id = visit.arguments.get("id", "")
    details = await visit.read(Operator.get_job, job_id, log_lines=200)
    if details is None:
        raise JobNotFoundError(job_id)
    data, result, options = (
        redacted(value, visit.options.redact) for value in (details.data, details.result, details.options)
    )
    if common["queue"].is_broadcast:
        return {**common, **await broadcast_pages.message(visit, details), "data": data, "options": options}
    flow = await visit.flow(details.job.id, _CHILDREN)
    history = _history(details)
    steps = [(step, redacted(step.result, visit.options.redact)) for step in details.steps]
    return {
        **common, "job": details.job, "details": details, "history": history,
        "axis": _axis(details, steps, round(time.time() * 1_000)),
        "traceback": details.attempts[-1].traceback if details.attempts else details.traceback,
        "is_requeued": any(entry is None and attempt is None for _, entry, attempt in history), "data": data,
        "result": result, "options": options, "is_editable": _is_editable(details, data),
        "has_flow": bool(details.parents) or (flow is not None and bool(flow.children)),
        "children": () if flow is None else flow.children, "more_children": flow is not None and flow.is_cut,
        "percent": _percent(details.job.progress),
    }  # fmt: skip


def _percent(progress: Any) -> float | None:
    """Return a progress of 0 to 100, given as a number or as the item ``percent`` of a mapping; otherwise None."""
    value: Any = cast("dict[str, Any]", progress).get("percent") if isinstance(progress, dict) else progress
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 100 else None


class Line(NamedTuple):
    """A line of the time axis of a job; ``bars``: the state, start and length of each, in percent of the axis."""

    name: str
    bars: list[tuple[str, float, float]]
    took: int
    step: StepSummary | None = None
    result: Any = None


def _axis(details: JobDetails, steps: Iterable[tuple[StepSummary, Any]], now: int) -> tuple[int, int, list[Line]]:
    """Return start and end of the time axis of a job, epoch ms; and its lines: the job, its failed attempts, steps."""
    entries, job = [each for each in details.timeline if not each.step], details.job
    end = job.finished_at or now
    found: list[tuple[str, list[tuple[str, int, int]], StepSummary | None, Any]] = []
    if entries:
        ends = [*(each.at for each in entries[1:]), end]
        states = [(str(each.state), each.at, until) for each, until in zip(entries, ends, strict=True)]
        found.append(("job", states, None, None))
    elif job.started_at and job.state is not JobState.FAILED:
        found.append(("last run", [(str(job.state), job.started_at, end)], None, None))
    for attempt in details.attempts:
        at = attempt.failed_at
        found.append((f"attempt {attempt.number}", [("failed", attempt.started_at or at, at)], None, None))
    for step, result in steps:
        bar = (str(step.state), step.stored_at - step.took, min(step.due_at or step.stored_at, end))
        found.append((step.name if step.ordinal == 1 else f"{step.name} ({step.ordinal})", [bar], step, result))
    first = min((start for _, bars, *_ in found for _, start, _ in bars), default=end)
    scale = 100 / max(end - first, 1)
    lines = [
        Line(
            name, [(state, (start - first) * scale, (until - start) * scale) for state, start, until in bars],
            step.took if step else bars[-1][2] - bars[0][1], step, result,
        )
        for name, bars, step, result in found
    ]  # fmt: skip
    return first, end, lines


def _history(details: JobDetails) -> list[tuple[int, TimelineEntry | None, FailedAttempt | None]]:
    """Return the changes of state and the failed attempts of a job by time; a requeue is neither."""
    found: list[tuple[int, TimelineEntry | None, FailedAttempt | None]] = []
    attempts = deque(details.attempts)
    # An attempt fails after the job became active, and before the state that follows, all perhaps in one millisecond.
    is_active = False
    for entry in details.timeline:
        if entry.step:
            continue
        follows = is_active or entry.state in (JobState.COMPLETED, JobState.FAILED)
        while attempts and (attempts[0].failed_at < entry.at or (follows and attempts[0].failed_at == entry.at)):
            found.append((attempts[0].failed_at, None, attempts.popleft()))
            follows = False
        found.append((entry.at, entry, None))
        is_active = entry.state is JobState.ACTIVE
    found += ((attempt.failed_at, None, attempt) for attempt in attempts)
    job = details.job
    # From the last one on, so that the places of the others remain.
    for index in sorted(requeues(job.state, job.attempts_made, details.attempts), reverse=True):
        at = _place_of_requeue(found, details.attempts[index - 1])
        found.insert(at, (found[at - 1][0], None, None))
    return found


def _place_of_requeue(
    history: list[tuple[int, TimelineEntry | None, FailedAttempt | None]], before: FailedAttempt
) -> int:
    """Return where the requeue after an attempt belongs: after the end of the job if that is recorded."""
    place = next(index for index, each in enumerate(history, 1) if each[2] is before)
    for index, (_, entry, attempt) in enumerate(history[place:], place + 1):
        if attempt is not None:
            break
        if entry is not None and entry.state in (JobState.COMPLETED, JobState.FAILED):
            return index
    return place


async def failures(visit: Visit) -> dict[str, Any]:
    """Failed jobs of a queue, grouped by error."""
    common = await _of_queue(visit, "failures")
    name = visit.queue
    reason, wanted = visit.arguments.get("reason") or None, visit.arguments.get("name") or None
    criteria: dict[str, Any] = {"reason": reason, "name": wanted}

    read = partial(visit.grouped_failures, name, _FAILURES, **criteria)
    groups, is_cut = await visit.shared("failures", reason, wanted, read=read, lifetime=_FAILURES_MS)
    return {
        **common, "stats": await visit.read(Operator.get_failure_stats), "groups": groups, "reason": reason,
        "name": wanted, "is_cut": is_cut, "rates": await visit.reader.rates(name),
    }  # fmt: skip


async def dead_letters(visit: Visit) -> dict[str, Any]:
    """Dead-letter entries of a queue, or of the subscriptions of a broadcast, grouped by error."""
    common = await _of_queue(visit, "dead-letters")
    of: str | None = None
    if common["queue"].is_broadcast:
        of, targets = visit.arguments.get("subscription") or None, await broadcast_pages.subscription_targets(visit)
        used = {place for name, place in targets.items() if place and of in (None, name)}
        target = ", ".join(sorted(used)) or None
    else:
        target = await visit.read(Operator.get_dead_letter_queue)
    found, is_cut = list[DeadLetter](), False
    if target or of:
        found, is_cut = await get_newest_dead_letters(visit.operator, visit.queue, _DEAD_LETTERS, of)
    by_error: dict[tuple[str | None, str, str], list[DeadLetter]] = {}
    for each in found:
        by_error.setdefault((each.subscription, each.name, shape_of(each.error)), []).append(each)
    groups: list[tuple[list[DeadLetter], list[tuple[DeadLetter, Any, bool]]]] = []
    left = _DEAD_LETTERS_SHOWN
    for members in sorted(by_error.values(), key=len, reverse=True):
        shown: list[tuple[DeadLetter, Any, bool]] = []
        for each in members[: min(left, _DEAD_LETTERS_OF_GROUP)]:
            data = redacted(each.data, visit.options.redact)
            shown.append((each, data, _is_editable(each, data)))
        left -= len(shown)
        groups.append((members, shown))
    return {
        **common, "groups": groups, "target": target, "examined": _DEAD_LETTERS, "is_cut": is_cut, "subscription": of,
    }  # fmt: skip


def _is_editable(found: JobDetails | DeadLetter, shown: Any) -> bool:
    """Return True if a page shows the data of a job or an entry as it is: decoded, nothing hidden, not cut."""
    return found.encoding is None and shown == found.data and is_complete(shown)


async def schedules(visit: Visit) -> dict[str, Any]:
    """Schedules of a queue."""
    return {**await _of_queue(visit, "schedules"), "schedules": await visit.read(Operator.get_schedules)}


async def workers(visit: Visit) -> dict[str, Any]:
    """Workers of a queue and the jobs that run."""
    common = await _of_queue(visit, "workers")
    running = await visit.read(Operator.get_jobs, _ACTIVE, count=_JOBS_A_PAGE)
    return {**common, "workers": await visit.read(Operator.get_workers), "running": running.jobs}


async def worker(visit: Visit) -> dict[str, Any]:
    """One worker with its running jobs, as it answers itself."""
    common = await _of_queue(visit, "workers")
    name, wanted = visit.queue, visit.arguments.get("id", "")
    listed = next((each for each in await visit.read(Operator.get_workers) if each.id == wanted), None)
    if listed is None:
        raise MissingError(f"worker {wanted!r} does not exist, or has ended")
    found: dict[str, Any] = {"activity": None, "problem": ""}
    try:
        (found["activity"],) = await visit.shared(
            "activity", wanted, visit.seen,
            read=lambda: visit.operator.inspect_workers(name, wanted, timeout=_ANSWER_MS),
        )  # fmt: skip
    except (WorkerNotFoundError, WorkerTimeoutError, WorkerCommandError, PermissionDeniedError) as error:
        found["problem"] = str(error)
    return {**common, **found, "worker": listed, "may_see": visit.access.may_see}


async def metrics(visit: Visit) -> dict[str, Any]:
    """Last 24 hours of a queue."""
    common, name = await _of_queue(visit, "metrics"), visit.queue
    quarters = quarters_of(await visit.reader.day(name))
    durations = [each.duration for each in quarters if each.duration is not None]
    completed, failed = (sum(getattr(each, kind) for each in quarters) for kind in ("completed", "failed"))
    return {
        **common, "quarters": quarters, "names": await visit.reader.by_name(name, _DAY_MS), "completed": completed,
        "failed": failed, "slowest": max(durations, default=None),
        "busiest": max(quarters, key=lambda each: each.completed + each.failed),
    }  # fmt: skip


async def subscriptions(visit: Visit) -> dict[str, Any]:
    """Subscriptions of a broadcast: the overview of it."""
    common = await _of_queue(visit, "queue")
    if not common["queue"].is_broadcast:
        raise MissingError(f"queue {visit.queue!r} is not a broadcast: it has no subscriptions")
    return await broadcast_pages.broadcast(visit, common)


async def flow(visit: Visit) -> dict[str, Any]:
    """Flow of a job as a drawing."""
    common, job_id = await _of_queue(visit, "jobs"), visit.arguments.get("id", "")
    found = await visit.flow(job_id, _FLOW)
    if found is None:
        raise JobNotFoundError(job_id)

    is_large = any(each.is_cut for each in _jobs_of(found))

    async def read() -> tuple[Counter[str], bool, Drawing]:
        root = found
        if is_large:
            root = await visit.operator.get_flow(visit.queue, job_id, max_jobs=_LARGE_FLOW) or found
        jobs = _jobs_of(root)
        return Counter(map(state_of, jobs)), any(each.is_cut for each in jobs), draw(root)

    lifetime = _LARGE_FLOW_MS if is_large else 0
    states, is_cut, drawing = await visit.shared("drawing", job_id, visit.seen, read=read, lifetime=lifetime)
    return {**common, "root_node": found, "drawing": drawing, "counts": states, "is_cut": is_cut}


def _jobs_of(root: FlowNode) -> Iterable[FlowNode]:
    """Return each job of a flow once."""
    found, stack = dict[tuple[str, str], FlowNode](), [root]
    while stack:
        node = stack.pop()
        if (node.queue, node.id) not in found:
            found[node.queue, node.id] = node
            stack += node.children
    return found.values()


async def audit(visit: Visit) -> dict[str, Any]:
    """Latest changes made on these pages."""
    found, more = await read_audit(visit.operator, before=visit.arguments.get("before", ""))
    bulks = [] if visit.arguments.get("before") else await list_bulks(visit.operator)
    return {"entries": found, "more": more, "bulks": [each for each in bulks if not each.is_over], "kinds": CHANGES}


async def bulk(visit: Visit) -> dict[str, Any]:
    """Progress of a bulk change."""
    common, found = await _of_queue(visit, "jobs"), await read_bulk(visit.operator, visit.arguments.get("id", ""))
    if found is None or found.queue != visit.queue:
        raise MissingError("the change does not exist, or is older than a week")
    return {**common, "bulk": found, "kind": CHANGES.get(found.label), "may_change": visit.may(found.kind)}


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its function, its template, and whether it is kept current while it is open."""

    read: Callable[[Visit], Awaitable[dict[str, Any]]]
    template: str
    is_live: bool = True


def template_of(page: Page, shown: dict[str, Any]) -> str:
    """Return the template of a page, which may depend on the kind of the queue."""
    return str(shown.get("template", page.template))


PAGES: Final[dict[str, Page]] = {
    "": Page(overview, "overview.html"),
    "queue": Page(queue, "queue.html"),
    "jobs": Page(jobs, "jobs.html", is_live=False),
    "job": Page(job, "job.html"),
    "all-failures": Page(all_queues.failures, "all_failures.html"),
    "decisions": Page(all_queues.decisions, "decisions.html"),
    "search": Page(all_queues.search, "search.html", is_live=False),
    "all-schedules": Page(all_queues.schedules, "all_schedules.html"),
    "all-workers": Page(all_queues.workers, "all_workers.html"),
    "all-batches": Page(all_queues.batches, "all_batches.html"),
    "all-dead-letters": Page(all_queues.dead_letters, "all_dead_letters.html"),
    "failures": Page(failures, "failures.html"),
    "dead-letters": Page(dead_letters, "dead_letters.html", is_live=False),
    "schedules": Page(schedules, "schedules.html"),
    "workers": Page(workers, "workers.html"),
    "worker": Page(worker, "worker.html", is_live=False),
    "metrics": Page(metrics, "metrics.html"),
    "subscriptions": Page(subscriptions, "broadcast.html"),
    "flow": Page(flow, "flow.html"),
    "bulk": Page(bulk, "bulk.html"),
    "audit": Page(audit, "audit.html", is_live=False),
}
"""Pages by the last part of their address."""
