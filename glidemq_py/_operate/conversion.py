"""What the server stores as values: jobs, dead-letter entries and schedules; and partitioned queues as one."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, TypeVar, cast

from glidemq_py._api.dead_letters import envelope_of
from glidemq_py._client.transport import Transport
from glidemq_py._core.record import JobState
from glidemq_py._features.failed_attempts import FailedAttempt, last_run_time, last_start
from glidemq_py._features.failures import Failure
from glidemq_py._features.outbox import STORED
from glidemq_py._features.schedulers.cron import pattern_in_words
from glidemq_py._features.schedulers.entry import JobScheduler
from glidemq_py._features.schedulers.options import Schedule
from glidemq_py._features.steps import Step
from glidemq_py._features.suspend import SuspendInfo
from glidemq_py._job.job import Job
from glidemq_py._operate.snapshots import (
    DeadLetter,
    JobSummary,
    QueueSnapshot,
    ScheduleRun,
    ScheduleSnapshot,
    StepSummary,
    record_of,
)
from glidemq_py._partitions.layout import split_partition_id
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.stored import layout_or_name, whole_queues
from glidemq_py.errors import GlideMQValidationError, JobDataError, SerializationError, readable_reason

_Failed = TypeVar("_Failed", Failure, FailedAttempt)
_UPCOMING: Final = 5
_DELAYED: Final = (JobState.DELAYED, JobState.PRIORITIZED)


def data_of(job: Job) -> Any:
    """Return the data of a job, or its stored text if it cannot be decoded."""
    try:
        return job.data
    except (JobDataError, SerializationError):
        return job._data_text


def encoding_of(job: Job) -> str | None:
    """Return "stored" if `data_of` the job is its stored text, because that cannot be decoded; otherwise None."""
    try:
        _ = job.data
    except (JobDataError, SerializationError):
        return STORED
    return None


def shown_reason(job: Job) -> str | None:
    """Return why a job failed, for people; None if it has not failed."""
    return None if job.failed_reason is None else readable_reason(job.failed_reason)


def shown_failure(failure: _Failed) -> _Failed:
    """Return a failed job or attempt with a readable error."""
    return replace(failure, error=readable_reason(failure.error))


def summary_of(job: Job, attempts: Sequence[FailedAttempt] = ()) -> JobSummary:
    """Return a job as in a list; ``attempts``: its failed attempts, if they were read."""
    first = job.state in _DELAYED and not job.attempts_made and job._delay
    record = job._record if job.state is JobState.SUSPENDED else None
    since, limit = (record.suspended_at, record.suspend_timeout) if record is not None else (None, None)
    return record_of(
        JobSummary, job, queue=job.queue_name, added_at=job.timestamp,
        due_at=job.timestamp + job._delay if first and job._delay else None, started_at=last_start(job, attempts),
        finished_at=job.finished_on, run_time=last_run_time(job, attempts), group=job.ordering_key,
        error=shown_reason(job), error_type=job.failed_type,
        waits_for=None if record is None else record.suspend_reason, suspended_at=since,
        suspended_until=since + limit if since and limit else None,
    )  # fmt: skip


def waiting(summary: JobSummary, info: SuspendInfo | None) -> JobSummary:
    """Return a delayed job with the signal that it waits for, if it does."""
    if info is None:
        return summary
    until = None if info.timeout is None else info.suspended_at + info.timeout
    return replace(summary, waits_for=info.reason, suspended_at=info.suspended_at, suspended_until=until)


def step_summary(step: Step, job: Job) -> StepSummary:
    """Return a step of a job with its decoded result."""
    try:
        result = step.value(job._link.serializer)
    except SerializationError:
        result = step.result
    return record_of(StepSummary, step, due_at=step.due_at if step.pause else None, result=result)


def dead_letter_of(entry: Job, queue: str) -> DeadLetter:
    """Return an entry of the dead letter queue of a queue."""
    envelope: Mapping[str, Any] = envelope_of(entry, queue) or {}
    attempts, encoding = envelope.get("attemptsMade"), envelope.get("encoding")
    subscription = envelope.get("subscription")
    return record_of(
        DeadLetter, entry, queue=queue, job_id=str(envelope.get("originalJobId", "")),
        error=readable_reason(str(envelope.get("failedReason") or "")),
        attempts_made=attempts if isinstance(attempts, int) else 0,
        added_at=entry.timestamp, data=envelope.get("data"),
        encoding=None if encoding is None else str(encoding),
        subscription=None if subscription is None else str(subscription),
    )  # fmt: skip


def duration_text(ms: int) -> str:
    """Return a duration in its largest whole unit: ``90s``, ``5m``, ``250ms``."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


def _when(schedule: Schedule) -> str:
    if schedule.pattern is not None:
        return schedule.pattern
    if schedule.every is not None:
        return f"every {duration_text(schedule.every)}"
    return f"{duration_text(cast('int', schedule.repeat_after_complete))} after each job"


