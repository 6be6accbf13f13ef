"""Administration by a client that does not know the present partitions: settings, limits, pauses and schedulers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from glidemq_py import Lease, Queue, sync
from glidemq_py._api import partitioned_changes, partitioned_writes
from glidemq_py._features.partitions import opening
from glidemq_py._features.partitions.layout import partition_of_key
from glidemq_py.errors import GlideMQError, LeaseLostError
from tests.server.worker_support import with_timeout

PARTITIONS = 4


@asynccontextmanager
async def stale(url: str, name: str) -> AsyncGenerator[tuple[Queue, Queue]]:
    """Yield a queue that knows of no partitions, and one that has just created them."""
    async with Queue(name, url) as queue, Queue(name, url) as operator:
        await queue.count()
        await operator.set_partitions(PARTITIONS)
        yield queue, operator


def parts(queue: Queue) -> tuple[Queue, ...]:
    assert queue._partitions is not None
    return queue._partitions.queues


def key_of(partition: int, after: str = "k") -> str:
    return next(key for n in range(1_000) if partition_of_key(key := f"{after}{n}", PARTITIONS) == partition)


async def test_a_pause_and_its_end_reach_all_partitions(url: str, queue_name: str):
    async with stale(url, queue_name) as (queue, operator):
        await queue.pause()
        assert [await part.is_paused() for part in parts(operator)] == [True] * PARTITIONS
        await operator.set_partitions(PARTITIONS + 1)
        await queue.resume()
        assert [await part.is_paused() for part in parts(operator)] == [False] * (PARTITIONS + 1)


async def test_settings_reach_all_partitions(url: str, queue_name: str):
    async with stale(url, queue_name) as (queue, operator):
        await queue.set_failure_policy(max_age=60_000)
        await queue.set_result_retention(7)
        await queue.set_fair_key_defaults(max_backlog=70)
        for part in parts(operator):
            assert await part.get_failure_policy() == await operator.get_failure_policy()
            assert await part.get_result_retention() == 7
            assert (await part.get_fair_key_defaults()).max_backlog == 70


@pytest.mark.parametrize("give", ["plain", "cluster"])
async def test_limits_are_divided_among_all_partitions(give: str, request: pytest.FixtureRequest, queue_name: str):
    url: str = request.getfixturevalue("cluster_url" if give == "cluster" else "url")
    async with stale(url, queue_name) as (queue, operator):
        await queue.set_global_concurrency(8)
        assert [await part.get_global_concurrency() for part in parts(operator)] == [2] * PARTITIONS
    async with stale(url, f"{queue_name}-2") as (queue, operator):
        await queue.set_global_rate_limit(40, 1_000)
        rates = [await part.get_global_rate_limit() for part in parts(operator)]
        assert [rate and rate.max for rate in rates] == [10] * PARTITIONS
    async with stale(url, f"{queue_name}-3") as (queue, operator):
        await queue.set_name_limits("slow", concurrency=8)
        assert [(await part.get_name_limits("slow")).concurrency for part in parts(operator)] == [2] * PARTITIONS


async def test_limits_of_keys_are_set_where_their_jobs_are(url: str, queue_name: str):
    key = key_of(3)
    async with stale(url, queue_name) as (queue, operator):
        await queue.set_fair_key_limits(key, concurrency=5)
        assert (await parts(operator)[3].get_fair_key(key)).concurrency == 5
    async with stale(url, f"{queue_name}-2") as (queue, operator):
        await queue.set_group_limits(key, concurrency=5)
        found = await parts(operator)[3].get_group(key)
        assert found is not None
        assert found.limits.concurrency == 5


async def test_a_scheduler_exists_once(url: str, queue_name: str):
    name = key_of(3)
    async with stale(url, queue_name) as (queue, operator):
        await operator.upsert_job_scheduler(name, every=60_000, template={"name": "old"})
        await queue.upsert_job_scheduler(name, every=60_000, template={"name": "new"})
        found = [await part.get_job_scheduler(name) for part in parts(operator)]
        assert [each and each.job_name for each in found] == [None, None, None, "new"]


async def test_calls_for_the_jobs_of_all_partitions(url: str, queue_name: str):
    async with stale(url, queue_name) as (queue, operator):
        await operator.add_bulk([("n", at) for at in range(1_000)])
        assert await queue.drain() == 1_000
    async with stale(url, f"{queue_name}-2") as (queue, operator):
        await operator.add_bulk([("n", at, {"delay": 60_000}) for at in range(1_000)])
        assert await queue.promote_jobs() == 1_000


def test_a_blocking_queue(url: str, queue_name: str):
    with sync.Queue(queue_name, url) as queue, sync.Queue(queue_name, url) as operator:
        queue.count()
        operator.set_partitions(PARTITIONS)
        queue.pause()
        queue.set_global_concurrency(8)
        with sync.Queue(queue_name, url) as third:
            third.count()
            found = third._core._partitions
            assert found is not None
            for name in found.layout.served[1:]:  # partition 0 has the name of the queue
                with sync.Queue(name, url) as part:
                    assert part.is_paused()
                    assert part.get_global_concurrency() == 2


# -- changes between reading the layout and writing ------------------------------------------------------------


def after_call(queue: Queue, monkeypatch: pytest.MonkeyPatch, name: str, then: Callable[[], Awaitable[Any]]) -> None:
    """Run something after the first call of a function by this queue."""
    call = queue._transport.call

    async def calling(request: Any, *args: Any, **options: Any) -> Any:
        reply = await call(request, *args, **options)
        if request.function == name:
            monkeypatch.setattr(queue._transport, "call", call)
            await then()
        return reply

    monkeypatch.setattr(queue._transport, "call", calling)


async def test_a_change_after_the_write(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch):
    """The operator has copied the settings before the write, and publishes the layout after it."""
    publish = partitioned_changes._publish
    async with Queue(queue_name, url) as queue, Queue(queue_name, url) as operator:
        await queue.count()
        copied, written = asyncio.Event(), asyncio.Event()

        async def publish_later(*args: Any) -> Any:
            monkeypatch.setattr(partitioned_changes, "_publish", publish)
            copied.set()
            await written.wait()
            return await publish(*args)

        async def publish_now() -> None:
            written.set()
            await change

        monkeypatch.setattr(partitioned_changes, "_publish", publish_later)
        change = asyncio.create_task(operator.set_partitions(PARTITIONS))
        await with_timeout(copied.wait())
        after_call(queue, monkeypatch, "pause", publish_now)
        await with_timeout(queue.pause())
        assert [await part.is_paused() for part in parts(operator)] == [True] * PARTITIONS


async def test_a_setting_between_the_copies_and_the_layout(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch):
    """It is complete before the layout is published: the operator copies again."""
    publish = partitioned_changes._publish
    key = key_of(3)
    async with Queue(queue_name, url) as queue, Queue(queue_name, url) as operator:
        await queue.count()
        await queue.set_group_limits(key, concurrency=5)

        async def publish_later(*args: Any) -> Any:
            monkeypatch.setattr(partitioned_changes, "_publish", publish)
            monkeypatch.setattr(partitioned_writes, "_CHANGE_MS", 0)  # does not wait for the change
            await queue.pause()
            await queue.set_failure_policy(max_age=60_000)
            await queue.set_group_limits(key, concurrency=6)
            return await publish(*args)

        monkeypatch.setattr(partitioned_changes, "_publish", publish_later)
        await operator.set_partitions(PARTITIONS)
        for part in parts(operator):
            assert await part.is_paused()
            assert await part.get_failure_policy() == await queue.get_failure_policy()
        found = await parts(operator)[3].get_group(key)
        assert found is not None
        assert found.limits.concurrency == 6


async def test_a_limit_that_is_removed_between_the_copies_and_the_layout(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    """The limits of keys are in another partition already when they are removed from their own."""
    publish = partitioned_changes._publish
    key = next(k for n in range(1_000) if partition_of_key(k := f"k{n}", 3) == 2 and partition_of_key(k, 2) == 1)
    async with Queue(queue_name, url, partitions=3) as queue, Queue(queue_name, url) as operator:
        await queue.set_fair_key_limits(key, concurrency=5)
        await queue.set_group_limits(key, concurrency=5)

        async def publish_later(*args: Any) -> Any:
            monkeypatch.setattr(partitioned_changes, "_publish", publish)
            monkeypatch.setattr(partitioned_writes, "_CHANGE_MS", 0)
            await queue.set_fair_key_limits(key, concurrency=False)
            await queue.set_group_limits(key, concurrency=False)
            return await publish(*args)

        monkeypatch.setattr(partitioned_changes, "_publish", publish_later)
        await operator.set_partitions(2)
        assert (await parts(operator)[1].get_fair_key(key)).concurrency is None
        found = await parts(operator)[1].get_group(key)
        assert found is None or found.limits.concurrency is None


async def test_a_limit_of_the_queue_waits_for_the_change(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch):
    publish = partitioned_changes._publish
    async with Queue(queue_name, url) as queue, Queue(queue_name, url) as operator:
        await queue.set_global_concurrency(80)
        waiting: list[asyncio.Task[None]] = []

        async def publish_later(*args: Any) -> Any:
            monkeypatch.setattr(partitioned_changes, "_publish", publish)
            waiting.append(asyncio.create_task(queue.set_global_concurrency(8)))
            await asyncio.wait(waiting, timeout=0.05)
            return await publish(*args)

        monkeypatch.setattr(partitioned_changes, "_publish", publish_later)
        await operator.set_partitions(PARTITIONS)
        await with_timeout(waiting[0])
        assert [await part.get_global_concurrency() for part in parts(operator)] == [2] * PARTITIONS


async def test_a_limit_of_the_queue_after_an_interrupted_change(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    async def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    async with Queue(queue_name, url) as queue, Queue(queue_name, url) as operator:
        await queue.set_global_concurrency(80)
        with monkeypatch.context() as patched:
            patched.setattr(partitioned_changes, "_publish", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await operator.set_partitions(PARTITIONS)
        monkeypatch.setattr(partitioned_writes, "_CHANGE_MS", 0)
        with pytest.raises(GlideMQError, match=f"queue '{queue_name}'.*call set_partitions again"):
            await queue.set_global_concurrency(8)
        await queue.pause()  # other settings are changed
        await queue.set_failure_policy(max_age=60_000)
        await operator.set_partitions(1)
        assert await queue.get_global_concurrency() == 80
        await queue.set_global_concurrency(8)
        assert await operator.get_global_concurrency() == 8


async def test_a_scheduler_that_another_client_has_created_meanwhile(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    """The plain queue's scheduler is written after the new layout was used for one of the same name."""
    name = key_of(3)
    async with Queue(queue_name, url) as queue, Queue(queue_name, url) as operator:
        await queue.count()
        check = queue._check_layout

        async def change(**options: Any) -> None:
            await check(**options)
            monkeypatch.setattr(queue, "_check_layout", check)
            await operator.set_partitions(PARTITIONS)
            await operator.upsert_job_scheduler(name, every=60_000, template={"name": "old"})

        monkeypatch.setattr(queue, "_check_layout", change)
        await queue.upsert_job_scheduler(name, every=60_000, template={"name": "new"})
        found = [await part.get_job_scheduler(name) for part in parts(operator)]
        assert [each and each.job_name for each in found] == [None, None, None, "new"]


