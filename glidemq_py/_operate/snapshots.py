"""The values that an `Operator` returns. `as_json` makes JSON of them; their attributes are the documented keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final, TypeVar, cast, dataclass_transform

from glidemq_py._api.job_batch import BatchStatus
from glidemq_py._core.limits import GlobalLimits, RateLimit
from glidemq_py._core.record import JobState
from glidemq_py._features.broadcast import Subscription
from glidemq_py._features.failed_attempts import FailedAttempt
from glidemq_py._features.failures import FailureStats
from glidemq_py._features.metrics import MetricsPoint
from glidemq_py._features.steps import StepState
from glidemq_py._features.timeline import TimelineEntry
from glidemq_py._operate.parsing import Param, span, span_of

_T = TypeVar("_T")
_MANY_UNREAD: Final = 1_001


def param(text: str | Param, name: str = "", **given: Any) -> Any:
    """Declare a field of an action that people give.

    Args:
        text: The help of it, or the whole parameter.
        name: Its name in a command; see `Param`.
        given: The arguments of `dataclasses.field`.
    """
    declared = text if isinstance(text, Param) else Param(name, text)
    default = given.get("default")
    shown = span(default) if declared.read is span_of and default else default if isinstance(default, str) else None
    declared = declared._replace(is_needed="default" not in given, default=shown)
    return field(metadata={"param": declared}, **given)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field, param))
def record(kind: type[_T]) -> type[_T]:
    """Make a class a dataclass of values that do not change, given by keyword."""
    return dataclass(frozen=True, slots=True, kw_only=True)(kind)


def record_of(kind: type[_T], source: object, **given: Any) -> _T:
    """Return a record whose fields are the attributes of an object, but for those given."""
    names = [each.name for each in fields(cast("Any", kind)) if each.name not in given]
    return kind(**{name: getattr(source, name) for name in names}, **given)


@record
class QueueSnapshot:
    """A queue at one moment, read by one call; by one per partition if it has any.

    Attributes:
        name: Name of the queue.
        paused: True if the queue is paused.
        workers: Number of live workers; one that died is counted for up to a minute.
        oldest_waiting: Milliseconds since the oldest waiting job became ready; 0 without one.
        waiting: Number of jobs that are ready to run.
        prioritized: Number of ready jobs with a priority.
        group_waiting: Number of ready jobs that wait in their ordering groups.
        active: Number of jobs that run.
        delayed: Number of jobs that are due later.
        suspended: Number of jobs that wait for a signal.
        waiting_children: Number of parents that wait for their children.
        completed: Number of completed jobs that are kept.
        failed: Number of failed jobs that are kept.
        outbox: Number of results not yet delivered to other queues.
        partitions: Number of its partitions; 1 without.
        subscriptions: Number of subscriptions of a broadcast, whose kept messages are ``waiting``; 0 = a queue.
        unread: Number of messages that the slowest subscription has not read, as `Subscription.waiting`; None = more
            than 1,000.
    """

    name: str
    paused: bool
    workers: int
    oldest_waiting: int
    waiting: int
    prioritized: int
    group_waiting: int
    active: int
    delayed: int
    suspended: int
    waiting_children: int
    completed: int
    failed: int
    outbox: int
    partitions: int = 1
    subscriptions: int = 0
    unread: int | None = 0

    @property
    def is_broadcast(self) -> bool:
        """True if it has subscriptions, so it holds messages instead of jobs."""
        return self.subscriptions > 0

    @property
    def ready(self) -> int:
        """Number of jobs that could run now: waiting, prioritized and group-waiting.

        Of a broadcast, the messages that its slowest subscription has not read; 1,001 if they are more than 1,000.
        """
        if self.is_broadcast:
            return _MANY_UNREAD if self.unread is None else self.unread
        return self.waiting + self.prioritized + self.group_waiting

    @property
    def unfinished(self) -> int:
        """Number of jobs that have neither completed nor failed."""
        return self.ready + self.active + self.delayed + self.suspended + self.waiting_children

    @property
    def stored(self) -> int:
        """Number of all jobs that are kept, or of all messages."""
        ready = self.waiting + self.prioritized + self.group_waiting
        return self.unfinished - self.ready + ready + self.completed + self.failed


@record
class QueueDetails:
    """A queue with its settings and figures.

    Attributes:
        queue: The queue.
        limits: Limits of the queue that apply now.
        dead_letter_queue: Name of the dead letter queue; None without one.
        failures: Number of failures by reason and name.
        completed_per_minute: Completed jobs per minute of the last hour; minutes without any are omitted.
        failed_per_minute: The same for failed jobs.
        features: Features that the queue uses, with the first version that supports each.
        subscriptions: Its subscriptions, if it is a broadcast.
    """

    queue: QueueSnapshot
    limits: GlobalLimits
    dead_letter_queue: str | None
    failures: FailureStats
    completed_per_minute: tuple[MetricsPoint, ...]
    failed_per_minute: tuple[MetricsPoint, ...]
    features: Mapping[str, str]
    subscriptions: tuple[Subscription, ...]


@record
class JobSummary:
    """A job in a list. Times are epoch ms of the server's clock, durations are ms.

    Attributes:
        id: Id of the job.
        name: Name of the job.
        queue: Name of its queue.
        state: State of the job; None if it is unknown to this version.
        added_at: When it was added; 0 if unknown.
        due_at: When a delayed job is due; None for others.
        started_at: When its last attempt started; None before the first. After a failed attempt it is known only if the
            failed attempts were read, as for `JobDetails`, and include this one; otherwise None.
        finished_at: When it completed or failed; None before.
        run_time: How long the attempt ran that ended it; None before, or if it is unknown. Of a failed job it is known
            only if the failed attempts were read.
        attempts_made: Number of failed attempts.
        priority: Its priority; 0 without one.
        group: Its ordering key; None without one.
        fair_key: Its fair key; None without one.
        tags: Its tags.
        error: Message of its last failure; None without one.
        error_type: Exception type of its last failure; None without one.
        progress: Its progress; None without one.
        waits_for: What a suspended job waits for, such as "signal approval"; None for others, or without a reason.
        suspended_at: When a suspended job was suspended; None for others.
        suspended_until: When it fails if no signal comes; None for others, or without a limit.
    """

    id: str
    name: str
    queue: str
    state: JobState | None
    added_at: int
    due_at: int | None
    started_at: int | None
    finished_at: int | None
    run_time: int | None
    attempts_made: int
    priority: int
    group: str | None
    fair_key: str | None
    tags: tuple[str, ...]
    error: str | None
    error_type: str | None
    progress: Any
    waits_for: str | None = None
    suspended_at: int | None = None
    suspended_until: int | None = None


@record
class JobPage:
    """Some jobs of a queue.

    Attributes:
        jobs: The jobs.
        cursor: Where the next page starts; '' = there are no more.
        examined: At most so many jobs were examined for this page.
    """

    jobs: tuple[JobSummary, ...]
    cursor: str
    examined: int


@record
class JobReference:
    """A job of any queue."""

    queue: str
    id: str


@record
class StepSummary:
    """A stored step of a job. Its attributes are those of `Step`, but for the result.

    Attributes:
        due_at: End of its pause, epoch ms; None without one.
        result: Its result; the stored text if that cannot be decoded.
    """

    name: str
    ordinal: int
    state: StepState
    stored_at: int
    took: int
    attempts: int
    due_at: int | None
    children: int
    error: str | None
    error_type: str | None
    traceback: str | None
    result: Any


@record
class JobDetails:
    """Everything about one job.

    Attributes:
        job: The job as in a list.
        data: Its data; the stored text if that cannot be decoded.
        encoding: "stored" if ``data`` is the stored text; None if it is the value.
        result: Its result; None if it has not completed.
        options: Its options as they are stored.
        attempts: Its failed attempts, oldest first.
        timeline: Changes of its state, oldest first; empty if none are recorded (see `Queue.timelines.set`).
        steps: Its stored steps, in the order in which they were first stored.
        traceback: The end of the last traceback; '' without one.
        logs: The last lines of its log.
        log_count: Number of all lines of its log.
        parents: The jobs that wait for it.
    """

    job: JobSummary
    data: Any
    encoding: str | None
    result: Any
    options: Mapping[str, Any]
    attempts: tuple[FailedAttempt, ...]
    timeline: tuple[TimelineEntry, ...]
    steps: tuple[StepSummary, ...]
    traceback: str
    logs: tuple[str, ...]
    log_count: int
    parents: tuple[JobReference, ...]


@record
class DeadLetter:
    """A dead-letter entry of a queue, or of a subscription of a broadcast.

    Attributes:
        id: Id of the entry, which is not that of the original job.
        name: Name of the job.
        queue: Queue of the original job.
        subscription: Subscription in which the message failed; None = the entry is of a queue.
        job_id: Id of the original job.
        error: Why it failed.
        attempts_made: Number of failed attempts.
        added_at: When the entry was added, epoch ms.
        data: Data of the job.
        encoding: None if ``data`` is the value. "stored" if it is the stored text, "json" if that text is JSON (see
            `Queue.dead_letters.get_all`).
        tags: Tags of the job.
    """

    id: str
    name: str
    queue: str
    job_id: str
    error: str
    attempts_made: int
    added_at: int
    data: Any
    encoding: str | None
    tags: tuple[str, ...]
    subscription: str | None = None


@record
class MessageSummary:
    """A message of a broadcast in a list.

    Attributes:
        id: Id of the message.
        name: Its subject.
        published_at: When it was published, epoch ms.
        due_at: When a delayed message is delivered; None for others.
        data: Its data; the stored text if that cannot be decoded.
        encoding: "stored" if ``data`` is the stored text; None if it is the value.
    """

    id: str
    name: str
    published_at: int
    due_at: int | None
    data: Any
    encoding: str | None


@record
class MessagePage:
    """Some messages of a broadcast; ``cursor`` and ``examined`` are those of `JobPage`."""

    messages: tuple[MessageSummary, ...]
    cursor: str
    examined: int


@record
class MessageDelivery:
    """The state of a message in one subscription.

    Attributes:
        subscription: Name of the subscription.
        state: As `Delivery.state`; None if it is no longer known.
        attempts_made: Number of failed attempts.
        error: Message of its last failure; None without one.
        error_type: Exception type of its last failure; None without one.
    """

    subscription: str
    state: str | None
    attempts_made: int
    error: str | None
    error_type: str | None


@record
class BatchSnapshot:
    """A batch of jobs.

    Attributes:
        id: Id of the batch.
        queue: Name of its queue; its jobs may be in others.
        status: Its counts and times.
    """

    id: str
    queue: str
    status: BatchStatus


@record
class ScheduleRun:
    """A run of a schedule.

    Attributes:
        due_at: Its due time, epoch ms.
        job_id: Id of its job.
        state: State of the job; None if it was deleted.
    """

    due_at: int
    job_id: str
    state: str | None


@record
class ScheduleSnapshot:
    """A schedule of a queue. Times are epoch ms.

    Attributes:
        name: Name of the schedule.
        queue: Name of its queue.
        when: When it is due, such as ``0 3 * * *`` or ``every 5m``.
        timezone: Time zone of its pattern; None without a pattern.
        overlap: "allow", "skip" or "buffer_one".
        skip_without_worker: True if it adds no job while no worker is registered.
        job_name: Name of its jobs.
        data: Data of its jobs.
        paused_at: When it was paused; None if it is not.
        next_run: When it is due next; None while it is paused, or waits for its last job.
        upcoming: The next due times, at most five.
        last_run: When it last added a job; None before.
        runs: Number of runs so far.
        limit: Maximum number of runs; None = no limit.
        skipped: Number of due times skipped because a job was unfinished, or no worker was registered.
        last_job_id: Id of its last job, if it is stored.
        last_runs: Its last runs that added a job, at most 20, oldest first.
        in_words: Its pattern in words, such as "at 03:00 every day"; None if it has none, or an uncommon one.
    """

    name: str
    queue: str
    when: str
    timezone: str | None
    overlap: str
    skip_without_worker: bool = False
    job_name: str
    data: Any
    paused_at: int | None
    next_run: int | None
    upcoming: tuple[int, ...]
    last_run: int | None
    runs: int
    limit: int | None
    skipped: int
    last_job_id: str | None
    last_runs: tuple[ScheduleRun, ...]
    in_words: str | None = None


@record
class FlowNode:
    """A job of a flow, with the jobs it waits for.

    Attributes:
        id: Id of the job.
        queue: Its queue.
        name: Its name.
        state: Its state; None if it was deleted.
        error: Message of its last failure; None without one.
        children: The jobs it waits for.
        is_cut: True if it has more children than were read.
    """

    id: str
    queue: str
    name: str
    state: JobState | None
    error: str | None
    children: tuple[FlowNode, ...]
    is_cut: bool


@record
class GroupSummary:
    """An ordering group that has waiting jobs."""

    key: str
    waiting: int


@record
class GroupPage:
    """Some ordering groups; ``cursor`` is where the next page starts, '' = there are no more."""

    groups: tuple[GroupSummary, ...]
    cursor: str


def as_json(value: Any) -> Any:
    """Return a value of this module, or a list or mapping of them, as JSON types."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: as_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        entries = cast("dict[Any, Any]", value).items()
        return {_key(key): as_json(item) for key, item in entries}
    if hasattr(value, "_asdict"):  # a named tuple
        return as_json(cast("Any", value)._asdict())
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_json(item) for item in cast("list[Any]", value)]
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, RateLimit):
        return {"max": value.max, "duration": value.duration}
    return str(value)


def _key(key: Any) -> str:
    if isinstance(key, tuple):
        return "/".join(str(part) for part in cast("list[Any]", key))
    return str(key)
