"""The methods of a `Queue` that has partitions: each calls those of the partitions, which are plain queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from glidemq_py._api import administration
from glidemq_py._api import partitioned_batches as batches
from glidemq_py._api import partitioned_dead_letters as dead_letters
from glidemq_py._api import partitioned_fair_keys as fair_keys
from glidemq_py._api import partitioned_figures as figures
from glidemq_py._api import partitioned_leases as leases
from glidemq_py._api import partitioned_limits as limits
from glidemq_py._api import partitioned_schedulers as schedulers
from glidemq_py._api import partitioned_vectors as vectors
from glidemq_py._api.administration import checked_count
from glidemq_py._client.runtime import ASYNC_RUNTIME
from glidemq_py._core.checks import check_bool, check_int
from glidemq_py._core.job_states import JobCounts, WorkerInfo
from glidemq_py._core.names import parse_job_id
from glidemq_py._job.job import Job
from glidemq_py._job.reading import between, listable
from glidemq_py._partitions.deleting import jobs_active_error
from glidemq_py._partitions.layout import Layout, Partition, partition_of_key
from glidemq_py._partitions.routing import candidates
from glidemq_py.errors import JobNotFoundError, JobStateError, PartitionedQueueError

if TYPE_CHECKING:
    from glidemq_py._api.job_queue import Queue

T = TypeVar("T")

_BY_ID: Final = (
    "change_delay", "change_priority", "change_rank", "discard", "get_job", "get_job_attempts", "get_job_logs",
    "get_flow_budget", "get_flow_usage", "get_job_timeline", "get_suspend_info", "promote", "read_stream", "remove",
    "revoke", "signal",
)  # fmt: skip
"""Methods whose first argument is the id of a job."""
_NAMES: Final = ("job_id", "parent_id", "flow_id", "key", "deduplication_id")
"""Names of the first arguments of `_BY_ID` and `_BY_KEY`."""
_BY_KEY: Final = (
    "get_deduplication_job", "get_fair_key", "get_group", "pause_fair_key", "rate_limit_group",
    "remove_deduplication", "resume_fair_key", "set_fair_key_limits", "set_group_limits",
)  # fmt: skip
"""Methods whose first argument chooses the partition as the routing key of a job does."""
_SETTINGS: Final = (
    "remove_failure_policy", "remove_stalled_policy", "reset_failure_stats", "set_attempt_history",
    "set_event_retention", "set_failure_policy", "set_fair_key_defaults", "set_metrics_by_name",
    "set_result_retention", "set_stalled_policy", "set_timeline", "pause",
)  # fmt: skip
"""Methods that are called for every partition, partition 0 last."""
_OF_FIRST: Final = (
    "get_attempt_history", "get_event_retention", "get_failure_policy", "get_fair_key_defaults",
    "get_metrics_by_name_setting", "get_result_retention", "get_stalled_policy", "get_timeline_setting",
    "get_usage_summary", "inspect_workers", "is_paused", "ping_workers", "quiet_workers", "resize_workers",
    "resume_workers",
)  # fmt: skip
"""Methods that read what `_SETTINGS` have written, or that concern all partitions, whichever they are called for."""
_SUMMED: Final = ("count", "purge_failures", "retry_failures", "drain")
"""Methods that return a number of jobs."""
_COUNTED: Final = ("promote_jobs", "requeue_completed", "retry_jobs")
"""Methods whose first argument is the maximum number of jobs, None = all, and which return a number of jobs."""
_IN_TURN: Final = (
    "iter_batches",
    "iter_dead_letter_jobs",
    "iter_failures",
    "iter_jobs",
    "iter_search_jobs",
)
"""Methods that iterate over something of all partitions, one after the other."""
ADDS_PER_TURN: Final = 128
"""Concurrent adds without a key that go to the same partition in a row."""


class PartitionedQueue:
    """The partitions of a queue.

    Args:
        home: The queue of the user.
        layout: Its partitions.
    """

    def __init__(self, home: Queue[Any, Any], layout: Layout) -> None:
        self.home = home
        self.layout = layout
        self.queues: tuple[Queue[Any, Any], ...] = tuple(
            home._partition_queue(name, Partition(number, home.name), layout.number)
            for number, name in enumerate(layout.names)
        )
        self._turn = self._adds = 0

    # -- choosing partitions --------------------------------------------------------------------------------

    def next_partition(self) -> int:
        """Return the partition of the next job, or jobs, without a routing key."""
        self._turn = (self._turn + 1) % self.layout.partitions
        return self._turn

    def partition_of(self, key: str | None) -> int:
        """Return the partition of a new job with this routing key; None = without one.

        Concurrent adds without a key go to one partition for as long as it can send them together.
        """
        if key is not None:
            return partition_of_key(key, self.layout.partitions)
        adder: Any = self.queues[self._turn]._adder
        if getattr(adder, "is_busy", False) and self._adds < ADDS_PER_TURN:
            self._adds += 1
            return self._turn
        self._adds = 1
        return self.next_partition()

    async def _locate(self, job_id: object) -> tuple[Queue[Any, Any], str]:
        """Return the partition of a job and the job's id in it. Jobs of other clients may need a read."""
        found = candidates(parse_job_id(job_id), self.layout)
        for number, own in found[:-1]:
            link = await self.queues[number]._connected()
            if await link.command("EXISTS", link.keys.job(own)):
                return self.queues[number], own
        number, own = found[-1]
        if len(found) > 1:
            link = await self.queues[number]._connected()
            if not await link.command("EXISTS", link.keys.job(own)):
                number, own = found[0]  # the place of a job that does not exist
        return self.queues[number], own

    async def each(self, method: str, *args: Any, **options: Any) -> list[Any]:
        """Call a method of every partition; return the results in the order of the partitions."""
        return await self.together(getattr(queue, method)(*args, **options) for queue in self.queues)

    async def together(self, calls: Iterable[Awaitable[T]]) -> list[T]:
        """Await several calls, at the same time if the queue is not a blocking one."""
        if self.home._runtime is ASYNC_RUNTIME:
            return list(await asyncio.gather(*calls))
        return [await call for call in calls]

    async def run(self, method: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Call the method of this name for the partitions that it concerns."""
        if method in _BY_ID:
            job_id, more, named = _first(args, options)
            return await self.by_id(method, job_id, more, **named)
        if method in _BY_KEY:
            key, _, _ = _first(args, options)
            return await getattr(self.queues[self.partition_of(str(key))], method)(*args, **options)
        if method in _SETTINGS:
            for queue in reversed(self.queues):
                await getattr(queue, method)(*args, **options)
            return None
        if method in _OF_FIRST:
            return await getattr(self.queues[0], method)(*args, **options)
        if method in _SUMMED:
            return sum(await self.each(method, *args, **options))
        if method in _COUNTED:
            return await self._counted(method, *args, **options)
        own: Callable[..., Awaitable[Any]] | None = getattr(self, method, None)
        if own is None:
            raise PartitionedQueueError(self.home.name, len(self.queues), method)
        return await own(*args, **options)

    async def iterate(self, method: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> AsyncGenerator[Any]:
        """Iterate over the items that the method of this name yields for each partition."""
        if method == "stream":
            job_id, more, named = _first(args, options)
            queue, own = await self._locate(job_id)
            async with aclosing(cast("AsyncGenerator[Any]", queue.stream(own, *more, **named))) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        if method == "iter_fair_keys":
            async with aclosing(fair_keys.iter_fair_keys(self)) as infos:
                async for info in infos:
                    yield info
            return
        if method not in _IN_TURN:
            raise PartitionedQueueError(self.home.name, len(self.queues), method)
        for number, queue in enumerate(self.queues):
            async with aclosing(cast("AsyncGenerator[Any]", getattr(queue, method)(*args, **options))) as found:
                async for each in found:
                    yield self._shown(number, method, each)

    def _shown(self, number: int, method: str, record: Any) -> Any:
        """Return a partition's result of a method as that of the whole queue."""
        if method == "iter_dead_letter_jobs":
            return dead_letters.shown_entry(Partition(number, self.home.name), record)
        if method == "iter_batches":
            return batches.shown_batch(self, number, record)
        if method != "iter_failures":
            return record
        return replace(record, job_id=Partition(number, self.home.name).id_of(record.job_id))

    async def by_id(
        self, method: str | Callable[..., Awaitable[Any]], job_id: object, args: tuple[Any, ...] = (), **options: Any
    ) -> Any:  # fmt: skip
        """Call a method, or function, of the partition that has a job; its errors name the job as the caller does."""
        queue, own = await self._locate(job_id)
        names = (own, queue._partition.id_of(own)) if queue._partition is not None else (own,)
        try:
            if isinstance(method, str):
                return await getattr(queue, method)(own, *args, **options)
            return await method(queue, own, *args, **options)
        except JobNotFoundError as error:
            if error.job_id in names:
                raise JobNotFoundError(str(job_id), error.detail) from None
            raise
        except JobStateError as error:
            if error.job_id in names and error.args[3] is None:
                raise JobStateError(str(job_id), error.state, error.action, queue=error.queue) from None
            raise

    async def _counted(self, method: str, count: int | None = None, **options: Any) -> int:
        want = checked_count(count)
        done = 0
        for queue in self.queues:
            done += await getattr(queue, method)(want - done if want else None, **options)
            if want and done >= want:
                break
        return done

    # -- reading --------------------------------------------------------------------------------------------

    async def get_job_counts(self) -> JobCounts:
        """See `Queue.get_job_counts`; the sum over the partitions."""
        counts: list[JobCounts] = await self.each("get_job_counts")
        sums = {
            each.name: sum(getattr(count, each.name) for count in counts)
            for each in fields(JobCounts)
            if each.name != "paused"
        }
        return JobCounts(**sums, paused=counts[0].paused)

    async def get_jobs(self, state: str, start: int = 0, end: int = -1, **options: Any) -> list[Job[Any, Any]]:
        """See `Queue.get_jobs`; positions count the jobs of all partitions, one after the other."""
        if options.get("tags"):
            return await between(self.home.iter_jobs(state, **options), start, end)
        return await self._slice("get_jobs", listable(state), start, end, lambda queue, first, last: queue.get_jobs(
            state, first, last, **options))  # fmt: skip

    async def get_suspended_jobs(self, start: int = 0, end: int = -1, **options: Any) -> list[Job[Any, Any]]:
        """See `Queue.get_suspended_jobs`; one partition after the other."""
        return await self._slice("get_suspended_jobs", "suspended", start, end, lambda queue, first, last: (
            queue.get_suspended_jobs(first, last, **options)))  # fmt: skip

    async def _slice(
        self, method: str, state: str, start: int, end: int,
        read: Callable[[Queue[Any, Any], int, int], Awaitable[list[Job[Any, Any]]]],
    ) -> list[Job[Any, Any]]:  # fmt: skip
        first, last = check_int("start", start, 0, 2**53), check_int("end", end, -1, 2**53)
        counts: list[JobCounts] = await self.each("get_job_counts")
        found: list[Job[Any, Any]] = []
        before = 0
        for queue, count in zip(self.queues, counts, strict=True):
            number: int = getattr(count, state.replace("-", "_"))
            if last != -1 and before > last:
                break
            if before + number > first:
                found += await read(queue, max(0, first - before), -1 if last == -1 else last - before)
            before += number
        return found

    async def search_jobs(self, *args: Any, **options: Any) -> list[Job[Any, Any]]:
        """See `Queue.search_jobs`."""
        given = dict(zip(("state", "name", "data", "limit"), args, strict=False)) | options
        most = check_int("limit", given.pop("limit", 100), 1, 2**31)
        found: list[Job[Any, Any]] = []
        for queue in self.queues:
            found += await queue.search_jobs(**given, limit=most - len(found))
            if len(found) >= most:
                break
        return found

    async def get_failures(self, **options: Any) -> list[Any]:
        """See `Queue.get_failures`; one partition after the other."""
        limit = check_int("limit", options.pop("limit", 100), 1, 2**31)
        found: list[Any] = []
        for number, queue in enumerate(self.queues):
            mine = await queue.get_failures(**options, limit=limit - len(found))
            found += [self._shown(number, "iter_failures", each) for each in mine]
            if len(found) >= limit:
                break
        return found

    async def get_workers(self) -> list[WorkerInfo]:
        """See `Queue.get_workers`; each worker once, with its jobs of all partitions."""
        found: dict[str, WorkerInfo] = {}
        for workers in await self.each("get_workers"):
            for worker in workers:
                known = found.get(worker.id)
                found[worker.id] = worker if known is None else replace(
                    known, started_at=min(known.started_at, worker.started_at), age=max(known.age, worker.age),
                    active_jobs=known.active_jobs + worker.active_jobs, stuck=known.stuck + worker.stuck,
                )  # fmt: skip
        return sorted(found.values(), key=lambda worker: worker.started_at)

    # -- implemented by other modules -----------------------------------------------------------------------

    get_features = figures.get_features
    get_rank_counts = figures.get_rank_counts
    get_metrics = figures.get_metrics
    get_metrics_by_name = figures.get_metrics_by_name
    get_failure_stats = figures.get_failure_stats
    check = figures.check

    create_job_index = vectors.create_job_index
    drop_job_index = vectors.drop_job_index
    vector_search = vectors.vector_search

    upsert_job_scheduler = schedulers.upsert_job_scheduler
    get_job_scheduler = schedulers.get_job_scheduler
    remove_job_scheduler = schedulers.remove_job_scheduler
    pause_job_scheduler = schedulers.pause_job_scheduler
    resume_job_scheduler = schedulers.resume_job_scheduler
    get_job_schedulers = schedulers.get_job_schedulers

    get_dead_letter_jobs = dead_letters.get_dead_letter_jobs
    get_dead_letter_job = dead_letters.get_dead_letter_job
    remove_dead_letter_job = dead_letters.remove_dead_letter_job
    replay_dead_letter_job = dead_letters.replay_dead_letter_job

    set_global_concurrency = limits.set_global_concurrency
    set_global_rate_limit = limits.set_global_rate_limit
    get_global_limits = limits.get_global_limits
    remove_global_rate_limit = limits.remove_global_rate_limit
    set_name_limits = limits.set_name_limits
    get_name_limits = limits.get_name_limits

    create_batch = batches.create_batch
    get_batch = batches.get_batch

    fetch = leases.fetch
    complete_leases = leases.complete_leases
    fail_leases = leases.fail_leases
    release_leases = leases.release_leases
    extend_leases = leases.extend_leases
    release_owner = leases.release_owner

    # -- administration ---------------------------------------------------------------------------------------

    async def cancel_on_worker(self, job_id: str, worker: str, **options: Any) -> bool:
        """See `Queue.cancel_on_worker`."""
        queue, own = await self._locate(job_id)
        part = Partition(self.queues.index(queue), self.home.name)
        return await self.queues[0].cancel_on_worker(part.id_of(own), worker, **options)

    async def resume(self) -> None:
        """See `Queue.resume`."""
        for queue in self.queues:
            await queue.resume()

    async def clean(self, grace: Any, limit: int = 1_000, state: str = "completed") -> list[str]:
        """See `Queue.clean`."""
        most = check_int("limit", limit, 1, 2**53)
        found: list[str] = []
        for number, queue in enumerate(self.queues):
            part = Partition(number, self.home.name)
            found += [part.id_of(job_id) for job_id in await queue.clean(grace, most - len(found), state)]
            if len(found) >= most:
                break
        return found

    async def obliterate(self, *, force: bool = False, scan: bool = False) -> int:
        """See `Queue.obliterate`. Partition 0, which has the layout, is the last."""
        check_bool("force", force)
        check_bool("scan", scan)
        if not force:
            active = (await self.get_job_counts()).active
            if active:
                raise jobs_active_error(self.home.name, active)
        deleted = 0
        for queue in reversed(self.queues):
            link = await queue._connected()
            deleted += await administration.obliterate_queue(link, force=True, scan=scan, layout=self.layout.number)
        await self.home._disconnect()
        return deleted


def _first(args: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the first argument of a method of `_BY_ID` or `_BY_KEY`, and the others."""
    if args:
        return args[0], args[1:], dict(options)
    name = next(name for name in _NAMES if name in options)
    return options[name], (), {other: value for other, value in options.items() if other != name}