async def test_dead_letters_that_are_declared_during_a_change(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    publish = partitioned_changes._publish
    dead = f"{queue_name}-dead"
    async with Queue(queue_name, url) as operator:
        await operator.add("n")

        async def publish_later(*args: Any) -> Any:
            monkeypatch.setattr(partitioned_changes, "_publish", publish)
            async with Queue(queue_name, url, dead_letter_queue=dead) as queue:
                await queue.count()
            return await publish(*args)

        monkeypatch.setattr(partitioned_changes, "_publish", publish_later)
        await operator.set_partitions(PARTITIONS)
        for part in parts(operator):
            stored = await operator._transport.command("HGET", part._keys.meta, "deadLetterQueueName")
            assert stored == dead.encode()


async def test_a_setting_while_an_empty_queue_gets_partitions(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    copy = opening._copy_settings
    async with Queue(queue_name, url) as queue:
        await queue.count()

        async def pause_after(*args: Any) -> bool:
            monkeypatch.setattr(opening, "_copy_settings", copy)
            copied = await copy(*args)
            await queue.pause()
            return copied

        monkeypatch.setattr(opening, "_copy_settings", pause_after)
        async with Queue(queue_name, url, partitions=PARTITIONS) as opened:
            await opened.count()
            assert [await part.is_paused() for part in parts(opened)] == [True] * PARTITIONS


# -- leases that were fetched before -----------------------------------------------------------------------------


@asynccontextmanager
async def with_leases(url: str, name: str, count: int) -> AsyncGenerator[tuple[Queue, list[Lease[Any, Any]]]]:
    """Yield a queue that was given partitions after these leases, and that knows it."""
    async with Queue(name, url) as queue:
        await queue.add_bulk([("n", at) for at in range(count)])
        leases = await queue.fetch(count)
        async with Queue(name, url) as operator:
            await operator.set_partitions(PARTITIONS)
        assert (await queue.get_partitions()).count == PARTITIONS
        yield queue, leases


async def outcomes(queue: Queue) -> tuple[int, int, int, int]:
    counts = await queue.get_job_counts()
    return counts.active, counts.completed, counts.failed, counts.waiting


@pytest.mark.parametrize("give", ["plain", "cluster"])
async def test_leases_are_reported_from_their_objects(give: str, request: pytest.FixtureRequest, queue_name: str):
    url: str = request.getfixturevalue("cluster_url" if give == "cluster" else "url")
    async with with_leases(url, queue_name, 5) as (queue, leases):
        completed, failed, released, extended, many = leases
        await completed.complete(1)
        await failed.fail("no")
        await released.release()
        assert await extended.extend(60_000) > completed.expires_at
        assert await outcomes(queue) == (2, 1, 1, 1)
        (report,) = (await queue.complete_leases([(many, 1)])).outcomes
        assert report.applied
        (following,) = await extended.complete(fetch_next=1)
        assert following.id == released.id
        await following.complete()
        assert await outcomes(queue) == (0, 4, 1, 0)
        with pytest.raises(LeaseLostError):
            await released.complete()


async def test_the_block_of_a_lease_ends_after_the_change(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.add_bulk([("n", at) for at in range(2)])
        async with queue.lease() as lease:
            await queue.set_partitions(PARTITIONS)
            assert lease is not None
            await lease.job.update_progress(50)

        async def fail() -> None:
            async with queue.lease():
                await queue.set_partitions(PARTITIONS + 1)
                raise ValueError("wrong")

        with pytest.raises(ValueError, match="wrong"):
            await fail()
        assert await outcomes(queue) == (0, 1, 1, 0)


async def test_the_token_of_a_lease_is_valid_after_the_change(url: str, queue_name: str):
    async with with_leases(url, queue_name, 3) as (queue, leases):
        other = Queue(queue_name, url)  # not connected yet
        await Lease.from_token(other, leases[0].token).complete()
        await other.close()
        async with Queue(queue_name, url) as other:
            await Lease.from_token(other, leases[1].token).extend(60_000)
            await Lease.from_token(other, leases[1].token).fail("no")
        await Lease.from_token(queue, leases[2].token).release()
        assert await outcomes(queue) == (0, 1, 1, 1)


def test_leases_of_blocking_code(url: str, queue_name: str):
    with sync.Queue(queue_name, url) as queue, sync.Queue(queue_name, url) as operator:
        queue.add_bulk([("n", at) for at in range(3)])
        completed, failed, released = queue.fetch(3)
        operator.set_partitions(PARTITIONS)
        queue.add("n", delay=60_000)
        completed.extend(60_000)
        completed.complete(1)
        failed.fail("no")
        released.release()
        counts = queue.get_job_counts()
        assert (counts.active, counts.completed, counts.failed, counts.waiting) == (0, 1, 1, 1)