def schedule_of(found: JobScheduler, queue: str, states: Mapping[str, str]) -> ScheduleSnapshot:
    """Return a schedule; ``states``: those of the jobs that it has added."""
    try:
        upcoming = tuple(round(each.timestamp() * 1_000) for each in found.preview(_UPCOMING))
    except GlideMQValidationError:  # the pattern matches no further time
        upcoming = ()
    schedule = found.schedule
    return record_of(
        ScheduleSnapshot, found, queue=queue, when=_when(schedule),
        timezone=(schedule.tz or "UTC") if schedule.pattern is not None else None, overlap=schedule.overlap,
        skip_without_worker=schedule.skip_without_worker,
        paused_at=(found.paused_since or 0) if found.paused else None,
        upcoming=upcoming, runs=found.iteration_count, limit=schedule.limit, skipped=found.skipped_count,
        last_runs=tuple(
            ScheduleRun(due_at=at, job_id=job_id, state=states.get(job_id)) for at, job_id in found.last_runs
        ),
        in_words=(pattern_in_words(schedule.pattern) or None) if schedule.pattern is not None else None,
    )  # fmt: skip


def score_of(reply: Any) -> int:
    """Return the score of the member of a reply, which is a mapping, pairs, or a flat list."""
    if hasattr(reply, "values"):
        return int(float(next(iter(reply.values()))))
    first: Any = reply[0]
    return int(float(reply[1] if isinstance(first, (bytes, str)) else first[1]))


_KEPT_S: Final = 60.0
_REMEMBERED: Final = 20_000
_LARGEST: Final = ("workers", "oldest_waiting")
"""Figures that are not summed: each worker serves all partitions."""


class Layouts:
    """The names of the partitions of queues; a name is looked up at most once a minute.

    Args:
        prefix: First part of every key.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._known: OrderedDict[str, tuple[float, tuple[str, ...]]] = OrderedDict()

    async def names(self, transport: Transport, name: str) -> tuple[str, ...]:
        """Return the names of the partitions of a queue; its own name if it has none."""
        known = self._known.get(name)
        if known is None or known[0] < time.monotonic():
            self._keep(name, await layout_or_name(transport, self._prefix, name))
        return self._known[name][1]

    async def whole(self, transport: Transport, names: Iterable[str]) -> list[str]:
        """Return the sorted names of the queues that have these names or partitions."""
        found = await whole_queues(transport, self._prefix, names)
        for name, layout in found.items():
            self._keep(name, layout)
        return sorted(found)

    def _keep(self, name: str, layout: tuple[str, ...]) -> None:
        self._known[name] = (time.monotonic() + _KEPT_S, layout)
        self._known.move_to_end(name)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


def sum_of(parts: Sequence[QueueSnapshot]) -> QueueSnapshot:
    """Return the snapshot of a partitioned queue, from those of its partitions."""
    counted = [each.name for each in fields(QueueSnapshot) if each.name not in ("name", "paused", "partitions")]
    return replace(parts[0], partitions=len(parts), **{
        name: (max if name in _LARGEST else sum)(getattr(part, name) for part in parts) for name in counted
    })  # fmt: skip


def by_partition(ids: Iterable[str], partitions: int) -> dict[int, list[tuple[str, str]]]:
    """Return ids by partition, each as its id in the partition and the one in the queue. Others are omitted."""
    found: dict[int, list[tuple[str, str]]] = {}
    for job_id in ids:
        number, own = split_partition_id(job_id) if partitions > 1 else (0, job_id)
        if number < partitions:
            found.setdefault(number, []).append((own, job_id))
    return found


async def in_turn(
    links: Sequence[QueueLink], position: str, change: Callable[[QueueLink, str], AsyncGenerator[tuple[int, str]]]
) -> AsyncGenerator[tuple[int, str]]:
    """Make a change in each partition, in steps. Yield the number of changed jobs, and where to continue.

    A step of a partitioned queue whose partition has no more jobs continues at the start of the next one.
    """
    first, own = 0, position
    if len(links) > 1 and position:
        number, _, own = position.partition("|")
        first = int(number)
    for at, link in enumerate(links[first:], first):
        async for done, following in change(link, own):
            if len(links) > 1:
                following = f"{at}|{following}" if following else f"{at + 1}|" if at + 1 < len(links) else ""
            yield done, following
        own = ""


HIDDEN: Final = "•••"
REDACTED: Final = ("password", "passwd", "secret", "token", "api_key", "apikey", "authorization", "credential")
"""Names of keys whose values are hidden, by default."""
CUT: Final = "…"
_DEPTH: Final = 100
"""Levels of a value that are shown: clients in other languages may store values deeper than Python's stack."""


def redacted(value: Any, names: Iterable[str], *, depth: int = _DEPTH) -> Any:
    """Return a value in which those of keys that contain one of the names are hidden; deeper levels are cut."""
    if isinstance(value, (Mapping, list, tuple)) and not depth:
        return CUT
    if isinstance(value, Mapping):
        held: Mapping[Any, Any] = cast("Any", value)
        return {
            key: HIDDEN if any(name in str(key).lower() for name in names) else redacted(item, names, depth=depth - 1)
            for key, item in held.items()
        }
    if isinstance(value, (list, tuple)):
        return [redacted(item, names, depth=depth - 1) for item in cast("list[Any]", value)]
    return value
