"""Requeues after the number of partitions has changed: a key has jobs in one partition only."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker, sync
from glidemq_py._api import partitioned_changes
from glidemq_py._features.failures.calls import set_failure_setting
from glidemq_py._features.failures.policy_task import FailurePolicyTask
from glidemq_py._features.partitions.layout import partition_of_key, split_partition_id
from glidemq_py.errors import JobStateError
from glidemq_py.testing import RespClient
from tests.server.worker_support import until, with_timeout


def keys_with(*partitions: tuple[int, int], count: int) -> list[str]:
    """Return keys that choose these partitions: pairs of the number of partitions, and the partition."""
    keys = (f"k{n}" for n in range(10_000))
    found = (key for key in keys if all(partition_of_key(key, number) == at for number, at in partitions))
    return [next(found) for _ in range(count)]


MOVED = keys_with((1, 0), (4, 1), count=3)
STAYING = keys_with((1, 0), (4, 0), count=2)


def ordered(key: str) -> dict[str, Any]:
    return {"ordering": {"key": key}}


def unique(key: str) -> dict[str, Any]:
    return {"deduplication": {"id": key}}


KINDS = pytest.mark.parametrize("kind", [ordered, unique])


@contextlib.asynccontextmanager
async def failed_jobs(
    url: str, name: str, kind: Callable[[str], dict[str, Any]], keys: Sequence[str], partitions: int | None = None
) -> AsyncGenerator[tuple[Queue, list[Job]]]:
    """Open a queue, and let jobs of the keys fail."""
    async with Queue(name, url, partitions=partitions) as queue:
        jobs = await queue.add_bulk([("old", key, kind(key)) for key in keys])
        await end(queue, url, fail=True)
        yield queue, jobs


async def end(queue: Queue, url: str, *, fail: bool = False) -> None:
    """Run the waiting jobs."""
    left, ended = await queue.count(), 0

    async def handle(_: Job) -> None:
        if fail:
            raise ValueError("not yet")

    worker = Worker(queue.name, handle, url, concurrency=20)

    def count(*_: Any) -> None:
        nonlocal ended
        ended += 1

    worker.on("completed", count)
    worker.on("failed", count)
    async with worker:
        await with_timeout(until(lambda: ended >= left))


async def by_count(queue: Queue, _: list[Job]) -> int:
    return await queue.retry_jobs()


async def by_filter(queue: Queue, _: list[Job]) -> int:
    return await queue.retry_failures(name="old")


async def one_by_one(queue: Queue, jobs: list[Job]) -> int:
    failed = (await queue.get_job_counts()).failed
    for job in jobs:
        found = await queue.get_job(job.id)
        assert found is not None
        with contextlib.suppress(JobStateError):
            await found.retry()
    return failed - (await queue.get_job_counts()).failed


async def by_policy(queue: Queue, _: list[Job]) -> int:
    failed = (await queue.get_job_counts()).failed
    assert queue._partitions is not None
    for part in queue._partitions.queues:
        link = await part._connected()
        await link.transport.call(set_failure_setting(link.keys.meta, "failurePolicy", "1|9|0|0"))  # each millisecond
        await FailurePolicyTask(link).run_round()
    await queue.remove_failure_policy()
    return failed - (await queue.get_job_counts()).failed


Requeue = Callable[[Queue, list[Job]], Awaitable[int]]
WAYS = pytest.mark.parametrize("requeue", [by_count, by_filter, one_by_one, by_policy])


@KINDS
@WAYS
async def test_a_job_is_not_requeued_beside_jobs_of_its_key(
    url: str, queue_name: str, kind: Callable[[str], dict[str, Any]], requeue: Requeue
):
    async with failed_jobs(url, queue_name, kind, MOVED) as (queue, jobs):
        await queue.set_partitions(4)
        new = await queue.add_bulk([("new", key, kind(key)) for key in MOVED])
        assert [split_partition_id(job.id)[0] for job in new] == [1] * len(MOVED)
        assert await requeue(queue, jobs) == 0
        assert (await queue.get_job_counts()).failed == len(MOVED)
        await end(queue, url)
        assert await requeue(queue, jobs) == 0  # the keys have left the partition


@KINDS
@WAYS
async def test_a_job_is_requeued_while_its_key_has_jobs_nowhere_else(
    url: str, queue_name: str, kind: Callable[[str], dict[str, Any]], requeue: Requeue
):
    async with failed_jobs(url, queue_name, kind, MOVED + STAYING) as (queue, jobs):
        await queue.set_partitions(4)
        assert await requeue(queue, jobs) == len(jobs)
        again = await queue.add_bulk([("new", key, kind(key)) for key in MOVED])
        assert {split_partition_id(job.id)[0] for job in again} == {0}
        await end(queue, url)
        assert (await queue.get_job_counts()).failed == 0


@KINDS
@WAYS
async def test_a_job_of_a_key_that_belongs_elsewhere_is_not_requeued_after_the_change(
    url: str, queue_name: str, kind: Callable[[str], dict[str, Any]], requeue: Requeue
):
    async with failed_jobs(url, queue_name, kind, MOVED + STAYING) as (queue, jobs):
        for each in MOVED + STAYING:
            await queue.remove_deduplication(each)  # it would be kept for an hour
        await queue.set_partitions(4)
        assert (await queue.set_partitions(4)).is_settled
        assert await requeue(queue, jobs) == len(STAYING)
        assert (await queue.get_job_counts()).failed == len(MOVED)


async def test_completed_jobs_are_requeued_by_the_same_rule(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("old", key, ordered(key)) for key in MOVED + STAYING])
        await end(queue, url)
        await queue.set_partitions(4)
        await queue.add_bulk([("new", key, ordered(key)) for key in MOVED])
        found = await queue.get_job(jobs[0].id)
        assert found is not None
        with pytest.raises(JobStateError, match=r"its key 'k\d+' .* another partition") as caught:
            await found.requeue()
        error = caught.value
        assert (error.job_id, error.state, error.action, error.queue) == (found.id, "completed", "requeue", queue_name)
        assert await queue.requeue_completed() == len(STAYING)
        assert (await queue.get_job_counts()).completed == len(MOVED)


async def test_a_number_of_jobs_is_that_of_requeued_ones(url: str, queue_name: str):
    keys = [*MOVED, *STAYING]
    async with failed_jobs(url, queue_name, ordered, keys) as (queue, _):
        await queue.add_bulk([("plain", None)] * 3)
        await end(queue, url, fail=True)
        await queue.set_partitions(4)
        await queue.add_bulk([("new", key, ordered(key)) for key in MOVED])
        assert await queue.retry_jobs(1) == 1
        assert await queue.retry_jobs(3) == 3
        assert await queue.retry_jobs() == 1
        assert (await queue.get_job_counts()).failed == len(MOVED)


async def test_a_key_that_comes_back_asks_its_former_partition(url: str, queue_name: str):
    """The old jobs are in the present partition of their keys, and other jobs in the former one."""
    keys = keys_with((2, 1), (5, 3), count=4)
    async with failed_jobs(url, queue_name, ordered, keys, partitions=2) as (queue, _):
        await queue.set_partitions(5)
        await queue.add_bulk([("new", key, ordered(key)) for key in keys[:2]])
        await queue.set_partitions(2)
        assert await queue.retry_jobs() == 2
        await end(queue, url)
        assert await queue.retry_jobs() == 2
        new = await queue.add_bulk([("new", key, ordered(key)) for key in keys])
        assert {split_partition_id(job.id)[0] for job in new} == {1}


async def test_numbers_are_keys_like_others(url: str, queue_name: str):
    """They are ids of other jobs in each partition."""
    keys = [key for key in map(str, range(1, 40)) if partition_of_key(key, 3) == 1][:5]
    async with failed_jobs(url, queue_name, ordered, keys) as (queue, _):
        await queue.set_partitions(3)
        await queue.add_bulk([("plain", None)] * 2_000)
        assert await queue.retry_jobs() == len(keys)


async def test_throttled_jobs_are_requeued_in_any_case(url: str, queue_name: str):
    def throttled(key: str) -> dict[str, Any]:
        return {"deduplication": {"id": key, "mode": "throttle", "ttl": 10}}

    async with failed_jobs(url, queue_name, throttled, MOVED) as (queue, _):
        await queue.set_partitions(4)
        assert await queue.retry_jobs() == len(MOVED)


async def test_a_client_that_does_not_know_the_partitions_asks_for_them(url: str, queue_name: str):
    async with failed_jobs(url, queue_name, ordered, MOVED + STAYING) as (queue, jobs), Queue(queue_name, url) as other:
        found = await queue.get_job(jobs[0].id)
        await other.set_partitions(4)
        await other.add_bulk([("new", key, ordered(key)) for key in MOVED])
        assert queue._partitions is None
        assert found is not None
        with pytest.raises(JobStateError, match="another partition"):
            await found.retry()
        assert await queue.retry_jobs() == len(STAYING)


def test_blocking_clients_use_the_same_rule(url: str, queue_name: str):
    with sync.Queue(queue_name, url) as queue:
        queue.add_bulk([("old", key, ordered(key)) for key in MOVED + STAYING])

        for lease in queue.fetch(10):
            lease.fail("not yet")
        queue.set_partitions(4)
        queue.add_bulk([("new", key, ordered(key)) for key in MOVED])
        assert queue.retry_jobs() == len(STAYING)


async def test_a_policy_reports_jobs_that_it_cannot_requeue(
    url: str, queue_name: str, caplog: pytest.LogCaptureFixture
):
    async with failed_jobs(url, queue_name, ordered, MOVED) as (queue, jobs):
        await queue.set_partitions(4)
        await queue.add_bulk([("new", key, ordered(key)) for key in MOVED])
        with caplog.at_level(logging.WARNING, "glidemq_py"):
            assert await by_policy(queue, jobs) == 0
        (line,) = [record.getMessage() for record in caplog.records if "another partition" in record.getMessage()]
        assert "3 failed jobs" in line


async def test_nothing_is_requeued_between_the_last_look_and_the_end_of_a_change(
    url: str, queue_name: str, resp: RespClient, monkeypatch: pytest.MonkeyPatch
):
    async with failed_jobs(url, queue_name, ordered, MOVED) as (queue, _):
        prefix = queue._keys.meta.removesuffix("meta")
        for key in MOVED:  # as after a day without jobs
            resp.execute("HDEL", f"{prefix}ordering", key)
            resp.execute("DEL", f"{prefix}group:{key}")
        await queue.add("held up", job_id=MOVED[0])
        await queue.set_partitions(4)
        assert not (await queue.set_partitions(4)).is_settled
        assert await queue.retry_jobs(1) == 1
        await end(queue, url, fail=True)
        await queue.remove(MOVED[0])
        for key in MOVED:
            resp.execute("HDEL", f"{prefix}ordering", key)
            resp.execute("DEL", f"{prefix}group:{key}", f"{prefix}moved-keys")
        publish = partitioned_changes._publish
        requeued: list[int] = []

        async def requeue_first(*args: Any) -> Any:
            requeued.append(await queue.retry_jobs())
            return await publish(*args)

        monkeypatch.setattr(partitioned_changes, "_publish", requeue_first)
        assert (await queue.set_partitions(4)).is_settled
        assert requeued == [0]
