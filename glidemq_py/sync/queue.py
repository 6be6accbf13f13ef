"""`Queue` for code that blocks.

Written by ``python -m tests.twins``; do not edit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, Literal, Self, Unpack, cast
from zoneinfo import ZoneInfo

from typing_extensions import TypeVar

from glidemq_py._client.connect import BlockingConnection
from glidemq_py._client.runtime import iterate_now, run_immediately
from glidemq_py._core.job_options import JobOptions, JobOptionsDict
from glidemq_py._core.job_states import JobCounts, WorkerInfo
from glidemq_py._core.queue_options import (
    DEFAULT_PREFIX,
    Compression,
    JobSpec,
    QueueOptions,
    Serializer,
    SerializerName,
)
from glidemq_py._core.times import Milliseconds
from glidemq_py._features.consistency.findings import CheckReport
from glidemq_py._features.consistency.queue_api import RECHECK_AFTER_MS
from glidemq_py._features.dead_letters.options import DeadLetterInput
from glidemq_py._features.limits.options import RateLimit, TokenBucket
from glidemq_py._features.metrics import JobLogs, Metrics
from glidemq_py._features.ordering_groups.info import GroupInfo
from glidemq_py._features.schedulers.cron import DayMatch
from glidemq_py._features.schedulers.entry import JobScheduler
from glidemq_py._features.schedulers.options import Misfire
from glidemq_py._features.schedulers.queue_api import TemplateInput
from glidemq_py._features.streams.chunk import StreamChunk
from glidemq_py._features.suspend.info import SuspendInfo
from glidemq_py._features.usage.info import FlowBudget, FlowUsage, UsageSummary
from glidemq_py._features.vectors.info import VectorMatch
from glidemq_py._features.vectors.options import IndexFieldType, VectorField, VectorFieldDict
from glidemq_py._job import BlockingJob as Job
from glidemq_py._job.control import RevokeOutcome
from glidemq_py.sync.driving import QueueCore, twin_if_any, twin_of, twins_in_matches, twins_of

__all__ = ["Queue"]

DataT = TypeVar("DataT", default=Any)
ResultT = TypeVar("ResultT", default=Any)


class Queue(Generic[DataT, ResultT]):
    """A queue of jobs, for code that blocks; any number of threads may share one.

    Names, arguments and errors are those of `glidemq_py.Queue`. A client of your own is one of valkey-glide-sync.
    """

    def __init__(
        self,
        name: str,
        connection: BlockingConnection = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        default_job_options: JobOptions | Mapping[str, Any] | None = None,
        compression: Compression = "none",
        serializer: Serializer | SerializerName | None = None,
        events: bool = True,
        dead_letter_queue: DeadLetterInput = None,
    ) -> None:
        self._core: QueueCore[DataT, ResultT] = QueueCore(
            name,
            cast("Any", connection),
            prefix=prefix,
            default_job_options=default_job_options,
            compression=compression,
            serializer=serializer,
            events=events,
            dead_letter_queue=dead_letter_queue,
        )

    def connect(self) -> None:
        """Connect the running event loop now rather than at first use. Raises GlideMQConnectionError; a later use
        tries again.
        """
        run_immediately(self._core.connect())

    def close(self) -> None:
        """Send what is still to be sent, and close the connections of all event loops, if they are ours;
        idempotent.
        """
        run_immediately(self._core.close())

    def __enter__(self) -> Self:
        run_immediately(self._core.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, name: str, data: DataT | None = None, **options: Unpack[JobOptionsDict]) -> Job[DataT, ResultT]:
        """Add a job. Adds that are awaited together travel together; a lone one waits for nothing. See `Queue.add`."""
        return twin_of(run_immediately(self._core.add(name, data, **options)))

    def add_bulk(
        self, jobs: Iterable[JobSpec | tuple[str] | tuple[str, Any] | tuple[str, Any, Mapping[str, Any] | None]]
    ) -> list[Job[DataT, ResultT]]:
        """Add many jobs: ``(name, data, options)`` tuples or `JobSpec` objects, in chunks that are atomic each.
        See `Queue.add_bulk`.
        """
        return twins_of(run_immediately(self._core.add_bulk(jobs)))

    def add_and_wait(
        self,
        name: str,
        data: DataT | None = None,
        *,
        wait_timeout: Milliseconds = 30000,
        **options: Unpack[JobOptionsDict],
    ) -> ResultT:
        """Add a job and return its result once a worker has completed it. See `Queue.add_and_wait`."""
        return run_immediately(self._core.add_and_wait(name, data, wait_timeout=wait_timeout, **options))

    def get_job(self, job_id: str, *, exclude_data: bool = False) -> Job[DataT, ResultT] | None:
        """A job by its id; None if there is none. With ``exclude_data`` its data stays on the server, and is None."""
        return twin_if_any(run_immediately(self._core.get_job(job_id, exclude_data=exclude_data)))

    def iter_jobs(self, state: str, page: int = 500, *, exclude_data: bool = False) -> Iterator[Job[DataT, ResultT]]:
        """Iterate over the jobs in a state: waiting, active, delayed, prioritized, completed, failed,
        group-waiting, suspended or waiting-children; with ``exclude_data`` without their data. A call brings at
        most ``page`` (1..1000) of them, and never more than 200, for the server's sake. See `Queue.iter_jobs`.
        """
        return iterate_now(self._core.iter_jobs(state, page, exclude_data=exclude_data), twin_of)

    def get_jobs(
        self, state: str, start: int = 0, end: int = -1, *, exclude_data: bool = False
    ) -> list[Job[DataT, ResultT]]:
        """Jobs in a state by position, oldest (or most urgent) first; ``end`` inclusive, -1 = the last. With
        ``exclude_data`` their data stays on the server, and is None.
        """
        return twins_of(run_immediately(self._core.get_jobs(state, start, end, exclude_data=exclude_data)))

    def get_job_counts(self) -> JobCounts:
        """How many jobs are in each state. One call whose cost does not grow with the queue; where more than 500
        groups are there, or more than 256 priorities in use, one more for every 500, or 256, of them.
        """
        return run_immediately(self._core.get_job_counts())

    def get_job_count_by_types(self) -> JobCounts:
        """The same as `get_job_counts`, by the name that peers know."""
        return run_immediately(self._core.get_job_count_by_types())

    def count(self) -> int:
        """Jobs that are yet to be taken: waiting, delayed, prioritized and parked in their groups."""
        return run_immediately(self._core.count())

    def get_workers(self) -> list[WorkerInfo]:
        """Live workers of this queue, in any process and language, oldest first."""
        return run_immediately(self._core.get_workers())

    def iter_search_jobs(
        self,
        state: str | None = None,
        name: str | None = None,
        data: Mapping[str, Any] | None = None,
        *,
        exclude_data: bool = False,
    ) -> Iterator[Job[DataT, ResultT]]:
        """Iterate over the jobs that match, page by page; each page is short for the server. Leave off when you
        like. See `Queue.iter_search_jobs`.
        """
        return iterate_now(self._core.iter_search_jobs(state, name, data, exclude_data=exclude_data), twin_of)

    def search_jobs(
        self,
        state: str | None = None,
        name: str | None = None,
        data: Mapping[str, Any] | None = None,
        limit: int = 100,
        *,
        exclude_data: bool = False,
    ) -> list[Job[DataT, ResultT]]:
        """The first ``limit`` jobs of `iter_search_jobs`, which tells what the arguments mean and what it raises."""
        return twins_of(run_immediately(self._core.search_jobs(state, name, data, limit, exclude_data=exclude_data)))

    def get_metrics(self, kind: Literal["completed", "failed"], start: int = 0, end: int = -1) -> Metrics:
        """How many jobs ended, by the minute of the last day. See `Queue.get_metrics`."""
        return run_immediately(self._core.get_metrics(kind, start, end))

    def get_job_logs(self, job_id: str, start: int = 0, end: int = -1) -> JobLogs:
        """A job's log lines by position, ``end`` inclusive, negative numbers from the newest; and how many it has."""
        return run_immediately(self._core.get_job_logs(job_id, start, end))

    def pause(self) -> None:
        """Hand out no more jobs, at once and to nobody; what is running runs on. Idempotent."""
        run_immediately(self._core.pause())

    def resume(self) -> None:
        """Hand out jobs again. Idempotent."""
        run_immediately(self._core.resume())

    def is_paused(self) -> bool:
        """True if the queue hands out no jobs."""
        return run_immediately(self._core.is_paused())

    def set_event_retention(self, count: int) -> None:
        """Keep about that many events (some 100 bytes each), for readers that fall further behind than a thousand.
        See `Queue.set_event_retention`.
        """
        run_immediately(self._core.set_event_retention(count))

    def get_event_retention(self) -> int:
        """How many events the queue keeps, about: 1000 where nothing else was set."""
        return run_immediately(self._core.get_event_retention())

    def drain(self, *, delayed: bool = False) -> int:
        """Delete the jobs that are ready to run: waiting, prioritized, parked in groups. Active ones stay. See
        `Queue.drain`.
        """
        return run_immediately(self._core.drain(delayed=delayed))

    def clean(
        self, grace: Milliseconds, limit: int = 1000, state: Literal["completed", "failed"] = "completed"
    ) -> list[str]:
        """Delete jobs that ended at least ``grace`` ago, with everything that belongs to them, oldest first. See
        `Queue.clean`.
        """
        return run_immediately(self._core.clean(grace, limit, state))

    def retry_jobs(self, count: int = 0) -> int:
        """Run failed jobs again, with all their attempts, those that failed first first. See `Queue.retry_jobs`."""
        return run_immediately(self._core.retry_jobs(count))

    def obliterate(self, *, force: bool = False) -> int:
        """Delete the queue: every job and every key. Returns the number of jobs deleted. See `Queue.obliterate`."""
        return run_immediately(self._core.obliterate(force=force))

    def remove(self, job_id: str) -> bool:
        """Delete a job with everything that belongs to it, whatever its state; False if there was none."""
        return run_immediately(self._core.remove(job_id))

    def revoke(self, job_id: str) -> RevokeOutcome:
        """Have a job not run, or stop running. See `Queue.revoke`."""
        return run_immediately(self._core.revoke(job_id))

    def change_priority(self, job_id: str, priority: int) -> None:
        """Give a job that has not begun another priority: 1 is most urgent, 2047 least, 0 none. See
        `Queue.change_priority`.
        """
        run_immediately(self._core.change_priority(job_id, priority))

    def change_delay(self, job_id: str, delay: Milliseconds) -> None:
        """Have a job that has not begun become due ``delay`` (ms or timedelta) from now; 0 = at once. See
        `Queue.change_delay`.
        """
        run_immediately(self._core.change_delay(job_id, delay))

    def promote(self, job_id: str) -> None:
        """Have a delayed job become due at once. See `Queue.promote`."""
        run_immediately(self._core.promote(job_id))

    def set_global_concurrency(self, concurrency: int) -> None:
        """Limit the number of active jobs of all workers together. See `Queue.set_global_concurrency`."""
        run_immediately(self._core.set_global_concurrency(concurrency))

    def get_global_concurrency(self) -> int:
        """Return the limit of active jobs of the whole queue; 0 = no limit."""
        return run_immediately(self._core.get_global_concurrency())

    def set_global_rate_limit(self, max: int, duration: Milliseconds) -> None:
        """Limit the number of jobs that all workers together fetch per window. Overrides the workers' ``limiter``.
        See `Queue.set_global_rate_limit`.
        """
        run_immediately(self._core.set_global_rate_limit(max, duration))

    def get_global_rate_limit(self) -> RateLimit | None:
        """Return the rate limit of the queue, or None."""
        return run_immediately(self._core.get_global_rate_limit())

    def remove_global_rate_limit(self) -> None:
        """Remove the rate limit of the queue."""
        run_immediately(self._core.remove_global_rate_limit())

    def rate_limit_group(self, key: str, duration: Milliseconds, *, extend: Literal["max", "replace"] = "max") -> int:
        """Start no job of an ordering group for ``duration``. Active jobs keep running. See
        `Queue.rate_limit_group`.
        """
        return run_immediately(self._core.rate_limit_group(key, duration, extend=extend))

    def set_group_limits(
        self,
        key: str,
        *,
        concurrency: int | Literal[False] | None = None,
        rate_limit: RateLimit | Mapping[str, Any] | Literal[False] | None = None,
        token_bucket: TokenBucket | Mapping[str, Any] | Literal[False] | None = None,
    ) -> None:
        """Set the limits of an ordering group. Raising a limit takes effect immediately. See
        `Queue.set_group_limits`.
        """
        run_immediately(
            self._core.set_group_limits(key, concurrency=concurrency, rate_limit=rate_limit, token_bucket=token_bucket)
        )

    def get_group(self, key: str) -> GroupInfo | None:
        """Return the current state of an ordering group; None if it does not exist."""
        return run_immediately(self._core.get_group(key))

    def check(
        self, *, repair: bool = False, recheck_after: Milliseconds = RECHECK_AFTER_MS, settle: None = None
    ) -> CheckReport:
        """Check the whole queue for inconsistent state, and repair it if ``repair`` is True. See `Queue.check`."""
        return run_immediately(self._core.check(repair=repair, recheck_after=recheck_after, settle=settle))

    @property
    def name(self) -> str:
        """See `Queue`."""
        return self._core.name

    @property
    def options(self) -> QueueOptions:
        """See `Queue`."""
        return self._core.options

    def upsert_job_scheduler(
        self,
        name: str,
        *,
        every: Milliseconds | None = None,
        pattern: str | None = None,
        repeat_after_complete: Milliseconds | None = None,
        tz: str | ZoneInfo | None = None,
        start_date: datetime | int | None = None,
        end_date: datetime | int | None = None,
        limit: int | None = None,
        immediately: bool = False,
        misfire: Misfire = "fire_once",
        day_match: DayMatch = "and",
        template: TemplateInput | None = None,
    ) -> JobScheduler:
        """Make a scheduler, or change the one of that name. Every worker of the queue fires it, each instant once.
        See `Queue.upsert_job_scheduler`.
        """
        return run_immediately(
            self._core.upsert_job_scheduler(
                name,
                every=every,
                pattern=pattern,
                repeat_after_complete=repeat_after_complete,
                tz=tz,
                start_date=start_date,
                end_date=end_date,
                limit=limit,
                immediately=immediately,
                misfire=misfire,
                day_match=day_match,
                template=template,
            )
        )

    def remove_job_scheduler(self, name: str) -> bool:
        """Remove a scheduler; False if there was none. Jobs that it has added stay. See
        `Queue.remove_job_scheduler`.
        """
        return run_immediately(self._core.remove_job_scheduler(name))

    def get_job_scheduler(self, name: str) -> JobScheduler | None:
        """A scheduler by its name; None if there is none, or what stands there is none."""
        return run_immediately(self._core.get_job_scheduler(name))

    def get_job_schedulers(self) -> list[JobScheduler]:
        """All schedulers, by name; what is no scheduler (somebody's junk) is left out."""
        return run_immediately(self._core.get_job_schedulers())

    def get_repeatable_jobs(self) -> list[JobScheduler]:
        """The same as `get_job_schedulers`, by the name that peers know."""
        return run_immediately(self._core.get_repeatable_jobs())

    def iter_dead_letter_jobs(self, page: int = 500) -> Iterator[Job[Any, Any]]:
        """Iterate over this queue's dead letters (`get_dead_letter_jobs`), a ``page`` (1..1000) a call."""
        return iterate_now(self._core.iter_dead_letter_jobs(page), twin_of)

    def get_dead_letter_jobs(self, start: int = 0, end: int = -1) -> list[Job[Any, Any]]:
        """This queue's dead letters by position, oldest first; ``end`` inclusive, -1 = the last. See
        `Queue.get_dead_letter_jobs`.
        """
        return twins_of(run_immediately(self._core.get_dead_letter_jobs(start, end)))

    def get_dead_letter_job(self, job_id: str) -> Job[Any, Any] | None:
        """One of this queue's dead letters by its own id (not the original's); None if there is none."""
        return twin_if_any(run_immediately(self._core.get_dead_letter_job(job_id)))

    def remove_dead_letter_job(self, job_id: str) -> bool:
        """Delete one of this queue's dead letters; False if there is none of that id."""
        return run_immediately(self._core.remove_dead_letter_job(job_id))

    def replay_dead_letter_job(self, job_id: str) -> Job[Any, Any] | None:
        """Add the job of a dead letter to this queue again, and delete the letter. See
        `Queue.replay_dead_letter_job`.
        """
        return twin_if_any(run_immediately(self._core.replay_dead_letter_job(job_id)))

    def signal(self, job_id: str, name: str, data: Any = None) -> bool:
        """Send a signal to a job, which resumes it if it is suspended. See `Queue.signal`."""
        return run_immediately(self._core.signal(job_id, name, data))

    def get_suspended_jobs(self, start: int = 0, end: int = -1, *, exclude_data: bool = False) -> list[Job[Any, Any]]:
        """Return suspended jobs, earliest timeout first. The arguments are those of `Queue.get_jobs`."""
        return twins_of(run_immediately(self._core.get_suspended_jobs(start, end, exclude_data=exclude_data)))

    def get_suspend_info(self, job_id: str) -> SuspendInfo | None:
        """Return details of a suspended job; None if the job does not exist or is not suspended."""
        return run_immediately(self._core.get_suspend_info(job_id))

    def read_stream(
        self, job_id: str, *, last_id: str | None = None, count: int = 100, block: Milliseconds | None = None
    ) -> list[StreamChunk]:
        """Return chunks of a job's stream, oldest first. See `Queue.read_stream`."""
        return run_immediately(self._core.read_stream(job_id, last_id=last_id, count=count, block=block))

    def stream(self, job_id: str, *, last_id: str | None = None, page: int = 100) -> Iterator[StreamChunk]:
        """Iterate over a job's chunks as they are written, until the job completes, fails or is removed. See
        `Queue.stream`.
        """
        return iterate_now(self._core.stream(job_id, last_id=last_id, page=page), lambda item: item)

    def get_flow_usage(self, parent_id: str) -> FlowUsage:
        """Return the total usage of a job and its direct children, which may be in other queues."""
        return run_immediately(self._core.get_flow_usage(parent_id))

    def get_flow_budget(self, flow_id: str) -> FlowBudget | None:
        """Return the budget of a flow and its usage so far; None if the flow has no budget. See
        `Queue.get_flow_budget`.
        """
        return run_immediately(self._core.get_flow_budget(flow_id))

    def get_usage_summary(
        self,
        queues: Iterable[str] | None = None,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        window: Milliseconds | None = None,
    ) -> UsageSummary:
        """Return the total usage of queues over a time range, by the time of the reports. See
        `Queue.get_usage_summary`.
        """
        return run_immediately(self._core.get_usage_summary(queues, start=start, end=end, window=window))

    def create_job_index(
        self,
        *,
        name: str | None = None,
        vector: VectorField | VectorFieldDict | None = None,
        fields: Mapping[str, IndexFieldType] | None = None,
    ) -> str:
        """Create a search index over the jobs of this queue. See `Queue.create_job_index`."""
        return run_immediately(self._core.create_job_index(name=name, vector=vector, fields=fields))

    def drop_job_index(self, name: str | None = None) -> bool:
        """Delete an index, but not its jobs. Raises the errors of `create_job_index`. See `Queue.drop_job_index`."""
        return run_immediately(self._core.drop_job_index(name))

    def vector_search(
        self,
        embedding: Iterable[float],
        *,
        k: int = 10,
        filter: str = "*",
        field: str | None = None,
        name: str | None = None,
        score_field: str = "__score",
    ) -> list[VectorMatch[Job[Any, Any]]]:
        """Return the jobs whose embeddings are nearest to ``embedding``, nearest first. See `Queue.vector_search`."""
        return twins_in_matches(
            run_immediately(
                self._core.vector_search(embedding, k=k, filter=filter, field=field, name=name, score_field=score_field)
            )
        )

    def __repr__(self) -> str:
        return repr(self._core)
