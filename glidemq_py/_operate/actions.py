"""All actions: those on queues, workers, batches and schedules here, those on jobs in `job_actions`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import fields
from typing import Any, Final, Literal

from glidemq_py._api.administration import drain_in_pieces
from glidemq_py._api.job_queue import Queue
from glidemq_py._core.checks import check_choice
from glidemq_py._core.limits import RateLimit
from glidemq_py._features.cleaning import CLEANABLE
from glidemq_py._features.consistency.checking import CheckReport
from glidemq_py._operate.action import ACTIONS as ACTIONS
from glidemq_py._operate.action import (
    MAX_LISTED,
    RATE,
    Action,
    ActionResult,
    Button,
    ManyAction,
    Step,
    absent,
    nothing,
)
from glidemq_py._operate.conversion import in_turn
from glidemq_py._operate.job_actions import (
    KEEP_FEWER,
    in_state,
)
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.parsing import PARAMETERS, Param, span, span_of
from glidemq_py._operate.snapshots import param, record
from glidemq_py.errors import GlideMQValidationError, JobBatchNotFoundError

_NO_GROUPS: Final = "it has neither ordering groups nor fair keys; to limit it: glidemq queue limits {queue}"
NO_NAMES: Final = "its workers record no figures by job name; for its counts: glidemq queue show {queue}"


async def check_queue(operator: Operator, queue: str, *, repair: bool = False) -> CheckReport:
    """Check a queue for inconsistent state; ``repair`` is an action of the kind "repair_queue"."""
    if repair:
        operator.access.check_action("repair_queue", queue)
    return await (await operator.queue(queue)).check(repair=repair)


# -- queues -----------------------------------------------------------------------------------------------


@record
class PauseQueue(
    Action,
    says="pause queue {queue!r}",
    calls="pause",
    command="queue pause",
    button=Button("pause", "Pause the queue?", "queue paused"),
    route=("/pause", {"paused": True}),
):
    """Start no more jobs. Active jobs keep running."""


@record
class ResumeQueue(
    Action,
    says="resume queue {queue!r}",
    calls="resume",
    command="queue resume",
    button=Button("resume", "Resume the queue?", "queue resumed"),
    route=("/resume", {"paused": False}),
):
    """Start jobs again."""


@record
class DrainQueue(
    ManyAction,
    says="delete {jobs} that have not started from queue {queue!r}",
    destroys=True,
    instead=KEEP_FEWER,
    command="queue drain",
    button=Button("drain", "Delete all jobs that are ready to run?", "{n} job{s} deleted", "Deleting ready jobs"),
):
    """Delete the jobs that are ready to run. Active jobs are kept."""

    delayed: bool = param("Delete delayed jobs too.", "--delayed", default=False)

    async def count(self, operator: Operator) -> int | None:
        """See `Action`."""
        found = await operator.get_queue(self.queue)
        return found.ready + (found.delayed if self.delayed else 0)

    async def steps(self, operator: Operator, queue: Queue, position: str = "") -> AsyncGenerator[Step]:
        """See `ManyAction`."""
        links = await operator.links(self.queue)
        pieces = in_turn(links, position, lambda link, at: drain_in_pieces(link, self.delayed, at))
        async for number, following in pieces:
            yield Step(done=number, position=following)


@record
class CleanQueue(
    ManyAction,
    command="queue clean",
    says="delete {jobs} from queue {queue!r}",
    destroys=True,
    instead=KEEP_FEWER,
    button=Button("clean", "Delete all these jobs?", "{n} job{s} deleted", "Deleting jobs"),
):
    """Delete old jobs in a state."""

    state: str = param(
        Param("--state STATE", "Delete jobs in this state; any but active.", words=CLEANABLE), default="completed"
    )
    grace: int = param(  # ms
        Param("--older-than TIME", "Only jobs that ended (or were added) before: 7d.", span_of), default=0
    )
    limit: int | None = param(Param("--limit -n N", "Maximum number of jobs.", least=1), default=None)  # None = all

    @property
    def of(self) -> str:
        """See `Action`."""
        return self.state

    @property
    def question(self) -> str:
        """See `Action`."""
        most = "delete up to {jobs} from queue {queue!r} older than "
        return f"{most}{span(self.grace)}" if self.grace else self.says

    async def count(self, operator: Operator) -> int | None:
        """Return the number of jobs in the state, which is exact for a grace of 0."""
        check_choice("state", self.state, CLEANABLE)
        found = in_state(await operator.get_queue(self.queue), self.state)
        return found if self.limit is None else min(found, self.limit)

    async def steps(self, operator: Operator, queue: Queue, position: str = "") -> AsyncGenerator[Step]:
        """See `ManyAction`. The position is the number of jobs deleted so far."""
        done = int(position or 0)
        while True:
            most = MAX_LISTED if self.limit is None else min(MAX_LISTED, self.limit - done)
            found = await queue.clean(self.grace, most, self.state)
            done += len(found)
            is_last = len(found) < most or done == self.limit
            yield Step(done=len(found), position="" if is_last else str(done), ids=tuple(found))
            if is_last:
                return


@record
class ObliterateQueue(
    Action,
    says="delete queue {queue!r} with {jobs}",
    destroys=True,
    command="queue obliterate",
):
    """Delete a queue with all its jobs, schedules and settings."""

    force: bool = param("Also if jobs are active.", "--force", default=False)

    async def count(self, operator: Operator) -> int | None:
        """See `Action`."""
        found = await operator.get_queue(self.queue)
        return found.stored

    async def make(self, queue: Queue) -> ActionResult:
        """See `Action`."""
        return ActionResult(done=await queue.obliterate(force=self.force))


@record
class _LimitsAction(Action):
    """A change of limits. None = unchanged, False = no limit."""

    concurrency: int | Literal[False] | None = param(PARAMETERS["concurrency"], default=None)
    rate_limit: RateLimit | Literal[False] | None = param(PARAMETERS["rate_limit"], default=None)


@record
class SetQueueLimits(
    _LimitsAction, kind="limit_queue", button=Button("limits", "Set these limits?", "limits set", typed=RATE)
):
    """Set the limits of a queue. None = unchanged, False = no limit; ``ttl``: ms until those before apply again."""

    ttl: int | None = param(
        Param("--for TIME", "Then the limits before apply again, such as 30m.", span_of), default=None
    )

    async def make(self, queue: Queue) -> None:
        """See `Action`."""
        if self.concurrency is not None:
            await queue.limits.set_concurrency(self.concurrency or 0, ttl=self.ttl)
        if self.rate_limit is False:
            await queue.limits.remove_rate_limit()
        elif self.rate_limit is not None:
            await queue.limits.set_rate_limit(self.rate_limit.max, self.rate_limit.duration, ttl=self.ttl)


@record
class SetGroupLimits(
    _LimitsAction,
    kind="limit_group",
    instead=_NO_GROUPS,
    button=Button("group-limits", "Set the limits of the group?", "limits of the group set", typed=("key", *RATE)),
):
    """Set the limits of an ordering group. None = unchanged, False = no limit."""

    group: str

    async def make(self, queue: Queue) -> None:
        """See `Action`."""
        await queue.groups.set_limits(self.group, concurrency=self.concurrency, rate_limit=self.rate_limit)


@record
class SetFairKeyLimits(
    _LimitsAction,
    kind="limit_fair_key",
    instead=_NO_GROUPS,
    button=Button(
        "fair-key-limits",
        "Set these limits of fair keys?",
        "limits of fair keys set",
        typed=("key", "weight", *RATE, "max_backlog"),
    ),
):
    """Set the weight and the limits of a fair key. None = unchanged, False = no limit.

    Without a key, the limits are those of every key that has none of its own, and there is no weight.
    """

    key: str | None = None
    weight: int | None = param(
        Param("--weight N", "Jobs served per job of a key with weight 1.", least=1), default=None
    )
    max_backlog: int | Literal[False] | None = param(
        Param("--max-backlog N", "Ready jobs above which adds fail; 0 = no limit.", least=0), default=None
    )

    async def make(self, queue: Queue) -> None:
        """See `Action`."""
        limits: dict[str, Any] = {
            "concurrency": self.concurrency, "rate_limit": self.rate_limit, "max_backlog": self.max_backlog,
        }  # fmt: skip
        if self.key is not None:
            await queue.fair_keys.set_limits(self.key, weight=self.weight, **limits)
        elif self.weight is not None:
            raise GlideMQValidationError("weight", self.weight, "needs a fair key")
        else:
            await queue.fair_keys.set_defaults(**limits)


# -- fair keys and workers --------------------------------------------------------------------------------


@record
class PauseFairKey(
    Action,
    instead=_NO_GROUPS,
    calls="fair_keys.pause",
    button=Button("pause-fair-key", "Pause the fair key?", "fair key paused"),
):
    """Start no more jobs with a fair key. Active jobs keep running."""

    key: str


@record
class ResumeFairKey(
    Action,
    instead=_NO_GROUPS,
    calls="fair_keys.resume",
    button=Button("resume-fair-key", "Resume the fair key?", "fair key resumed"),
):
    """Start jobs with a fair key again."""

    key: str


@record
class _WorkersAction(Action, subject="worker"):
    """A change of a worker (None = all of the queue), which ``calls`` of `Queue.workers` makes."""

    worker: str | None = param(PARAMETERS["worker"], default=None)
    timeout: int = param(PARAMETERS["answers"], default=15_000)

    async def make(self, queue: Queue) -> ActionResult:
        """See `Action`. Raises WorkerNotFoundError, WorkerTimeoutError and WorkerCommandError."""
        change: Any = getattr(queue.workers, self.calls)
        first = [getattr(self, each.name) for each in fields(self)[3:]]
        ids = await change(*first, self.worker, timeout=self.timeout)
        return ActionResult(done=len(ids), ids=tuple(ids[:MAX_LISTED]))


@record
class QuietWorker(
    _WorkersAction,
    command="workers quiet",
    says="quiet",
    calls="quiet",
    button=Button("quiet-worker", "Let the worker fetch no further jobs?", "worker fetches no further jobs"),
):
    """Let workers fetch no further jobs, for example before a deploy. Their active jobs keep running."""


@record
class ResumeWorker(
    _WorkersAction,
    command="workers resume",
    says="resume",
    calls="resume",
    button=Button("resume-worker", "Let the worker fetch jobs again?", "worker fetches jobs again"),
):
    """Let quiet workers fetch jobs again."""


@record
class ResizeWorker(_WorkersAction, command="workers resize", says="resize", calls="resize"):
    """Change how many jobs workers run at the same time, until they end."""

    concurrency: int = param(Param("CONCURRENCY", "Jobs at a time.", least=1))


@record
class SetMetricsByName(Action, kind="set_metrics", instead=NO_NAMES, calls="metrics_by_name.set"):
    """Record metrics by job name, and keep them for so many minutes; 0 = off."""

    minutes: int


# -- batches ----------------------------------------------------------------------------------------------


@record
class CancelBatch(
    Action,
    says="cancel {jobs} of batch {batch!r} of queue {queue!r}",
    subject="batch",
    destroys=True,
    command="batch cancel",
    button=Button("cancel-batch", "Cancel the batch? Its running jobs stop.", "{n} job{s} of the batch cancelled"),
):
    """Close a batch, reject further jobs, and cancel those that have not ended."""

    batch: str = param(PARAMETERS["batch"])

    async def count(self, operator: Operator) -> int | None:
        """See `Action`."""
        found = await operator.get_batch(self.queue, self.batch)
        return 0 if found is None else found.status.pending

    async def make(self, queue: Queue) -> ActionResult:
        """See `Action`."""
        try:
            return ActionResult(done=await (await queue.job_batches.get(self.batch)).cancel())
        except JobBatchNotFoundError:
            return nothing(absent(self.batch))


# -- schedules --------------------------------------------------------------------------------------------


@record
class PutSchedule(Action, subject="schedule"):
    """Create or update a schedule; ``schedule`` are the options of `Queue.schedulers.upsert`."""

    name: str
    schedule: Mapping[str, Any]
    job_name: str | None = None
    data: Any = None

    async def make(self, queue: Queue) -> None:
        """See `Action`."""
        template: Any = {"name": self.job_name or self.name, "data": {} if self.data is None else self.data}
        await queue.schedulers.upsert(self.name, template=template, **self.schedule)


@record
class _ScheduleAction(Action):
    """A change of the schedule with this name."""

    name: str = param(Param("NAME", "Name of the schedule.", of="schedule"))

    async def missing(self, operator: Operator) -> tuple[str, ...]:
        """See `Action`."""
        return () if await operator.get_schedule(self.queue, self.name) is not None else (self.name,)


@record
class PauseSchedule(
    _ScheduleAction,
    says="pause schedule {name!r} of queue {queue!r}",
    subject="schedule",
    calls="schedulers.pause",
    command="cron pause",
    button=Button("pause-schedule", "Pause the schedule? It adds no jobs until it is resumed.", "schedule paused"),
):
    """Add no jobs of a schedule until it is resumed. Jobs it has added are kept."""


@record
class ResumeSchedule(
    _ScheduleAction,
    says="resume schedule {name!r} of queue {queue!r}",
    subject="schedule",
    button=Button("resume-schedule", "Resume the schedule?", "schedule resumed"),
):
    """Resume a schedule; ``catch_up`` is that of `Queue.schedulers.resume`."""

    catch_up: bool | None = None

    async def make(self, queue: Queue) -> ActionResult:
        """See `Action`."""
        if await queue.schedulers.get(self.name) is None:
            return nothing(absent(self.name))
        resumed = await queue.schedulers.resume(self.name, catch_up=self.catch_up)
        return ActionResult(done=1, detail="" if resumed else "no due time is left: the schedule has ended")


@record
class RunSchedule(
    _ScheduleAction,
    says="add the job of schedule {name!r} to queue {queue!r}",
    subject="schedule",
    command="cron run",
    button=Button("run-schedule", "Run the schedule now?", "job added"),
):
    """Add the job of a schedule now. Its due times do not change."""

    async def make(self, queue: Queue) -> ActionResult:
        """See `Action`."""
        found = await queue.schedulers.get(self.name)
        if found is None:
            return nothing(absent(self.name))
        given = {each.name: getattr(found.options, each.name) for each in fields(found.options) if each.init}
        options = {name: value for name, value in given.items() if value is not None}
        job = await queue.add(found.job_name, {} if found.data is None else found.data, **options)
        return ActionResult(done=1, ids=(job.id,), detail=str(job.outcome))


@record
class RemoveSchedule(
    _ScheduleAction,
    says="delete schedule {name!r} of queue {queue!r}",
    subject="schedule",
    destroys=True,
    calls="schedulers.remove",
    command="cron rm",
    button=Button("remove-schedule", "Delete the schedule? Its jobs are kept.", "schedule deleted"),
):
    """Delete a schedule. Jobs it has added are kept."""
