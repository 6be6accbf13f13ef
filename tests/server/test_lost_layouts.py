"""Layouts of partitions that a failover has lost are restored; no job is lost or overtaken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from glidemq_py import FlowProducer, Queue, Worker, sync
from glidemq_py._features.partitions.layout import Layout, further_names, partition_of_key, split_partition_id
from glidemq_py.testing import RespClient
from tests.server.worker_support import until, with_timeout

LOCK_MS = 1_000
"""Lock duration of the workers: they send three heartbeats in this time, which report the layout."""


def moved_to(partition: int, before: int, after: int) -> str:
    """Return a key that has this partition after a change, and another one before it."""
    keys = (f"k{n}" for n in range(10_000))
    return next(key for key in keys if partition_of_key(key, after) == partition != partition_of_key(key, before))


def partition_in(job: Any) -> int:
    return split_partition_id(job.id)[0]


@pytest.fixture
def failover(resp: RespClient) -> Callable[[str], Callable[[], None]]:
    """Copies the meta key of a queue; the result restores it, like a failover that has lost the writes since then."""

    def begin(name: str) -> Callable[[], None]:
        key = f"glide:{{{name}}}:meta"
        before = resp.hash(key)

        def lose() -> None:
            resp.execute("DEL", key)
            if before:
                resp.execute("HSET", key, *(each for pair in before.items() for each in pair))

        return lose

    return begin


Failover = Callable[[str], Callable[[], None]]


async def grown(queue: Queue, failover: Failover, count: int = 4) -> tuple[str, Any]:
    """Let a queue with a job grow, and partition 0 lose that. Return a key that moved, and its job."""
    await queue.add("n", 0)
    before = (await queue.get_partitions()).count
    lose = failover(queue.name)
    assert not (await queue.set_partitions(count)).is_settled
    key = moved_to(3, before, count)
    job = await queue.add("n", 1, ordering={"key": key})
    assert partition_in(job) == 3
    lose()
    return key, job


@pytest.mark.parametrize("bulk", [False, True])
async def test_an_add_restores_it(url: str, queue_name: str, failover: Failover, bulk: bool):
    """The client knows the older layout only. The former partition of the key has the newer one."""
    async with Queue(queue_name, url, partitions=2) as operator:
        key, first = await grown(operator, failover)
        async with Queue(queue_name, url) as queue:
            assert (await queue.get_partitions()).count == 2
            options: dict[str, Any] = {"ordering": {"key": key}}
            second = (await queue.add_bulk([("n", 2, options)]))[0] if bulk else await queue.add("n", 2, **options)
            assert partition_in(second) == 3
            found = await queue.get_partitions()
            assert (found.count, found.serving, found.is_settled) == (4, 4, False)
            assert await queue.count() == await operator.count() == 3
            seen: list[Any] = []
            async with Worker(queue_name, lambda job: seen.append(job.data), url) as worker:
                await first.wait_until_finished()
                await second.wait_until_finished()
                await worker.drain()
            assert sorted(seen) == [0, 1, 2]
            assert seen.index(1) < seen.index(2)


async def test_a_client_that_knows_it_restores_it(url: str, queue_name: str, failover: Failover):
    """Partition 0 has lost that the queue was partitioned."""
    async with Queue(queue_name, url) as queue:
        key, _ = await grown(queue, failover)
        jobs = await asyncio.gather(*(queue.add("n", at) for at in range(600)))
        assert {partition_in(job) for job in jobs} == {0, 1, 2, 3}
        assert partition_in(await queue.add("n", ordering={"key": key})) == 3
        async with Queue(queue_name, url) as other:
            assert await other.count() == 603


def test_a_blocking_client_restores_it(url: str, queue_name: str, failover: Failover):
    with sync.Queue(queue_name, url) as queue:
        queue.add("n")
        lose = failover(queue_name)
        queue.set_partitions(3)
        lose()
        assert {partition_in(queue.add("n")) for _ in range(6)} == {0, 1, 2}


@pytest.mark.slow
async def test_a_worker_restores_it(url: str, queue_name: str, resp: RespClient, failover: Failover):
    """No client is left that knows the layout, and nothing is added."""
    done: list[Any] = []
    async with Queue(queue_name, url) as queue:
        await queue.add("n", 0)
        async with Worker(queue_name, lambda job: done.append(job.data), url, lock_duration=LOCK_MS):
            lose = failover(queue_name)
            await queue.set_partitions(4)
            jobs = await queue.add_bulk([("n", at) for at in range(1_000)])
            await with_timeout(until(lambda: len(done) == 1_001))
            lose()
            async with Queue(queue_name, url) as other:
                assert await other.count() == 0
                await with_timeout(until(lambda: resp.execute("HEXISTS", other._keys.meta, "partitions") == 1))
                assert (await other.get_partitions()).count == 4
                assert await other.get_job(jobs[-1].id) is not None


@pytest.mark.parametrize(("partitions", "count"), [(2, 4), (2, 5), (None, 4)])
async def test_set_partitions_restores_it(
    url: str, queue_name: str, failover: Failover, partitions: int | None, count: int
):
    """The lost layout has partitions that the present one does not name."""
    async with Queue(queue_name, url, partitions=partitions) as former:
        await former.add("n", 0)
        lose = failover(queue_name)
        await former.set_partitions(4)
        job_id = moved_to(3, partitions or 1, 4)
        first = await former.add("n", 1, job_id=job_id)
        assert partition_in(first) == 3
        lose()
    async with Queue(queue_name, url) as queue:
        assert (await queue.set_partitions(count)).count == count
        again = await queue.add("n", 2, job_id=job_id)
        assert (again.id, str(again.outcome)) == (first.id, "duplicate")
        assert await queue.count() == 2


async def test_opening_the_queue_with_its_number_restores_it(url: str, queue_name: str, failover: Failover):
    async with Queue(queue_name, url) as former:
        _, job = await grown(former, failover)
    async with Queue(queue_name, url, partitions=4) as queue:
        assert (await queue.get_job(job.id)) is not None
        assert await queue.count() == 2


async def test_a_flow_and_a_batch_restore_it(url: str, queue_name: str, failover: Failover):
    async with FlowProducer(url) as flows, Queue(queue_name, url, partitions=2) as queue:
        await flows.add({"name": "n", "queue": queue_name})
        key, _ = await grown(queue, failover)
        async with FlowProducer(url) as other:
            node = await other.add({"name": "n", "queue": queue_name, "options": {"ordering": {"key": key}}})
            assert partition_in(node.job) == 3
        lose = failover(queue_name)
        await queue.set_partitions(6)
        lose()
        async with Queue(queue_name, url) as stale:
            batch_id = next(f"b{n}" for n in range(1_000) if partition_of_key(f"b{n}", 4) == 1)
            await stale.create_batch(batch_id=batch_id)
            assert (await stale.get_partitions()).count == 6


async def test_a_partition_that_lags_behind_takes_the_layout_over(url: str, queue_name: str, failover: Failover):
    async with Queue(queue_name, url, partitions=2) as queue:
        await queue.add("n")
        name = (await queue.get_partitions()).names[1]
        lose = failover(name)
        await queue.set_partitions(4)
        lose()
        key = next(f"k{n}" for n in range(1_000) if partition_of_key(f"k{n}", 4) == 1)
        assert partition_in(await queue.add("n", fair_key=key)) == 1
        assert (await queue.get_partitions()).count == 4


@pytest.mark.parametrize("partitions", [2, None])
async def test_a_layout_that_no_partition_has_is_given_up(
    url: str, queue_name: str, failover: Failover, partitions: int | None
):
    """Nothing depends on it; the client goes on with the present layout, or without one."""
    async with Queue(queue_name, url, partitions=partitions) as queue:
        await queue.add("n")
        names = (await queue.get_partitions()).names
        losses = [failover(name) for name in further_names(names, 4)]
        await queue.set_partitions(4)
        for lose in losses:
            lose()
        assert {partition_in(await queue.add("n")) for _ in range(8)} == set(range(len(names)))
        assert await queue.count() == 9
        assert (await queue.get_partitions()).names == names
        assert (await queue.set_partitions(3)).count == 3
        assert {partition_in(await queue.add("n")) for _ in range(8)} == {0, 1, 2}


def test_layouts_are_joined():
    first = Layout.plain("q").changed(3)
    grown = first.changed(5)
    joined = first.including(grown)
    assert (joined.counts, joined.names) == ((1, 3, 5), grown.names)
    assert joined.number > grown.number
    settled = grown.settled()
    assert first.including(settled).counts == (1, 3, 5)
    assert settled.including(first.changed(2)).counts == (5, 1, 3, 2)
    other = Layout.plain("q").changed(7)
    kept = first.including(other)
    assert (kept.counts, kept.names) == (first.counts, first.names)
    assert kept.number > other.number
