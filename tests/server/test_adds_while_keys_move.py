"""Adds of open clients while the layout of a partitioned queue changes: order, waits and middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from glidemq_py import Job, Middleware, NewJob, Queue, Worker
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._features.partitions.layout import (
    Layout,
    number_after,
    partition_names,
    partition_of_key,
    split_partition_id,
)
from glidemq_py.testing import RespClient
from tests.server.worker_support import until, with_timeout


def moving_key(*counts: int) -> str:
    """Return a key that has another partition with each of these numbers of partitions."""
    keys = (f"k{n}" for n in range(10_000))
    return next(key for key in keys if len({partition_of_key(key, count) for count in counts}) == len(counts))


async def add_while(queue: Queue, key: str, begun: Callable[[], bool]) -> list[Job]:
    """Add 50 jobs of a key at the same time, and 50 more as soon as ``begun`` is true."""
    adds = [asyncio.create_task(queue.add("n", at, ordering={"key": key})) for at in range(50)]
    while not begun():  # noqa: ASYNC110 (the next step of the event loop counts)
        await asyncio.sleep(0)
    assert not all(add.done() for add in adds)
    adds += [asyncio.create_task(queue.add("n", at, ordering={"key": key})) for at in range(50, 100)]
    return await with_timeout(asyncio.gather(*adds))


async def starts(queue: Queue, url: str) -> list[Any]:
    seen: list[Any] = []
    async with Worker(queue.name, lambda job: seen.append(job.data), url, concurrency=10):
        await with_timeout(until(lambda: len(seen) == 100))
    return seen


async def test_concurrent_adds_keep_their_order_when_their_key_moves(url: str, queue_name: str):
    key = moving_key(2, 5)
    async with Queue(queue_name, url, partitions=2) as queue:
        await queue.add("later", delay=3_600_000)  # the change of an empty queue is settled at once
        assert not (await queue.set_partitions(5)).is_settled
        known: Any = queue._partitions
        jobs = await add_while(queue, key, lambda: bool(known._moved))
        assert {job.id.split("||")[0] for job in jobs} == {str(partition_of_key(key, 5))}
        assert await starts(queue, url) == list(range(100))
        assert all(not order._turns for order in queue._add_orders.values())


@pytest.mark.parametrize("partitions", [None, 2])
async def test_concurrent_adds_of_a_stale_client_keep_their_order(url: str, queue_name: str, partitions: int | None):
    key = moving_key(partitions or 1, 5)
    async with Queue(queue_name, url, partitions=partitions) as stale, Queue(queue_name, url) as operator:
        await stale.count()
        former = stale._partitions
        await operator.set_partitions(5)
        await add_while(stale, key, lambda: stale._partitions is not former)
        assert await starts(stale, url) == list(range(100))


async def test_adds_keep_their_order_when_the_client_reads_the_layout_meanwhile(url: str, queue_name: str):
    key = moving_key(2, 5)
    async with Queue(queue_name, url, partitions=2) as queue, Queue(queue_name, url) as operator:
        await queue.count()
        await operator.set_partitions(5)
        former = queue._partitions
        reading = asyncio.create_task(queue._renew_layout())
        await add_while(queue, key, lambda: queue._partitions is not former)
        await reading
        assert await starts(queue, url) == list(range(100))


async def test_a_job_that_is_awaited_does_not_hold_up_adds(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=2) as queue, Queue(queue_name, url) as operator:
        await queue.count()
        await operator.set_partitions(3)
        waits = [asyncio.create_task(queue.add_and_wait("n", at)) for at in range(5)]
        while await operator.count() < 5:  # noqa: ASYNC110 (each round asks the server)
            await asyncio.sleep(0)
        await with_timeout(queue.add("n", 5), 10)
        async with Worker(queue_name, lambda job: job.data, url):
            assert await with_timeout(asyncio.gather(*waits)) == [0, 1, 2, 3, 4]


class Replacing(Middleware):
    """Counts the adds and replaces their errors."""

    def __init__(self) -> None:
        self.entered = 0

    @asynccontextmanager
    async def add(self, job: NewJob) -> AsyncIterator[None]:
        self.entered += 1
        job.headers["entered"] = str(self.entered)
        try:
            yield
        except Exception as error:
            raise RuntimeError("replaced") from error


@pytest.mark.parametrize("partitions", [None, 2])
async def test_middleware_does_not_see_that_an_add_is_routed_again(url: str, queue_name: str, partitions: int | None):
    middleware, key = Replacing(), moving_key(partitions or 1, 4)
    async with (
        Queue(queue_name, url, partitions=partitions, middleware=[middleware]) as queue,
        Queue(queue_name, url) as operator,
    ):
        await queue.count()
        await operator.set_partitions(4)
        job = await queue.add("n", 1, ordering={"key": key})
        assert (middleware.entered, job.headers) == (1, {"entered": "1"})
        await queue.add("n", 2, ordering={"key": key})
        assert middleware.entered == 2


async def add_to_all(queue: Queue) -> set[int]:
    """Add jobs one after the other; return their partitions."""
    return {split_partition_id((await queue.add("n")).id)[0] for _ in range(8)}


async def test_a_queue_that_is_created_again_is_not_blocked_by_clients_of_the_former_one(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=2) as stale, Queue(queue_name, url) as operator:
        await operator.set_partitions(3)
        assert (await stale.get_partitions()).count == 3
        await operator.obliterate(force=True)
        async with Queue(queue_name, url, partitions=4) as new:
            await new.count()
            part = stale._partitions
            assert part is not None
            with pytest.raises(LayoutChangedError, match="the client used"):
                await part.queues[1].add("n")
            assert await add_to_all(new) == {0, 1, 2, 3}
            assert await add_to_all(stale) == {0, 1, 2, 3}


def test_numbers_of_layouts_are_never_used_again():
    first = Layout(1, (2,), partition_names("q", 2))
    second = first.changed(3)
    assert second.number > 1_700_000_000_000
    assert second.settled().number > second.number
    assert number_after(2**52) == 2**52 + 1


async def test_unique_ids_that_a_former_partition_never_had_are_not_listed(url: str, queue_name: str, resp: RespClient):
    key = moving_key(2, 5)
    ids = [f"id-{n}" for n in range(100)]
    async with Queue(queue_name, url, partitions=2) as queue:
        await queue.add("n", deduplication={"id": key})
        former: Any = queue._partitions
        await queue.set_partitions(5)
        await queue.add_bulk([("n", at, {"deduplication": {"id": each}}) for at, each in enumerate(ids[:50])])
        for each in ids[50:]:
            await queue.add("n", deduplication={"id": each})
        moved = [f"{part._keys.meta.removesuffix('meta')}moved-keys" for part in former.queues]
        assert [resp.execute("SCARD", each) for each in moved] == [0, 0]
        async with Worker(queue_name, lambda _: None, url):
            await with_timeout(until_empty(queue))
        job = await queue.add("n", deduplication={"id": key})
        assert split_partition_id(job.id)[0] == partition_of_key(key, 5)
        assert sum(resp.execute("SCARD", each) for each in moved) == 1  # its entry is still there


async def until_empty(queue: Queue) -> None:
    while (await queue.get_job_counts()).completed < 101:  # noqa: ASYNC110 (each round asks the server)
        await asyncio.sleep(0.01)
