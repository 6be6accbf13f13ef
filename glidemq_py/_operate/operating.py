"""`Operator`: reads the queues of one server in short, bounded calls, and performs actions on them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Final, Self, TypeVar, Unpack

from glidemq_py._api.dead_letters import envelope_of
from glidemq_py._api.flow_producer import FlowProducer
from glidemq_py._api.flow_reading import JobNode
from glidemq_py._api.job_queue import Queue
from glidemq_py._api.queue_events import QueueEvent, QueueEvents
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.counting import complete_counts
from glidemq_py._client.transport import Transport, open_transport
from glidemq_py._core.calls import administration as calls
from glidemq_py._core.calls import pieces
from glidemq_py._core.checks import check_int
from glidemq_py._core.keys import DEFAULT_PREFIX, QueueKeys, partition_home
from glidemq_py._core.limits import FairKeyDefaults, FairKeyInfo, GlobalLimits, GroupInfo
from glidemq_py._core.record import JobState, WorkerInfo
from glidemq_py._features.broadcast import Subscription, get_subscriptions
from glidemq_py._features.failures import Failure, FailureCriteriaDict, FailureStats
from glidemq_py._features.metrics_by_name import MetricsByName, MetricsByNameSetting
from glidemq_py._features.outbox import dead_letter_queue
from glidemq_py._features.queue_list import find_queues
from glidemq_py._features.remote_control import WorkerActivity
from glidemq_py._features.steps import StepState
from glidemq_py._job.contents import SUSPENSION_FIELDS
from glidemq_py._job.job import Job
from glidemq_py._job.reading import ROWS_A_CALL, counts_of, listable, listed_states, read_page
from glidemq_py._operate.access import FULL_ACCESS, Access, reading
from glidemq_py._operate.conversion import (
    Layouts,
    by_partition,
    data_of,
    encoding_of,
    schedule_of,
    score_of,
    shown_failure,
    shown_reason,
    step_summary,
    sum_of,
    summary_of,
    waiting,
)
from glidemq_py._operate.filters import JobFilter
from glidemq_py._operate.snapshots import (
    BatchSnapshot,
    FlowNode,
    GroupPage,
    GroupSummary,
    JobDetails,
    JobPage,
    JobReference,
    JobSummary,
    QueueDetails,
    QueueSnapshot,
    ScheduleSnapshot,
    record_of,
)
from glidemq_py._partitions.link import QueueLink, server_time
from glidemq_py.errors import (
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    JobBatchNotFoundError,
    SerializationError,
)

_T = TypeVar("_T")
_SCANNED: Final = 5_000
"""Jobs examined per page of a filter: about 50 ms of server time, in calls of at most 2 ms."""
_LOG_LINES: Final = 20
_QUEUES_KEPT: Final = 1_000
_QUEUES_AT_ONCE: Final = 50


async def some(found: AsyncIterator[_T], count: int) -> tuple[list[_T], bool]:
    """Return the first ones, and whether there are more."""
    first: list[_T] = []
    async for each in found:
        if len(first) == count:
            return first, True
        first.append(each)
    return first, False


class Operator:
    """Reads the queues of one server, and performs actions on them. Use it in an ``async with`` block.

    Args:
        connection: URL or options of the server. A server with a risky configuration is read all the same; `examine`
            reports it.
        prefix: First part of every key.
        access: What may be read and changed.

    Raises:
        GlideMQValidationError: The URL or the prefix is invalid.
    """

    def __init__(
        self, connection: str | ConnectionOptions, *, prefix: str = DEFAULT_PREFIX, access: Access = FULL_ACCESS
    ) -> None:
        given = ConnectionOptions.from_url(connection) if isinstance(connection, str) else connection
        self.accepted = given
        """The options as given: settings that they accept (`allow_eviction`, `allow_no_aof`) are no problem."""
        self.connection = given.with_changes(allow_eviction=True, allow_no_aof=True)
        self.prefix = prefix
        self.access = access
        self._queues: dict[str, Queue] = {}
        self._layouts = Layouts(prefix)
        self._transport: Transport | None = None
        self._opening = asyncio.Lock()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            await queue.close()
        await self._stack.aclose()

    async def with_access(self, access: Access) -> Self:
        """Return an operator with other access and the same connections, which this one closes."""
        await self.transport()
        other = copy.copy(self)
        other.access = access
        return other

    async def queue(self, name: str) -> Queue:
        """Return the queue as an object, which the operator closes. No more than a thousand are kept.

        Raises:
            AccessDeniedError: The queue may not be read.
            GlideMQValidationError: The name is invalid.
        """
        self.access.check_read(name)
        found = self._queues.pop(name, None)
        if found is None:
            found = Queue(name, self.connection, prefix=self.prefix)
            if len(self._queues) >= _QUEUES_KEPT:
                oldest = next(iter(self._queues))
                await self._queues.pop(oldest).close()
        self._queues[name] = found
        return found

    async def links(self, name: str) -> list[QueueLink]:
        """Return the connected links of the partitions of a queue, or its own.

        Raises the errors of `queue`, and GlideMQConnectionError.
        """
        queue = await self.queue(name)
        return await queue._links()

    async def link(self, name: str) -> QueueLink:
        """Return the link of a queue; of a partitioned one, that of its first partition. See `links`."""
        return (await self.links(name))[0]

    async def transport(self) -> Transport:
        """Return the operator's connection, which belongs to no queue. Raises GlideMQConnectionError."""
        async with self._opening:
            if self._transport is None:
                self._transport = await open_transport(self.connection, check=False)
                self._stack.push_async_callback(self._transport.close)
        return self._transport

    # -- queues -------------------------------------------------------------------------------------------

    async def queue_exists(self, name: str) -> bool:
        """Return True if the queue has ever been used on this server."""
        self.access.check_read(name)
        keys = QueueKeys(self.prefix, name)
        # Jobs with ids chosen by the caller create neither `meta` nor `id`.
        used = (
            keys.meta, keys.id, keys.stream, keys.events, keys.scheduled, keys.completed, keys.failed, keys.schedulers,
        )  # fmt: skip
        return bool(await (await self.transport()).command("EXISTS", *used))

    @reading("queue", 10_000)
    async def list_queues(self, pattern: str | None = None, *, scan: bool = False) -> list[str]:
        """Return the names of the queues that may be read, sorted. A partitioned queue is one name.

        Args:
            pattern: Glob pattern of the names; None = all.
            scan: Also search all keys of the server, in short steps, for queues that only Node peers have used.
        """
        transport = await self.transport()
        names = await self._layouts.whole(transport, await find_queues(transport, self.prefix, scan=scan))
        return [name for name in names if self.access.may_see(name) and (not pattern or fnmatchcase(name, pattern))]

    @reading("queue")
    async def get_queue(self, name: str) -> QueueSnapshot:
        """Return a queue at this moment; its counts are 0 if it does not exist."""
        self.access.check_read(name)
        # Not through a `Queue`: a page of a thousand queues would open each of them.
        transport = await self.transport()
        names = await self._layouts.names(transport, name)
        found = await asyncio.gather(*(_gauges(transport, QueueKeys(self.prefix, each).meta, name) for each in names))
        return found[0] if len(found) == 1 else sum_of(found)

    @reading("queue")
    async def get_queues(self, names: Iterable[str]) -> list[QueueSnapshot]:
        """Return these queues at this moment, some at a time; those that may not be read are omitted."""
        seen = [name for name in names if self.access.may_see(name)]
        found: list[QueueSnapshot] = []
        for piece in pieces(seen, _QUEUES_AT_ONCE):
            found += await asyncio.gather(*map(self.get_queue, piece))
        return found

    @reading("queue")
    async def get_queue_details(self, name: str) -> QueueDetails:
        """Return a queue with its settings and figures."""
        queue = await self.queue(name)
        hour_ago = await server_time(await self.transport()) - 3_600_000
        completed = (await queue.get_metrics("completed")).data
        failed = (await queue.get_metrics("failed")).data
        return QueueDetails(
            queue=await self.get_queue(name),
            limits=await self.get_limits(name),
            dead_letter_queue=await self.get_dead_letter_queue(name),
            failures=await self.get_failure_stats(name),
            completed_per_minute=tuple(point for point in completed if point.timestamp >= hour_ago),
            failed_per_minute=tuple(point for point in failed if point.timestamp >= hour_ago),
            features=await queue.settings.get_features(),
            subscriptions=tuple(await self.get_subscriptions(name)),
        )

    @reading("queue")
    async def get_limits(self, name: str) -> GlobalLimits:
        """Return the limits of a queue that apply now."""
        return await (await self.queue(name)).limits.get()

    @reading("failure")
    async def get_failure_stats(self, name: str) -> FailureStats:
        """Return how many jobs of a queue have failed, by reason and job name."""
        return await (await self.queue(name)).failures.get_stats()

    @reading("group")
    async def get_fair_key(self, queue: str, key: str | None) -> FairKeyInfo | FairKeyDefaults:
        """Return a fair key of a queue; without one, the limits of every key that has none of its own."""
        fair_keys = (await self.queue(queue)).fair_keys
        return await (fair_keys.get(key) if key else fair_keys.get_defaults())

    @reading("group")
    async def get_fair_keys(self, queue: str, count: int) -> list[FairKeyInfo]:
        """Return some fair keys of a queue that have waiting or active jobs."""
        return (await some((await self.queue(queue)).fair_keys.iter(), count))[0]

    @reading("group")
    async def get_group(self, queue: str, key: str) -> GroupInfo | None:
        """Return an ordering group of a queue; None without jobs and limits."""
        return await (await self.queue(queue)).groups.get(key)

    @reading("queue")
    async def get_dead_letter_queue(self, name: str, subscription: str = "") -> str | None:
        """Return the name of the dead letter queue of a queue or subscription; None without one."""
        link = await self.link(name)
        # Opening the dead letter queue would deliver entries, and a reader may not write.
        return await link.call(dead_letter_queue, subscription=subscription) or None

    @reading("queue", 10_000)
    async def get_dead_letter_source(self, name: str) -> str | None:
        """Return the queue or broadcast that uses this queue as its dead letter queue; None if there is none.

        It is read from the oldest entry, and compared with the setting of the other queue, which alone stores it. So
        the result for an empty dead letter queue is None; if several queues share it, one of them is returned.
        """
        jobs, *_ = await self.read_jobs(name, JobFilter(state=JobState.WAITING), "", 1, 1, with_data=True)
        envelope = envelope_of(jobs[0]) if jobs else None
        if envelope is None:
            return None
        queue, subscription = str(envelope["originalQueue"]), envelope.get("subscription")
        of = subscription if isinstance(subscription, str) else ""
        try:
            whole = partition_home(queue)
            if whole is not None and queue in [link.keys.name for link in await self.links(whole)]:
                queue = whole
            is_source = self.access.may_see(queue) and await self.get_dead_letter_queue(queue, of) == name
        except GlideMQConnectionError:
            raise
        except GlideMQError:
            return None  # a name that any client may have written, or a queue that this user may not read
        return queue if is_source else None

    @reading("queue")
    async def get_metrics_by_name(
        self, queue: str, window: int, *, name: str | None = None
    ) -> tuple[list[MetricsByName], MetricsByNameSetting]:
        """Return the figures per job name of the last ``window`` ms, and whether they are recorded."""
        opened = await self.queue(queue)
        found = await opened.metrics_by_name.get(window, name=name, interval=None)
        return found, await opened.metrics_by_name.get_setting()

    @reading("worker", 5_000)
    async def get_workers(self, queue: str) -> list[WorkerInfo]:
        """Return the live workers of a queue, oldest first."""
        return await (await self.queue(queue)).get_workers()

    @reading("worker")
    async def inspect_workers(
        self, queue: str, worker: str | None = None, *, timeout: int = 15_000
    ) -> list[WorkerActivity]:
        """Return the running jobs of all workers of a queue, or of one, as they answer themselves.

        Jobs of queues that may not be read are omitted.

        Raises:
            WorkerNotFoundError: The queue has no such worker.
            WorkerTimeoutError: A worker has not answered within ``timeout`` ms.
        """
        return [
            replace(found, jobs=tuple(job for job in found.jobs if self.access.may_see(job.queue)))
            for found in await (await self.queue(queue)).workers.inspect(worker, timeout=timeout)
        ]

    async def is_broadcast(self, name: str) -> bool:
        """Return True if the queue has subscriptions, so it holds messages instead of jobs."""
        return (await self.get_queue(name)).is_broadcast

    @reading("queue")
    async def get_subscriptions(self, name: str) -> list[Subscription]:
        """Return the subscriptions of a broadcast; none if it is a queue."""
        return await get_subscriptions(await self.link(name))

    # -- jobs ---------------------------------------------------------------------------------------------

    @reading("job")
    async def get_jobs(
        self, queue: str, wanted: JobFilter | None = None, *, cursor: str = "", count: int = 50,
        most_examined: int = _SCANNED, newest: bool = False,
    ) -> JobPage:  # fmt: skip
        """Return a page of the jobs of a queue that match a filter.

        A job that keeps its state while the pages are read is on exactly one of them. With criteria other than the
        state, a page has about ``count`` jobs, and may have few or none before the last page: a call examines at most
        ``most_examined`` jobs.

        Args:
            queue: Name of the queue.
            wanted: Which jobs; None = all.
            cursor: That of the previous page; '' = the first page.
            count: Number of jobs, 1 to 1,000.
            most_examined: Number of jobs whose other criteria are compared.
            newest: Read the jobs of each state from the newest on, but due and ordered ones as they will run.

        Raises:
            GlideMQValidationError: An argument is invalid.
        """
        jobs, following, examined = await self.read_jobs(
            queue, wanted or JobFilter(), cursor, count, most_examined, newest=newest
        )
        return JobPage(jobs=tuple(map(summary_of, jobs)), cursor=following, examined=examined)

    async def read_jobs(
        self, queue: str, wanted: JobFilter, cursor: str, count: int, most_examined: int, *, with_data: bool = False,
        newest: bool = False,
    ) -> tuple[list[Job], str, int]:  # fmt: skip
        """Return the jobs of a page, as `get_jobs` does, its cursor, and how many jobs were examined at most.

        ``with_data``: also their data.
        """
        check_int("count", count, 1, 1_000)
        links = await self.links(queue)
        states = listed_states() if wanted.state is None else (listable(wanted.state),)
        lists = [(link, state) for state in states for link in links]
        at, position = _position_of(cursor, len(lists))
        size = min(count if wanted.is_plain else max(count, 50), ROWS_A_CALL)
        found: dict[str, Job] = {}
        examined, is_bare = 0, not (wanted.data or with_data)
        while at < len(lists) and len(found) < count and examined < most_examined:
            # The server examines `asked` jobs, regardless of the number of matches.
            asked = min(size, count - len(found)) if wanted.is_plain else size
            jobs, position = await read_page(
                *lists[at], position, asked, bare=is_bare, name=wanted.name or "", where=wanted.conditions(),
                newest=newest, also=SUSPENSION_FIELDS if lists[at][1] is JobState.SUSPENDED else (),
            )  # fmt: skip
            examined += asked
            for job in jobs:
                if wanted.matches(job):
                    found.setdefault(job.id, job)
            if not position:
                at += 1
        return list(found.values()), "" if at == len(lists) else f"{at}:{position}", examined

    @reading("job")
    async def iter_jobs(self, queue: str, wanted: JobFilter | None = None) -> AsyncIterator[JobSummary]:
        """Iterate over the jobs of a queue that match a filter, page by page."""
        cursor, seen = "", set[str]()
        while True:
            page = await self.get_jobs(queue, wanted, cursor=cursor, count=ROWS_A_CALL)
            for job in page.jobs:
                if job.id not in seen:
                    seen.add(job.id)
                    yield job
            cursor = page.cursor
            if not cursor:
                return

    @reading("job")
    async def get_job(self, queue: str, job_id: str, *, log_lines: int = _LOG_LINES) -> JobDetails | None:
        """Return everything about a job, with the last lines of its log; None if it does not exist."""
        opened = await self.queue(queue)
        job = await opened.get_job(job_id)
        if job is None:
            return None
        logs = await opened.get_job_logs(job.id, -log_lines) if log_lines else await opened.get_job_logs(job.id, 0, 0)
        try:
            result: Any = job.returnvalue
        except SerializationError:
            result = job._result_text
        attempts = tuple(map(shown_failure, await opened.failures.get_attempts(job.id)))
        steps, summary = await job.get_steps(), summary_of(job, attempts)
        if job.state is JobState.DELAYED and any(each.state is StepState.AWAITING for each in steps):
            summary = waiting(summary, await opened.jobs.get_suspend_info(job.id))
        return JobDetails(
            job=summary, steps=tuple(step_summary(each, job) for each in steps), data=data_of(job),
            encoding=encoding_of(job), result=result,
            options=job.opts, attempts=attempts, timeline=tuple(await opened.timelines.get(job.id)),
            traceback="\n".join(job.stacktrace[-1:]),
            logs=tuple(logs.logs if log_lines else ()), log_count=logs.count,
            parents=tuple(JobReference(queue=ref.queue, id=ref.id) for ref in await job.get_parents()),
        )  # fmt: skip

    @reading("flow")
    async def get_flow(self, queue: str, job_id: str, *, max_jobs: int = 1_000) -> FlowNode | None:
        """Return a job with the jobs it waits for, at most ``max_jobs``; None if it does not exist."""
        self.access.check_read(queue)
        async with FlowProducer(self.connection, prefix=self.prefix) as producer:
            root = await producer.get_flow(queue, job_id, max_jobs=max_jobs)
            return None if root is None else self._flow(root, set())

    def _flow(self, node: JobNode, above: set[int]) -> FlowNode:
        job, seen = node.job, above | {id(node)}
        visible = self.access.may_see(job.queue_name)
        return record_of(
            FlowNode, node, id=job.id, queue=job.queue_name, name=job.name if visible else "",
            error=shown_reason(job) if visible else None,
            children=tuple(self._flow(child, seen) for child in node.children if id(child) not in seen),
        )  # fmt: skip

    # -- failures -----------------------------------------------------------------------------------------

    @reading("failure")
    async def iter_failures(self, queue: str, **criteria: Unpack[FailureCriteriaDict]) -> AsyncIterator[Failure]:
        """Iterate over the failed jobs of a queue, with readable errors; ``criteria`` as for `Queue.failures.iter`."""
        async for failure in (await self.queue(queue)).failures.iter(**criteria):
            yield shown_failure(failure)

    async def get_newest_failures(self, queue: str, count: int, **criteria: Any) -> tuple[list[Failure], bool]:
        """Return the failures among about the ``count`` newest, and whether there are older ones.

        Args:
            queue: Name of the queue.
            count: Number of failed jobs that are examined; of a partitioned queue, as many per partition.
            criteria: ``reason`` and ``name`` of `Queue.failures.iter`.
        """
        since = 0
        for link in await self.links(queue):
            command = ("ZRANGE", link.keys.failed, str(count), str(count), "REV", "WITHSCORES")
            older: Any = await link.command(*command)
            if older:
                since = max(since, score_of(older))
        found = [each async for each in self.iter_failures(queue, since=since + 1 if since else None, **criteria)]
        return found, bool(since)

    # -- events -------------------------------------------------------------------------------------------

    @reading("event")
    async def iter_events(self, queue: str, *, after: str | None = None) -> AsyncIterator[QueueEvent]:
        """Yield the events of a queue as they happen, without end. ``after``: start after this event; None = now."""
        self.access.check_read(queue)
        async for event in QueueEvents(queue, self.connection, prefix=self.prefix, last_event_id=after):
            yield event

    # -- schedules ----------------------------------------------------------------------------------------

    @reading("schedule")
    async def get_schedules(self, queue: str) -> list[ScheduleSnapshot]:
        """Return the schedules of a queue, sorted by name."""
        found = await (await self.queue(queue)).schedulers.get_all()
        states = await self._states(queue, [job_id for each in found for _, job_id in each.last_runs])
        return [schedule_of(each, queue, states) for each in found]

    @reading("schedule")
    async def get_schedule(self, queue: str, name: str) -> ScheduleSnapshot | None:
        """Return the schedule with this name, or None."""
        found = await (await self.queue(queue)).schedulers.get(name)
        if found is None:
            return None
        return schedule_of(found, queue, await self._states(queue, [job_id for _, job_id in found.last_runs]))

    async def _states(self, queue: str, ids: Sequence[str]) -> dict[str, str]:
        """Return the states of the existing jobs among these ids."""
        links, found = await self.links(queue), dict[str, str]()
        for number, own in by_partition(ids, len(links)).items():
            link, shown = links[number], dict(own)
            for piece in pieces(own, ROWS_A_CALL):
                some = [job_id for job_id, _ in piece]
                for job_id, (state,) in await link.call(calls.records, some, ("state",)):
                    found[shown[job_id]] = state if isinstance(state, str) else ""
        return found

    # -- groups -------------------------------------------------------------------------------------------

    @reading("group")
    async def get_groups(self, queue: str, *, cursor: str = "") -> GroupPage:
        """Return a page of the ordering groups that have waiting jobs. A group may be on two pages."""
        links = await self.links(queue)
        at, position = _position_of(cursor, len(links))
        link = links[at]
        found = await link.call(calls.count_parked, position)
        groups = tuple(GroupSummary(key=key, waiting=number) for key, number in found.groups.items())
        at, position = (at, found.cursor) if found.cursor else (at + 1, "")
        return GroupPage(groups=groups, cursor="" if at == len(links) else f"{at}:{position}")

    # -- batches ------------------------------------------------------------------------------------------

    @reading("batch")
    async def iter_batches(self, queue: str) -> AsyncIterator[BatchSnapshot]:
        """Iterate over the batches of a queue that are open or have jobs that have not ended."""
        async for batch in (await self.queue(queue)).job_batches.iter():
            with contextlib.suppress(JobBatchNotFoundError):  # it has just expired
                yield BatchSnapshot(id=batch.id, queue=queue, status=await batch.get_status())

    @reading("batch")
    async def get_batch(self, queue: str, batch_id: str) -> BatchSnapshot | None:
        """Return a batch of a queue, or None."""
        try:
            status = await (await (await self.queue(queue)).job_batches.get(batch_id)).get_status()
        except JobBatchNotFoundError:
            return None
        return BatchSnapshot(id=batch_id, queue=queue, status=status)


async def _gauges(transport: Transport, meta: str, name: str) -> QueueSnapshot:
    found = await transport.call(calls.gauges(meta))
    numbers = await complete_counts(transport, meta, found.counts)
    return record_of(
        QueueSnapshot, counts_of(numbers), name=name, workers=found.workers, oldest_waiting=found.oldest,
        outbox=found.outbox, partitions=1,
        subscriptions=found.subscriptions, unread=None if found.unread < 0 else found.unread,
    )  # fmt: skip


def _position_of(cursor: str, lists: int) -> tuple[int, str]:
    if not cursor:
        return 0, ""
    at, colon, position = cursor.partition(":")
    if not colon or not at.isascii() or not at.isdigit() or len(at) > 4 or int(at) >= lists:
        raise GlideMQValidationError("cursor", cursor, "must be the cursor of a page with the same filter")
    return int(at), position
